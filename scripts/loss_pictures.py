"""A picture for each family of losses: what it does to the logits, by the package's own analysis of gradients.

A push is what a step of gradient descent does to a logit, −∂L/∂z. Predictions are of ten classes; logits are 0 unless
stated.
"""

from collections.abc import Callable, Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from family_pictures import COLOURS, INK, TICKS, title
from temperance.diagnose.gradient import (
    against_probability,
    gradients,
    overconfident_batch,
    probe,
    smoothed_distribution,
    sweep,
)
from temperance.losses import MIT, CutMix, Loss, Mixup, make_loss
from temperance.losses.mixup import Mixed, TwiceMixed, decouple
from temperance.registry import parse_entry
from temperance.report.figures import GUIDE, OVER, PLAIN, UNDER, new_figure

K = 10
TEAL = "#1b9aaa"

# Where the pixels of an image are.
SIDE = 160
Y, X = torch.meshgrid(*[torch.linspace(-1, 1, SIDE)] * 2, indexing="ij")


# ------------------------------------------------------------------------------------------------------------ pictures


def proper() -> Figure:
    """Cross-entropy and the Brier score: what a mistake costs, and how much is learnt from it."""
    figure = new_figure(8.6, 3.6)
    left, right = figure.subplots(1, 2)
    lead = torch.linspace(-12, 12, 481, dtype=torch.float64)
    logits = torch.stack([lead, torch.zeros_like(lead)], dim=1)
    labels = torch.zeros(len(lead), dtype=torch.int64)
    for name, colour in zip(("cross-entropy", "brier"), COLOURS, strict=False):
        loss = made(name, reduction="none")
        left.plot(logits.softmax(1)[:, 0].tolist(), loss(logits, labels).tolist(), color=colour, lw=1.8, label=name)
        right.plot(lead.tolist(), push(loss, logits, labels)[:, 0].tolist(), color=colour, lw=1.8)
    left.set(xlim=(0, 1), ylim=(0, 5), xlabel="probability of the label", ylabel="loss")
    left.set_xticks(TICKS)
    left.legend(loc="upper right", fontsize="small", frameon=False)
    title(left, "what a prediction costs")
    right.set(xlim=(-12, 12), ylim=(0, 1.05), xlabel="how far the label's logit is ahead", ylabel="push on it")
    right.text(-11.4, 0.05, "confident and\nwrong: hardly\nany push", fontsize="small", color=OVER)
    title(right, "how hard the label is pushed up")
    return figure


def smoothing() -> Figure:
    """Smoothing and margins: f and C of the ACLS paper, and how far ahead the label's logit gets."""
    names = ("label-smoothing", "entropy-penalty", "cpc", "mbls", "acls", "crl-margin")
    figure = new_figure(8.6, 4.0)
    top, other, stops = figure.subplots(1, 3)
    for name, colour in zip(names, (*COLOURS, TEAL), strict=True):
        loss, style = made(name), "--" if name == "crl-margin" else "-"
        for ax, place in ((top, "top"), (other, "other")):
            found = sweep(loss, place, k=K)
            x = found.logit.tolist()
            ax.plot(x, found.f.where(found.C, torch.nan).tolist(), color=colour, lw=1.8, ls=style, label=name)
            ax.plot(x, found.f.where(~found.C & (found.f > 0), torch.nan).tolist(), color=colour, lw=0.7, ls=":")
        lead = torch.linspace(0, 15, 1501, dtype=torch.float64)
        logits = torch.zeros(len(lead), K, dtype=torch.float64)
        logits[:, 0] = lead
        pushed = push(loss, logits, torch.zeros(len(lead), dtype=torch.int64))[:, 0]
        stops.plot(lead.tolist(), pushed.tolist(), color=colour, lw=1.8, ls=style)
        if bool((pushed < 0).any()):
            stops.plot(float(lead[int((pushed < 0).int().argmax())]), 0, "o", ms=5, color=colour, zorder=3)
    for ax, x in ((top, "its logit"), (other, "its logit; the predicted class at 12"), (stops, "the label's lead")):
        ax.axhline(0, color=GUIDE, lw=0.8, zorder=0)
        ax.set_xlabel(x)
    top.set(xlim=(0, 15), ylim=(-0.02, 0.2), ylabel="f")
    other.set(xlim=(-8, 12), ylim=(-0.008, 0.03))
    stops.set(xlim=(0, 15), ylim=(-0.2, 0.2), ylabel="push on the label's logit")
    top.set_yticks([0, 0.05, 0.1, 0.15, 0.2])
    other.set_yticks([0, 0.01, 0.02, 0.03])
    stops.set_yticks([-0.2, -0.1, 0, 0.1, 0.2])
    title(top, "the predicted label loses f")
    title(other, "another class gains f")
    title(stops, "where the push ends")
    legend_above(figure, top)
    return figure


