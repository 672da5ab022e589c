"""A picture for each family of calibrators: what it does to the predictions that ship.

The left half is the same for all: how sure the network was of its prediction, and how sure it is of the same prediction
afterwards. The dots are how often it was right; a line through them is what calibration is after.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from temperance.calibrators import CALIBRATORS, Calibrator, make_calibrator
from temperance.demo import demo_predictions
from temperance.metrics import ece, nll
from temperance.registry import parse_entry
from temperance.report.figures import GUIDE, OVER, PLAIN, UNDER, new_figure
from temperance.report.numbers import Bar, bars

COLOURS = (UNDER, OVER, "#3f9161", "#8355a8", "#d08a1d")
INK = "#2b2f36"
TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
N_BINS = 15
FEWEST = 20  # samples of a bin that is drawn


# ------------------------------------------------------------------------------------------------------------ pictures


def baseline() -> Figure:
    """What is to be corrected: the network is more confident than it is right."""
    figure, left, right = halves()
    draw_map(left, [])
    gaps = [bar for bar in shares() if bar.count >= FEWEST]
    at = [bar.confidence for bar in gaps]
    left.ax.vlines(at, [bar.accuracy for bar in gaps], at, OVER, lw=2.5, zorder=0, label="too sure by")
    left.ax.legend(loc="upper left", fontsize="small", frameon=False)
    left.ax.set_ylabel("how often right")
    title(left.ax, "the network is surer than it is right")
    probs, predicted = network()
    confidence, wrong = probs.amax(1), predicted != truth()
    edges = torch.linspace(0, 1, N_BINS + 1).tolist()
    for rows, colour, label in ((~wrong, UNDER, "right"), (wrong, OVER, "wrong")):
        right.hist(confidence[rows].tolist(), edges, histtype="step", lw=1.8, color=colour, label=label)
    right.set(yscale="log", xlim=(0, 1), xlabel="how sure the network is", ylabel="test samples in each bin")
    sure = float((confidence[wrong] > 0.9).double().mean())
    title(right, f"{100 * sure:.0f} % of its mistakes are made more than 90 % sure")
    right.legend(loc="upper left", fontsize="small", frameon=False)
    return figure


def temperature() -> Figure:
    """One temperature, one for each sample, one for each class."""
    figure, left, right = halves()
    draw_map(left, ["temperature", "ensemble-temperature", "parameterised-temperature"])
    val, _ = demo_predictions()
    hits = (val.scores.double().argmax(1) == val.labels).double()
    recall = (torch.bincount(val.labels, hits) / torch.bincount(val.labels)).tolist()
    for colour, name in zip(COLOURS[3:], ("class-temperature", "class-temperature-greedy"), strict=True):
        found = fitted(name).get_buffer("temperatures").tolist()
        right.plot(recall, found, "o", ms=4.5, alpha=0.8, mew=0, color=colour, label=name)
    shared = float(fitted("temperature").get_buffer("temperature"))
    right.axhline(shared, color=COLOURS[0], lw=1.8, label="temperature")
    right.set(xlabel="accuracy on samples of the class", ylabel="temperature")
    title(right, "the temperature of each of the 100 classes")
    with_room(right)
    return figure


def linear() -> Figure:
    """Evidence moves between classes that are taken for each other."""
    figure, left, right = halves()
    draw_map(left, ["vector", "structured-vector", "structured-matrix", "matrix"])
    weight = fitted("matrix-odir").get_buffer("weight")
    others = weight.clone().fill_diagonal_(0)
    shown = most_related(others, 14)
    part = others[shown][:, shown].fill_diagonal_(torch.nan)
    names = demo_predictions()[0].class_names or ()
    labels = [names[j].replace("_", " ") for j in shown]
    limit = float(others.abs().amax())
    image = right.imshow(part.tolist(), cmap="RdBu", vmin=-limit, vmax=limit)
    right.set_facecolor("#e3e6ea")
    right.set_xticks(range(len(shown)), labels, rotation=90, fontsize="small")
    right.set_yticks(range(len(shown)), labels, fontsize="small")
    right.tick_params(length=0)
    title(right, "matrix-odir: what a column adds to a row")
    bar = figure.colorbar(image, ax=right, shrink=0.7, pad=0.03, ticks=[-0.04, -0.02, 0, 0.02, 0.04])
    bar.ax.tick_params(labelsize="small")
    return figure


def binary() -> Figure:
    """Maps of the confidence: curves of few parameters, isotonic ones, and bins."""
    kinds = {
        "curves": ("platt", "beta", "spline"),
        "isotonic": ("isotonic", "centred-isotonic", "venn-abers"),
        "bins": ("histogram", "scaling-binning", "bbq"),
    }
    figure = new_figure(8.6, 3.4)
    axes = figure.subplots(1, 3, sharey=True)
    confidence = torch.linspace(0.02, 0.9999, 2000, dtype=torch.float64)
    logits = torch.cat([confidence[:, None], ((1 - confidence) / 99)[:, None].expand(-1, 99)], 1).log()
    for ax, (kind, names) in zip(axes, kinds.items(), strict=True):
        dots(ax)
        for name, colour in zip(names, COLOURS, strict=False):
            probs = fitted(f"{name}:reduction=top-label").predict_proba(logits)
            ax.plot(confidence.tolist(), probs[:, 0].tolist(), color=colour, lw=1.6, label=name)
        unit(ax)
        ax.set_aspect("equal")
        title(ax, kind)
        ax.legend(loc="upper left", fontsize="small", frameon=False, borderaxespad=0.3, handlelength=1.4)
    axes[0].set_ylabel("how sure afterwards")
    axes[1].set_xlabel("how sure the network was")
    return figure


def ordered() -> Figure:
    """Each gap between sorted logits gets a factor of its own."""
    figure, left, right = halves()
    names = [method.name for method in CALIBRATORS if method.family == "ordered"]
    draw_map(left, names)
    logits = demo_predictions()[1].scores.double()
    ranks = range(1, 9)
    order = logits.argsort(1, descending=True)[:, : len(ranks) + 1]
    before = -logits.gather(1, order).diff(dim=1)
    for name, colour in zip(names, COLOURS, strict=False):
        after = -fitted(name)(logits).gather(1, order).diff(dim=1)
        factors = torch.where(before > 1e-3, after / before, torch.nan)
        low, middle, high = factors.nanquantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), dim=0).tolist()
        right.plot(ranks, middle, "o-", ms=4.5, lw=1.8, color=colour, label=name)
        right.fill_between(ranks, low, high, color=colour, alpha=0.15, lw=0)
    inverse = 1 / float(fitted("temperature").get_buffer("temperature"))
    right.axhline(inverse, color=INK, lw=1.2, ls="--", label="temperature")
    right.set(xlabel="gap between the logits of rank r and r + 1", ylabel="factor: median, and eight of ten samples")
    right.set_xticks(ranks)
    title(right, "how much each gap is stretched")
    with_room(right)
    return figure


def selective() -> Figure:
    """Rows whose entropy is above a threshold become uniform."""
    figure, left, right = halves()
    draw_map(left, ["meta-mis", "meta-acc"])
    probs, predicted = network()
    entropy, wrong = torch.special.entr(probs).sum(1), predicted != truth()
    edges = torch.linspace(0, float(entropy.amax()), 25).tolist()
    for rows, colour, label in ((~wrong, INK, "right"), (wrong, GUIDE, "wrong")):
        right.hist(entropy[rows].tolist(), edges, histtype="step", lw=1.6, color=colour, label=label)
    for name, colour in zip(("meta-mis", "meta-acc"), COLOURS, strict=False):
        threshold = float(fitted(name).get_buffer("threshold"))
        right.axvline(threshold, color=colour, lw=1.8, label=f"threshold of {name}")
    right.set(yscale="log", xlabel="entropy of the network's softmax", ylabel="test samples in each bin")
    right.set_xlim(0, None)
    title(right, "to the right of its threshold a row becomes uniform")
    right.legend(loc="upper right", fontsize="small", frameon=False)
    return figure


def combination() -> Figure:
    """What auto gains over its parts."""
    figure, left, right = halves()
    draw_map(left, ["auto", "temperature"])
    _, test = demo_predictions()
    measured = {}
    for name in ("identity", "temperature", "structured-matrix", "order-preserving", "kernel-logistic", "auto"):
        probs = fitted(name).predict_proba(test.scores)
        measured[name] = 100 * ece(probs, test.labels), nll(probs, test.labels)
    low, high = (bound(value for _, value in measured.values()) for bound in (min, max))
    height = 0.0
    for name, (x, y) in sorted(measured.items(), key=lambda entry: entry[1][1]):
        right.plot(x, y, "o", ms=8, color=UNDER if name == "auto" else GUIDE)
        height = max(y, height + 0.05 * (high - low))  # names of neighbours do not overlap
        side = -1 if x > 6 else 1
        right.annotate(
            name,
            (x, y),
            (x + (0.6 if name == "structured-matrix" else 0.25) * side, height),  # the next dot is near that one
            ha="left" if side > 0 else "right",
            va="center",
            weight="bold" if name == "auto" else "normal",
        )
    right.set(xlabel="ECE, %", ylabel="NLL", xlim=(0, None))
    right.margins(y=0.1)
    title(right, "on the test samples: lower left is better")
    return figure


FAMILIES: Mapping[str, Callable[[], Figure]] = {
    draw.__name__: draw for draw in (baseline, temperature, linear, binary, ordered, selective, combination)
}


# ---------------------------------------------------------------------------------------------------------------- data


@cache
def fitted(text: str) -> Calibrator:
    """A method, by name with settings, fitted to the validation part."""
    name, settings = parse_entry(text)
    val, _ = demo_predictions()
    return make_calibrator(name, **settings).fit(val.scores, val.labels)


@cache
def network() -> tuple[Tensor, Tensor]:
    """The network's own probabilities of the test samples, and its predictions."""
    _, test = demo_predictions()
    probs = test.scores.double().softmax(1)
    return probs, probs.argmax(1)


