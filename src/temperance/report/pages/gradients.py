"""Pages of what losses do to predictions; the numbers come from `temperance.diagnose.gradient`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor

from temperance.diagnose.gradient import Curve, Distribution, Sweep
from temperance.markup import Markup, join, tag
from temperance.report.page import definitions, heading, noted, page, pair, prose, section
from temperance.report.svg.drawing import (
    FIFTHS,
    LEFT,
    RIGHT,
    Plot,
    Scale,
    label,
    number_text,
    picture,
    ticks_between,
)
from temperance.report.svg.lines import BOTTOM, TOP, Line, drawn_line, line_chart, line_legend, points, series, y_ticks
from temperance.settings import one_of
from temperance.showing import listed

AGAINST = ("logit", "probability")
LOWEST_SLOPE = -6.0  # slopes have no bound at probability 0; what matters is where they are small or change sign
BAR = 7.0  # height of a bar that shows where a condition holds

About = Sequence[tuple[str, str]]  # names of losses, and what each is


def smoothing_page(sweeps: Mapping[str, tuple[Sweep, Sweep]], about: About, *, against: str = "logit") -> str:
    """How losses smooth labels: by how much f the predicted class's label is lowered and another class's is raised.

    sweeps   the name of each loss with its `sweep(loss, "top")` and `sweep(loss, "other")`
    against  what f is drawn over: the class's "logit" or its "probability"
    """
    one_of("against", against, AGAINST)
    places = (
        ("The predicted class", "its label is lowered by f", "its logit, all others 0"),
        ("Another class", "its label is raised by f", "its logit; the predicted class 12, the rest 0"),
    )
    figures = []
    for column, (title, note, x_title) in enumerate(places):
        shown = {name: both[column] for name, both in sweeps.items()}
        x_title = x_title if against == "logit" else "probability of the class"
        figures.append((noted(tag("b", title), note), smoothing_chart(shown, against, title, x_title)))
    return _page(
        "Losses as label smoothing",
        "The gradient of each loss is that of cross-entropy with another label: the predicted class's label is lowered "
        "by f and every other class's label is raised by f, where a condition C holds. Here the prediction is right. "
        "What a batch-level loss does depends on the batch: here, one that is too sure of the same class.",
        "A strong line is f where C holds; the bars below show where that is. A faint line is f where C does not hold. "
        "A loss that is much stronger than the others may leave the frame.",
        list(sweeps),
        figures,
        about,
    )


def smoothing_chart(sweeps: Mapping[str, Sweep], against: str, title: str, x_title: str) -> Markup:
    """f of each loss, and below it a bar for each where its condition holds."""
    low, high = limits([found.f[found.C] for found in sweeps.values()])
    xs = {name: (found.logit if against == "logit" else found.prob).tolist() for name, found in sweeps.items()}
    x = Scale(min(map(min, xs.values())), max(map(max, xs.values())), LEFT, RIGHT)
    plot = Plot(x, Scale(low, high, BOTTOM, TOP))
    foot = BOTTOM + 14 + BAR * len(sweeps)
    rows = Plot(x, Scale(len(sweeps), 0, foot, BOTTOM + 14))
    lines, bars = [], []
    for i, (name, found) in enumerate(sweeps.items()):
        columns = list(zip(xs[name], found.f.tolist(), found.C.tolist(), strict=True))
        holds = Line(name, [(at, f if c else math.nan) for at, f, c in columns], i)
        known = Line(name, [(at, math.nan if c or f < 0 else f) for at, f, c in columns], i, "faint")
        lines += [drawn_line(plot, known), drawn_line(plot, holds)]
        for left, right in _stretches(xs[name], found.C.tolist()):
            bars.append(rows.box(left, right, i + 0.85, i + 0.15, f"point {series(i)}"))
    ticks, across = y_ticks(plot.y), ticks_between(x.low, x.high, 6)
    return picture(
        foot + 42,
        f"{title}: f of {', '.join(sweeps)} over {x_title}.",
        label(2, (TOP + BOTTOM) / 2, "f", anchor="start"),
        plot.y_axis(ticks, number_text),
        plot.framed(*lines),
        label(LEFT - 6, (BOTTOM + 14 + foot) / 2 + 4, "C", anchor="end"),
        join(bars),
        rows.x_axis(across, x_title, number_text),
    )


def limits(values: Sequence[Tensor]) -> tuple[float, float]:
    """The ends of the y axis: beyond every curve, except one so strong that it would flatten the others."""
    ends = []
    for sign in (-1, 1):
        reach = sorted((float((sign * f).amax()) for f in values if len(f)), reverse=True)
        farthest = max(reach[0], 0.0) if reach else 0.0
        if len(reach) > 1 and farthest > 2.5 * reach[1] > 0:
            farthest = 1.6 * reach[1]
        ends.append(sign * farthest)
    low, high = ends if ends[0] < ends[1] else (0.0, 1.0)
    room = 0.06 * (high - low)
    return low - room, high + room


def _stretches(xs: Sequence[float], holds: Sequence[bool]) -> list[tuple[float, float]]:
    """The first and the last x of each unbroken stretch where a condition holds."""
    found = []
    for here, stretch in groupby(zip(xs, holds, strict=True), key=lambda each: each[1]):
        if here:
            places = [x for x, _ in stretch]
            found.append((places[0], places[-1]))
    return found


def weights_page(curves: Mapping[str, Curve], about: About) -> str:
    """How losses weigh samples by the probability of their label; `curves` come from `against_probability(loss)`."""
    highest = max(float(curve.weight.quantile(0.97)) for curve in curves.values())
    steepest = max(1.0, *(1.2 * float(curve.slope.amax()) for curve in curves.values()))
    rising = [name for name, curve in curves.items() if bool((curve.slope > 0).any())]
    pushes = f"{listed(rising)} {'push' if len(rising) > 1 else 'pushes'} the label's probability down above 0"
    panels = [
        ("weight", "Weight", "scaled to a mean of 1", (0.0, 1.1 * highest)),
        ("loss", "Loss", "cross-entropy with that weight", (0.0, 5.0)),
        ("slope", "Slope", pushes if rising else "of that loss in the probability", (LOWEST_SLOPE, steepest)),
    ]
    figures = [_panel(curves, *panel, x_ticks=FIFTHS) for panel in panels]
    return _page(
        "Losses as weights on cross-entropy",
        "Each loss as a weight on cross-entropy, over the probability of the label. The weights are scaled to a mean "
        "of 1, so that they can be compared.",
        "Where the slope is positive, the loss pushes the label's probability down.",
        list(curves),
        figures,
        about,
    )


def rival_page(curves: Mapping[str, Curve], rival: float, about: About) -> str:
    """Losses where another class has a fixed probability; `curves` come from `beside_rival(loss)`."""
    ticks = [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    figures = []
    for column, title, note in (
        ("weight", "Weight", "the loss as a multiple of cross-entropy"),
        ("loss", "Loss", "cross-entropy with that weight"),
    ):
        highest = max(float(getattr(curve, column).quantile(0.95)) for curve in curves.values())
        ends = 0.0, 1.1 * highest
        figures.append(_panel(curves, column, title, note, ends, x_ticks=ticks, at=[(rival, "the rival")]))
    return _page(
        "Losses on wrong predictions",
        f"Another class, the rival, has the probability {rival:g}: where the label has less, the prediction is wrong.",
        "Focal loss looks at the label alone. Dual focal loss also looks at another class; where it turns from one "
        "class to another, its line has a step.",
        list(curves),
        figures,
        about,
    )


def _panel(
    curves: Mapping[str, Curve], column: str, title: str, note: str, ends: tuple[float, float], **options: Any
) -> tuple[Markup, Markup]:
    """A column of every curve over the probability of the label, with its caption."""
    lines = [
        Line(name, points(curve.prob, getattr(curve, column)), i) for i, (name, curve) in enumerate(curves.items())
    ]
    drawn = line_chart(lines, y_title=title, x_title="probability of the label", limits=ends, **options)
    return noted(tag("b", title), note), drawn


def distribution_page(found: Distribution, about: About) -> str:
    """What the bandwidth of the AU loss does to the distribution of confidences: smoothed beside exact."""
    named = {"exact": found.exact} | {f"bandwidth {width:g}": smooth for width, smooth in found.smooth.items()}
    lines = [Line(name, points(found.at, values), i) for i, (name, values) in enumerate(named.items())]
    drawn = line_chart(
        lines, y_title="share of samples", x_title="confidence", percent=True, limits=(0.0, 1.0), x_ticks=FIFTHS
    )
    return _page(
        "The distribution of confidences, smoothed",
        "The au loss weighs a sample by the share of confidences below its own; `cdf_bandwidth` smooths its steps.",
        "A narrow bandwidth follows the ranks, a wide one flattens the weights.",
        list(named),
        [(noted(tag("b", "Share of samples"), "with at most this confidence"), drawn)],
        about,
    )


def _page(
    title: str, meaning: str, reading: str, names: Sequence[str], figures: list[tuple[Markup, Markup]], about: About
) -> str:
    keys = [Line(name, [], i) for i, name in enumerate(names)]
    return page(
        title,
        heading("What losses do to predictions", title, []),
        tag("section", tag("p", prose(meaning)), tag("p", prose(reading)), line_legend(keys), pair(*figures)),
        section("What is shown", definitions((name, prose(words)) for name, words in about)) if about else Markup(),
    )