def focal() -> Figure:
    """The focal family: weights over the label's probability, gradients, and where inverse focal turns around."""
    figure = new_figure(8.6, 3.8)
    weights, factors, turning = figure.subplots(1, 3)
    entries = ("cross-entropy", "focal", "flsd", "dual-focal", "inverse-focal", "adafocal")
    for text, colour in zip(entries, (INK, *COLOURS), strict=True):
        found = against_probability(grown_adafocal() if text == "adafocal" else made(text), k=K)
        inside = found.prob > 1 / K if text == "dual-focal" else found.prob > 0
        x, style = found.prob[inside].tolist(), {"color": colour, "lw": 1.4 if text == "cross-entropy" else 1.8}
        weights.plot(x, found.weight[inside].tolist(), label=text, **style)
        factors.plot(x, (-found.slope * found.prob)[inside].tolist(), **style)
    for gamma, colour in zip((2.0, 3.591121, 6.0), (COLOURS[3], GUIDE, OVER), strict=True):
        found = against_probability(made(f"inverse-focal:gamma={gamma}:allow_reversal=true"))
        turning.plot(found.prob.tolist(), found.slope.tolist(), color=colour, lw=1.8, label=f"γ = {gamma:.3g}")
    turning.axhspan(0, 1, color=OVER, alpha=0.08, lw=0, zorder=0)
    turning.text(0.98, 0.9, "pushes the label down", ha="right", va="top", fontsize="small", color=OVER)
    turning.axhline(0, color=GUIDE, lw=0.8, zorder=0)
    for ax in (weights, factors, turning):
        ax.set(xlim=(0, 1), xlabel="probability of the label")
        ax.set_xticks(TICKS)
    weights.set(ylim=(0, 4.2), ylabel="times cross-entropy, mean 1")
    factors.set(ylim=(0, 4.2))
    turning.set(ylim=(-3, 1))
    turning.legend(loc="lower center", fontsize="small", frameon=False)
    title(weights, "weight of the loss")
    title(factors, "weight of the gradient")
    title(turning, "slope of inverse focal")
    legend_above(figure, weights)
    return figure


def batch() -> Figure:
    """Calibration error of the batch: the push on each sample's prediction."""
    figure = new_figure(8.6, 5.2)
    axes = figure.subplots(2, 3, sharex=True)
    logits, labels = overconfident_batch(K)
    confidence, right = logits.softmax(1)[:, 0], labels == 0
    first = axes[0, 0]
    first.plot([0, 1], [0, 1], color=GUIDE, lw=1, ls="--")
    order = confidence.argsort()
    for part in order.chunk(8):
        first.plot(
            float(confidence[part].mean()), float(right[part].double().mean()), "o", ms=5, color=INK, clip_on=False
        )
    first.set(xlim=(0, 1), ylim=(0, 1), ylabel="how often right")
    first.set_xticks(TICKS)
    first.set_yticks(TICKS)
    title(first, "the batch, in eighths")
    names = ("mmce", "mdca", "kde-xe", "soft-ece", "soft-avuc")
    for name, ax in zip(names, axes.flat[1:], strict=True):
        pushed = -gradients(made(name), logits, labels).slope[:, 0]
        for rows, colour, label in ((right, UNDER, "right"), (~right, OVER, "wrong")):
            ax.plot(confidence[rows].tolist(), pushed[rows].tolist(), "o", ms=4.5, mew=0, color=colour, label=label)
        ax.axhline(0, color=GUIDE, lw=0.8, zorder=0)
        reach = 1.15 * float(pushed.abs().amax())
        ax.set_ylim(-reach, reach)
        title(ax, name)
    axes[0, 1].legend(loc="lower left", fontsize="small", frameon=False, handletextpad=0.2)
    for ax in (axes[0, 1], axes[1, 0]):
        ax.set_ylabel("added push")
    for ax in axes[1]:
        ax.set_xlabel("confidence")
    return figure