def truth() -> Tensor:
    return demo_predictions()[1].labels


def shares() -> list[Bar]:
    """The bins of the network's confidence: how often it is right in each."""
    return bars(ece.stats(network()[0], truth(), n_bins=N_BINS))


def most_related(others: Tensor, most: int) -> list[int]:
    """The classes between which a matrix moves most, those that belong together side by side."""
    size = others.abs()
    chosen: list[int] = []
    for place in size.flatten().argsort(descending=True).tolist():
        for j in divmod(place, len(others)):
            if j not in chosen and len(chosen) < most:
                chosen.append(j)
    near = size[chosen][:, chosen]
    apart = (2 * near.amax() - (near + near.T)).fill_diagonal_(0)
    order = leaves_list(linkage(squareform(apart.numpy()), "average", optimal_ordering=True))
    return [chosen[i] for i in order.tolist()]


# --------------------------------------------------------------------------------------------------------------- parts


class Map(NamedTuple):
    """Where the map from before to after is drawn, and below it the number of samples."""

    ax: Axes
    strip: Axes


def halves() -> tuple[Figure, Map, Axes]:
    """A figure with room for the map on the left, and for what is particular to the family on the right."""
    figure = new_figure(8.6, 4.4)
    grid = figure.add_gridspec(2, 2, height_ratios=(6, 1))
    return figure, Map(figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])), figure.add_subplot(grid[:, 1])


