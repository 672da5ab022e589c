"""Pictures of class frequencies that shift, from the example of docs/shift.md."""

from collections.abc import Callable, Mapping
from functools import cache

import torch
from matplotlib.figure import Figure
from torch import Tensor

from family_pictures import INK, title
from temperance.calibrators import Auto
from temperance.data.longtail import long_tailed
from temperance.demo import demo_predictions
from temperance.report.figures import GUIDE, OVER, PLAIN, UNDER, new_figure

GROUPS = 10


def tail() -> Figure:
    """The samples to fit on, and how probable each group is on average where all are equally common."""
    (_, labels), (test, _) = tailed(), grouped(1)
    figure = new_figure(7.4, 3.0)
    samples, means = figure.subplots(1, 2)
    samples.bar(range(GROUPS), torch.bincount(labels).tolist(), color=PLAIN, width=0.8)
    samples.set(xlabel="group", ylabel="samples", xticks=range(GROUPS))
    title(samples, "what it was fitted to")
    means.axhline(100 / GROUPS, color=GUIDE, lw=1, ls="--")
    means.annotate("the truth", (6.5, 100 / GROUPS + 0.4), ha="center", fontsize="small", color=GUIDE)
    for prior, color, label in (("same", OVER, "no prior"), ("uniform", UNDER, "--prior uniform")):
        mean = 100 * method().set_prior(prior).predict_proba(test).mean(0)
        means.plot(range(GROUPS), mean.tolist(), marker="o", ms=5, lw=1.2, color=color, label=label)
    means.set(xlabel="group", ylabel="mean probability in %", xticks=range(GROUPS), ylim=(0, None))
    means.legend(loc="lower left", fontsize="small", frameon=False)
    title(means, "what it predicts")
    return figure


def adapted() -> Figure:
    """Frequencies estimated without labels against the true ones, for three samples drawn with random frequencies."""
    test, labels = grouped(1)
    generator = torch.Generator().manual_seed(0)
    figure = new_figure(3.9, 3.6)
    ax = figure.subplots()
    ax.plot([0, 40], [0, 40], color=GUIDE, lw=1, ls="--", zorder=0)
    for color in (OVER, UNDER, INK):
        rows = drawn(labels, frequencies(generator), generator)
        true = 100 * torch.bincount(labels[rows], minlength=GROUPS) / len(rows)
        found = method().adapt(test[rows])
        spread = [(100 * (found.prior - found.low)).tolist(), (100 * (found.high - found.prior)).tolist()]
        ax.errorbar(true, (100 * found.prior).tolist(), spread, fmt="o", ms=4, elinewidth=1, color=color)
    ax.set(xlabel="true frequency in %", ylabel="estimated without labels, in %", xlim=(0, None), ylim=(0, None))
    title(ax, "three samples, ten groups each")
    return figure


PICTURES: Mapping[str, Callable[[], Figure]] = {"shift-tail": tail, "shift-adapt": adapted}


# --------------------------------------------------------------------------------------------------------------- parts


@cache
def grouped(part: int) -> tuple[Tensor, Tensor]:
    """Logits and labels of ten groups of ten classes, of the val (0) or test (1) part of the demo."""
    found = demo_predictions()[part]
    return found.scores.reshape(found.n, GROUPS, -1).logsumexp(2), found.labels // 10


def tailed() -> tuple[Tensor, Tensor]:
    logits, labels = grouped(0)
    rows = long_tailed(labels, ratio=0.05)
    return logits[rows], labels[rows]


@cache
def method() -> Auto:
    return Auto(prior="same").fit(*tailed())


def frequencies(generator: torch.Generator) -> Tensor:
    """Class frequencies, drawn uniformly from all that sum to 1: a stick broken at random places."""
    cuts = torch.rand(GROUPS - 1, generator=generator).sort().values
    return torch.cat([cuts.new_zeros(1), cuts, cuts.new_ones(1)]).diff()


def drawn(labels: Tensor, wanted: Tensor, generator: torch.Generator) -> Tensor:
    """2,000 rows in which the groups have these frequencies."""
    groups = torch.multinomial(wanted, 2000, replacement=True, generator=generator)
    members = [(labels == j).nonzero().squeeze(1) for j in range(GROUPS)]
    return torch.stack([members[j][torch.randint(len(members[j]), (), generator=generator)] for j in groups.tolist()])