def selective() -> Figure:
    """Selective risk: weights and gradients over the probability, the smoothed ranks, and CRL's order."""
    figure = new_figure(8.6, 6.4)
    (weights, slopes), (ranks, order) = figure.subplots(2, 2)
    entries = {
        "cross-entropy": "cross-entropy",
        "aurc": "aurc",
        "au, paper, coverage 0.9": "au:variant=paper",
        "au, paper, coverage 0.5": "au:variant=paper:low_conf_coverage=0.5",
        "au, the same, detached": "au:variant=paper:low_conf_coverage=0.5:detach_weights=true",
    }
    for (label, text), colour in zip(entries.items(), (INK, *COLOURS), strict=False):
        name, settings = parse_entry(text)
        found = against_probability(make_loss(name, **settings))
        style = {"color": colour, "lw": 1.8, "ls": "--" if "detached" in label else "-"}
        weights.plot(found.prob.tolist(), found.weight.tolist(), label=label, **style)
        slopes.plot(found.prob.tolist(), found.slope.tolist(), **style)
    weights.set(xlim=(0, 1), ylim=(0, 3), xlabel="probability of the label", ylabel="times cross-entropy, mean 1")
    weights.legend(loc="upper left", fontsize="small", frameon=False)
    title(weights, "weight: grows with confidence")
    slopes.axhline(0, color=GUIDE, lw=0.8, zorder=0)
    slopes.axhspan(0, 2, color=OVER, alpha=0.08, lw=0, zorder=0)
    slopes.text(0.98, 1.86, "pushes the label down", ha="right", va="top", fontsize="small", color=OVER)
    slopes.set(xlim=(0, 1), ylim=(-4, 2), xlabel="probability of the label", ylabel="slope of the weighted loss")
    title(slopes, "slope: the weights of au can reverse it")
    smooth = smoothed_distribution()
    ranks.plot(smooth.at.tolist(), smooth.exact.tolist(), color=PLAIN, lw=4, label="exact")
    for (width, share), colour in zip(smooth.smooth.items(), COLOURS, strict=False):
        ranks.plot(smooth.at.tolist(), share.tolist(), color=colour, lw=1.6, label=f"cdf_bandwidth {width:g}")
    ranks.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share of samples up to there")
    ranks.legend(loc="upper left", fontsize="small", frameon=False)
    title(ranks, "au: the ranks, smoothed")
    draw_ranking(order)
    for ax in (weights, slopes, ranks):
        ax.set_xticks(TICKS)
    return figure


def draw_ranking(ax: Axes) -> None:
    """The push of CRL on samples by how often they were right in ten epochs, each beside one that was right in five."""
    times = torch.arange(11)
    loss = make_loss("crl", n_samples=12)
    pairs = torch.zeros(2 * len(times), K, dtype=torch.float64)
    pairs[:, 0] = 4.0
    record = loss.get_submodule("record")
    record.get_buffer("times_right").copy_(torch.cat([times, torch.tensor([5])]))
    record.get_buffer("epochs").fill_(10)
    indices = torch.stack([times, torch.full_like(times, 11)], dim=1).flatten()
    labels = torch.zeros(len(pairs), dtype=torch.int64)
    for lead, colour in zip((1.0, 2.5, 4.0), COLOURS, strict=False):
        pairs[:, 0] = 2.5
        pairs[::2, 0] = lead
        pushed = -gradients(loss, pairs, labels, indices).slope[::2, 0]
        confidence = float(pairs.softmax(1)[0, 0])
        ax.plot(
            times.tolist(), pushed.tolist(), "o-", ms=4.5, lw=1.2, color=colour, label=f"confidence {confidence:.2f}"
        )
    ax.axhline(0, color=GUIDE, lw=0.8, zorder=0)
    ax.set(xlabel="epochs in which it was right, out of ten", ylabel="added push on the prediction")
    ax.legend(loc="upper left", fontsize="small", frameon=False)
    title(ax, "crl: up if right more often than its neighbours")


def mixup() -> Figure:
    """Mixed images, and what mixed labels ask for."""
    figure = new_figure(8.6, 4.8)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.7))
    images, labels = torch.stack([disc(), stripes()]), torch.tensor([0, 1])
    mixed, cut, twice = (by_a_third(mix, images, labels) for mix in (Mixup(), CutMix(), MIT()))
    assert isinstance(twice, TwiceMixed) and isinstance(mixed, Mixed) and isinstance(cut, Mixed)
    panels = {
        "the image": images[0],
        "its partner": images[1],
        f"Mixup, λ = {mixed.share:.2f}": mixed.images[0],
        f"CutMix, λ = {cut.share:.2f}": cut.images[0],
        **{f"MIT, λ = {share:.2f}": part[0] for share, part in zip(twice.shares, twice.images, strict=True)},
    }
    for ax, (name, image) in zip(above.subplots(1, len(panels)), panels.items(), strict=True):
        ax.imshow(image.permute(1, 2, 0).numpy())
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title(name, fontsize="small", loc="left")
    left, right = below.subplots(1, 2)
    lead = torch.linspace(-8, 8, 401, dtype=torch.float64)
    logits = torch.stack([lead, torch.zeros_like(lead)], dim=1)
    for share, colour in zip((1.0, 0.9, 0.7, 0.5), (INK, *COLOURS), strict=False):
        twice_labels = [torch.full((len(lead),), label) for label in (0, 1)]
        own, others = (push(made("cross-entropy"), logits, truth)[:, 0] for truth in twice_labels)
        left.plot(
            lead.tolist(), (share * own + (1 - share) * others).tolist(), color=colour, lw=1.8, label=f"λ = {share:g}"
        )
    left.axhline(0, color=GUIDE, lw=0.8, zorder=0)
    left.set(xlim=(-8, 8), xlabel="how far the image's own label is ahead", ylabel="push on its logit")
    left.legend(loc="upper right", fontsize="small", frameon=False)
    title(left, "labels mixed by λ: where the push ends")
    draw_told_apart(right)
    return figure