def draw_map(where: Map, names: Sequence[str]) -> None:
    """How sure the network was of its prediction, and how sure each method is of it, on average over a bin."""
    ax, strip = where
    probs, predicted = network()
    index = (probs.amax(1) * N_BINS).ceil().long() - 1
    count = torch.bincount(index, minlength=N_BINS)
    drawn = count >= FEWEST
    sure = (torch.bincount(index, probs.amax(1), N_BINS) / count)[drawn].tolist()
    dots(ax)
    for name, colour in zip(names, COLOURS, strict=False):
        after = fitted(name).predict_proba(demo_predictions()[1].scores).gather(1, predicted[:, None]).squeeze(1)
        mean = (torch.bincount(index, after, N_BINS) / count)[drawn].tolist()
        ax.plot(sure, mean, color=colour, lw=1.8, label=name)
    unit(ax)
    title(ax, "the network's prediction, before and after")
    ax.set_ylabel("how sure afterwards")
    ax.legend(loc="upper left", fontsize="small", frameon=False, borderaxespad=0.3, handlelength=1.4)
    ax.tick_params(labelbottom=False)
    strip.bar((torch.arange(N_BINS) / N_BINS).tolist(), count.tolist(), 0.9 / N_BINS, align="edge", color=PLAIN)
    strip.set(yscale="log", xlim=(0, 1), ylim=(1, None), ylabel="samples", xlabel="how sure the network was")
    strip.set_xticks(TICKS)
    strip.set_yticks([1, 1000], ["1", "1,000"])
    strip.minorticks_off()
    strip.yaxis.label.set_fontsize("small")
    strip.tick_params(axis="y", labelsize="small")


def dots(ax: Axes) -> None:
    """How often the network is right at each confidence, with 95 % intervals."""
    found = [bar for bar in shares() if bar.count >= FEWEST]
    accuracy = [bar.accuracy for bar in found]
    spread = [[bar.accuracy - bar.low for bar in found], [bar.high - bar.accuracy for bar in found]]
    where = [bar.confidence for bar in found]
    ax.plot([0, 1], [0, 1], color=GUIDE, lw=1, ls="--")
    ax.errorbar(where, accuracy, spread, fmt="o", ms=3, elinewidth=1, color=INK, label="how often right", zorder=1)


def unit(ax: Axes) -> None:
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.set_xticks(TICKS)
    ax.set_yticks(TICKS)


def title(ax: Axes, text: str) -> None:
    ax.set_title(text, loc="left", fontsize="medium")


def with_room(ax: Axes) -> None:
    """A legend in the upper part of the axes, in room made for it."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.3 * (high - low))
    ax.legend(loc="upper left", fontsize="small", frameon=False)