FAMILIES: Mapping[str, Callable[[], Figure]] = {
    f"losses-{draw.__name__}": draw for draw in (proper, smoothing, focal, batch, selective, mixup)
}


# --------------------------------------------------------------------------------------------------------------- parts


def made(text: str, **settings: object) -> Loss:
    """A loss as the command line names it, with a memory of the overconfident batch."""
    name, own = parse_entry(text)
    return probe(name, k=K, **own, **settings)


def push(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """What a step does to the logits. (n, k)"""
    return gradients(loss, logits, labels).targets(labels) - logits.softmax(1)


def legend_above(figure: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=len(labels),
        fontsize="small",
        frameon=False,
        handlelength=1.4,
        columnspacing=1.4,
    )


def by_a_third(mix: Mixup | CutMix | MIT, images: Tensor, labels: Tensor) -> Mixed | TwiceMixed:
    """A batch of two that are mixed with each other and not with themselves, by about a third."""
    for seed in range(1000):
        found = mix(images, labels, generator=torch.Generator().manual_seed(seed))
        shares = (found.share, 1 - found.share) if isinstance(found, Mixed) else found.shares
        if found.partner[0] == 1 and all(abs(max(share, 1 - share) - 0.7) < 0.1 for share in shares):
            return found
    raise RuntimeError("no such draw")


def draw_told_apart(ax: Axes) -> None:
    """A logit over the image's share: two mixtures, and what MIT takes the image and its partner to be."""
    share = torch.linspace(0, 1, 101, dtype=torch.float64)
    networks: dict[str, Callable[[Tensor], Tensor]] = {
        "linear": lambda x: 5 * x - 1,
        "not linear": lambda x: 4.5 * torch.tanh(3 * x - 1.2),
    }
    high, low = 0.8, 0.25
    for (name, network), colour in zip(networks.items(), COLOURS, strict=False):
        first, second = network(torch.tensor([high, low], dtype=torch.float64))
        own, partner = decouple(first, second, high, low)
        ends = [float(partner), float(own)]
        ax.plot(share.tolist(), network(share).tolist(), color=colour, lw=1.8, label=name)
        ax.plot([0, 1], ends, color=colour, lw=1, ls="--")
        ax.plot([low, high], [float(second), float(first)], "o", ms=5, color=colour)
        ax.plot([0, 1], ends, "o", ms=6, mfc="white", color=colour, clip_on=False, zorder=3)
    ax.set(xlim=(0, 1), xlabel="the image's share", ylabel="a logit")
    ax.set_xticks(TICKS)
    ax.legend(loc="lower right", fontsize="small", frameon=False)
    title(ax, "MIT: two mixtures, told apart")


def grown_adafocal() -> Loss:
    """AdaFocal after ten epochs with a validation set that is right with probability c^1.5 at a confidence of c."""
    loss = make_loss("adafocal")
    confidence = torch.linspace(1 / K, 1, 4002, dtype=torch.float64)[1:-1]
    logits = torch.zeros(len(confidence), K, dtype=torch.float64)
    logits[:, 0] = (confidence / (1 - confidence) * (K - 1)).log()
    even = torch.arange(len(confidence)) * 0.618034 % 1
    for _ in range(10):
        loss.update(logits, torch.where(even < confidence**1.5, 0, 1))
    return loss


def disc() -> Tensor:
    """A blue disc on white. (3, SIDE, SIDE)"""
    return coloured(X.square() + Y.square() < 0.5, UNDER)


def stripes() -> Tensor:
    """Red stripes on white. (3, SIDE, SIDE)"""
    return coloured((X + Y) * 4 % 2 < 1, OVER)


def coloured(inside: Tensor, colour: str) -> Tensor:
    ink = torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])[:, None, None]
    return torch.where(inside, ink, 1.0)
