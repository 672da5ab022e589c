"""The page of an analysis: what the papers show of a network, a classifier or a calibrator in training."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from temperance.metrics.binned import ece
from temperance.metrics.stats import Bins
from temperance.report import charts
from temperance.report.formats import percent
from temperance.report.lines import COLOURS, Line, line_chart, line_legend
from temperance.report.markup import Markup, join, tag
from temperance.report.page import heading, legend, noted, page, pair, section, table
from temperance.report.raster import data_address
from temperance.report.svg import (
    INNER,
    LEFT,
    RIGHT,
    Plot,
    Scale,
    label,
    number_text,
    picture,
    round_ticks,
    ticks_between,
)
from temperance.report.training import head_section, training_section
from temperance.training.analysis import Analysis, Embedding, simplex_angle
from temperance.training.traces import Trace, pearson

NEAR, FAR = (240, 244, 250), (24, 62, 112)  # colours of an angle at the mean and of the one furthest from it
SHOWN_CLASSES = 10  # whose losses have a line and a name


def analysis_page(found: Analysis) -> str:
    """The page, with a section for everything that applies."""
    names = [subject.name for subject in found.subjects]
    test = found.subjects[0].test
    about = [f"{test.n:,} test samples", f"{test.k:,} classes"]
    parts = [
        heading("Analysis", " and ".join(names), about),
        confidence_section(found.confidence),
        *histories(found),
        masked_section(found),
        trace_section(found.traces),
        toy_section(found.toy, found.class_names),
        angles_section(found.angles, found.class_names),
        map_section(found.maps, found.class_names),
        notes_section(found.notes),
    ]
    return page(f"{names[0]} – analysis", *parts)


def histories(found: Analysis) -> list[Markup]:
    """Of a training, or of a head; the log says which it is."""
    trained = [subject for subject in found.subjects if subject.history]
    sections = []
    for subject in trained:
        name = (subject.name,) if len(trained) > 1 else ()
        drawn = training_section if "lr" in subject.history[0] else head_section
        sections.append(drawn(subject.history, *name))
    return sections


def notes_section(notes: Sequence[str]) -> Markup:
    return tag("footer", *(tag("p", note, class_="aside") for note in notes)) if notes else Markup()


# ---------------------------------------------------------------------------------------------------------- confidence


def confidence_section(sets: dict[str, Bins]) -> Markup:
    """How sure each subject is, on one scale."""
    highest = max(float((bins.count / bins.n).max()) for bins in sets.values())
    figures = []
    for name, bins in sets.items():
        caption = [tag("b", name), f" ECE\u00a0{percent(ece.value(bins))}"]
        figures.append((join(caption), charts.histogram(bins, highest)))
    return section(
        "How sure is it?",
        tag("p", "The share of predictions at each confidence. In a calibrated model the two upright lines meet."),
        pair(*figures),
    )


# -------------------------------------------------------------------------------------------------- a post-hoc training


def trace_section(traces: Sequence[Trace]) -> Markup:
    """Total loss, spread of the class losses and calibration error with each objective (SCTL Figures 1 and 4)."""
    if not traces:
        return Markup()
    columns = {"total": "Total loss (NLL)", "spread": "Spread of the class losses", "ece": "Calibration error"}
    figures = []
    for column, title in columns.items():
        lines = [
            Line(trace.objective, list(zip(trace.steps.tolist(), getattr(trace, column).tolist(), strict=True)), i)
            for i, trace in enumerate(traces)
        ]
        drawn = line_chart(lines, y_title=title, x_title="step", percent=column == "ece")
        figures.append((tag("b", title), drawn))
    rows = [
        (trace.objective, *(_signed_r(trace.correlation(column)) for column in ("total", "spread"))) for trace in traces
    ]
    together = [torch.cat([getattr(trace, column) for trace in traces]) for column in ("total", "spread", "ece")]
    rows.append(
        ("all together", _signed_r(pearson(together[0], together[2])), _signed_r(pearson(together[1], together[2])))
    )
    return section(
        "What happens while a calibrator is trained?",
        tag(
            "p",
            f"A {traces[0].layer} layer on the logits, trained on held-out predictions with each objective and "
            "measured on the test part; losses are NLL whatever it is trained with. Objectives that soften the labels "
            "can lead past the point where the calibration error is least; class-scaled loss evens out the losses of "
            "the classes.",
        ),
        line_legend([Line(trace.objective, [], i) for i, trace in enumerate(traces)]),
        pair(
            *figures,
            (tag("b", "Error against total loss"), scatter(traces, "total")),
            (tag("b", "Error against spread"), scatter(traces, "spread")),
            (
                noted(tag("b", "How closely does the error follow them?"), "Pearson's r over the steps"),
                table(("Objective", "Total loss", "Spread"), rows),
            ),
        ),
    )


def _signed_r(r: float) -> str:
    return "–" if math.isnan(r) else f"{r:.3f}".replace("-", "−")


def scatter(traces: Sequence[Trace], column: str) -> Markup:
    """Calibration error against the total loss or the spread, a point for every step."""
    xs = torch.cat([getattr(trace, column) for trace in traces])
    ys = torch.cat([trace.ece for trace in traces])
    x = _roomy(float(xs.min()), float(xs.max()), LEFT, RIGHT)
    y = Scale(0, 1.05 * float(ys.max()) or 1.0, 220, 8)
    plot = Plot(x, y)
    across, ticks = ticks_between(x.low, x.high, 5), round_ticks(y.high, 4)
    dots = [
        plot.dot(a, b, f"point series-{i % COLOURS}")
        for i, trace in enumerate(traces)
        for a, b in zip(getattr(trace, column).tolist(), trace.ece.tolist(), strict=True)
    ]
    title = "total loss" if column == "total" else "spread of the class losses"
    return picture(
        262,
        f"Calibration error against {title}, a point for every step.",
        plot.y_axis(ticks, [f"{100 * tick:.3g}\u00a0%" for tick in ticks]),
        tag("g", *dots, class_="cloud"),
        plot.x_axis(across, title, [number_text(tick) for tick in across]),
    )


def _roomy(low: float, high: float, start: float, end: float) -> Scale:
    room = 0.04 * (high - low) or 0.5
    return Scale(low - room, high + room, start, end)


def toy_section(toy: Trace | None, names: Sequence[str]) -> Markup:
    """A training on the worst classes only: the same total loss with another calibration error (SCTL Figure 3)."""
    if toy is None:
        return Markup()
    a, b = toy.equal_totals()
    trained = [names[j] for j in toy.trained]
    steps = toy.steps.tolist()
    figures = []
    for column, title in (
        ("total", "Total loss (NLL)"),
        ("spread", "Spread of the class losses"),
        ("ece", "Calibration error"),
    ):
        line = Line(title, list(zip(steps, getattr(toy, column).tolist(), strict=True)), 0)
        drawn = line_chart([line], y_title=title, x_title="step", percent=column == "ece", at=marked(toy, a, b))
        figures.append((tag("b", title), drawn))
    figures.insert(1, (tag("b", "Loss of each class"), class_losses(toy, names, marked(toy, a, b))))
    shares = [_share(toy, row) for row in (a, b)]
    rows = [
        (
            name,
            str(steps[row]),
            f"{float(toy.total[row]):.4f}",
            f"{float(toy.spread[row]):.4f}",
            percent(float(toy.ece[row])),
            percent(share, 1),
        )
        for name, row, share in (("A", a, shares[0]), ("B", b, shares[1]))
    ]
    return section(
        "The same loss, another calibration error",
        tag(
            "p",
            f"The same layer, trained only on the classes with the highest losses ({', '.join(trained)}), and measured "
            "on all classes of the same data. At A and B the total loss is the same; how it is shared out among the "
            "classes differs, and so does the calibration error.",
        ),
        legend(
            [
                ("line series series-1", "classes trained on"),
                ("line series thin series-0", "the others"),
                ("line", "A and B"),
            ]
        ),
        pair(*figures),
        table(("", "Step", "Total loss", "Spread", "ECE", "In classes trained on"), rows),
    )


def marked(trace: Trace, a: int, b: int) -> list[tuple[float, str]]:
    """Where A and B stand."""
    return [(float(trace.steps[row]), name) for row, name in ((a, "A"), (b, "B"))]


def _share(trace: Trace, row: int) -> float:
    mine = [trace.classes.index(j) for j in trace.trained if j in trace.classes]
    return float(trace.class_losses[row, mine].sum() / trace.class_losses[row].sum())


def class_losses(trace: Trace, names: Sequence[str], at: Sequence[tuple[float, str]]) -> Markup:
    """The loss of every class at every step; those trained on stand out."""
    lines = []
    for column, j in enumerate(trace.classes):
        values = list(zip(trace.steps.tolist(), trace.class_losses[:, column].tolist(), strict=True))
        mine = j in trace.trained
        lines.append(Line(names[j], values, 1 if mine else 0, "" if mine else "thin"))
    lines.sort(key=lambda line: line.kind, reverse=True)
    return line_chart(lines, y_title="loss of each class", x_title="step", at=at)


# ----------------------------------------------------------------------------------------------------- class prototypes


def angles_section(sets: dict[str, Tensor], names: Sequence[str]) -> Markup:
    """The angles between class prototypes, as a matrix and as a histogram (MaC-Cal Figure 2)."""
    if not sets:
        return Markup()
    figures = []
    for title, angles in sets.items():
        figures.append((noted(tag("b", title), told_of(angles)), angle_matrix(angles)))
        figures.append((noted(tag("b", "The same angles"), "every two classes once"), angle_histogram(angles)))
    k = len(names)
    return section(
        "How far apart are the classes?",
        tag(
            "p",
            "The angle between each two class prototypes, what they have in common taken off. The darker a cell, the "
            f"further its angle is from the mean. {k:,} directions can at best all be {simplex_angle(k):.1f}° apart.",
        ),
        legend([("bar", "pairs of classes"), ("guide", "as far apart as can be")]),
        pair(*figures),
    )


def told_of(angles: Tensor) -> str:
    found = between_classes(angles)
    return f"mean {float(found.mean()):.1f}°, from {float(found.min()):.1f}° to {float(found.max()):.1f}°"


def between_classes(angles: Tensor) -> Tensor:
    """The angles of every two different classes, once each."""
    k = len(angles)
    above = torch.triu_indices(k, k, 1)
    return angles[above[0], above[1]]


def angle_matrix(angles: Tensor) -> Markup:
    """A cell for every two classes, darker the further its angle is from the mean."""
    pairs = between_classes(angles)
    off = (angles - pairs.mean()).abs()
    off.fill_diagonal_(0)
    share = (off / off.max().clamp_min(1e-9))[..., None]
    colours = torch.tensor(NEAR) + share * (torch.tensor(FAR) - torch.tensor(NEAR)).double()
    address = data_address(colours.round().to(torch.uint8))
    k = len(angles)
    plot = Plot(Scale(0, k, LEFT, RIGHT), Scale(0, k, 8 + INNER, 8))
    ticks = [tick for tick in ticks_between(0, k - 1, 5) if tick == round(tick)]
    down = [label(LEFT - 6, 8 + (tick + 0.5) * INNER / k + 4, number_text(tick), anchor="end") for tick in ticks]
    across = [label(plot.x(tick + 0.5), 8 + INNER + 16, number_text(tick), anchor="middle") for tick in ticks]
    image = tag("image", href=address, x=LEFT, y=8, width=INNER, height=INNER, class_="cells")
    return picture(
        8 + INNER + 42,
        f"Angles between {k} class prototypes: {told_of(angles)}.",
        image,
        *down,
        *across,
        label((LEFT + RIGHT) / 2, 8 + INNER + 34, "class", anchor="middle"),
    )


def angle_histogram(angles: Tensor) -> Markup:
    """How many pairs of classes meet at which angle."""
    pairs = between_classes(angles)
    n_bins = min(40, 2 * math.ceil(math.sqrt(len(pairs))))
    best = simplex_angle(len(angles))
    low, high = min(float(pairs.min()), best), max(float(pairs.max()), best)
    x = _roomy(low, high, LEFT, RIGHT)
    edges = torch.linspace(x.low, x.high, n_bins + 1, dtype=torch.float64)
    count = torch.bucketize(pairs, edges[1:-1]).bincount(minlength=n_bins)
    plot = Plot(x, Scale(0, int(count.max()), 8 + INNER, 8))
    ticks, across = round_ticks(int(count.max()), 4), ticks_between(x.low, x.high, 5)
    bars = [
        plot.box(left, right, 0, n, "bar")
        for left, right, n in zip(edges[:-1].tolist(), edges[1:].tolist(), count.tolist(), strict=True)
        if n
    ]
    return picture(
        8 + INNER + 42,
        f"Histogram of the angles between class prototypes: {told_of(angles)}.",
        plot.y_axis(ticks, [number_text(tick) for tick in ticks]),
        join(bars),
        plot.line([(best, 0), (best, plot.y.high)], "guide"),
        plot.x_axis(across, "angle", [f"{number_text(tick)}°" for tick in across]),
    )


# ---------------------------------------------------------------------------------------------------- masked inference


def masked_section(found: Analysis) -> Markup:
    """Accuracy and confidence with weights of the classifier masked at random (MaC-Cal Figure 1)."""
    figures = []
    for subject in found.subjects:
        if subject.masked:
            lines = [
                Line(name, [(100 * each.ratio, getattr(each, column)) for each in subject.masked], i)
                for i, (column, name) in enumerate((("accuracy", "accuracy"), ("confidence", "mean confidence")))
            ]
            drawn = line_chart(
                lines, y_title="Accuracy and confidence", x_title="weights masked, %", percent=True, dots=True
            )
            figures.append((join([tag("b", subject.name), line_legend(lines)]), drawn))
    if not figures:
        return Markup()
    return section(
        "What if weights of the classifier are masked?",
        tag(
            "p",
            "The network's own classifier, a share of its weights masked at random in every batch and nothing trained. "
            "Where confidence falls below accuracy, masking alone has made it modest; what that costs in accuracy, "
            "training with masks gets back.",
        ),
        pair(*figures),
    )


# ------------------------------------------------------------------------------------------------------- maps of logits


def map_section(maps: dict[str, Embedding], names: Sequence[str]) -> Markup:
    """The logits as points, coloured by class and stronger the less sure (MaC-Cal Figure 2)."""
    if not maps:
        return Markup()
    figures = [(tag("b", name), point_map(found, len(names))) for name, found in maps.items()]
    few = len(names) <= SHOWN_CLASSES
    keys = [
        tag("li", tag("i", class_="key", style=f"background:{hue(j, len(names))}"), name)
        for j, name in enumerate(names)
    ]
    return section(
        "Where do the logits lie?",
        tag(
            "p",
            "A map of the logits by t-SNE: samples with similar logits are near each other. The colour is the label; "
            "the stronger it is, the less sure the prediction (entropy). A model that is never unsure is pale "
            "everywhere.",
        ),
        tag("ul", *keys, class_="legend") if few else Markup(),
        pair(*figures),
    )


def point_map(found: Embedding, k: int) -> Markup:
    """A dot for every sample; the unsure ones above the others."""
    low, high = found.points.amin(0), found.points.amax(0)
    x, y = (_roomy(float(low[i]), float(high[i]), *ends) for i, ends in enumerate(((8.0, 412.0), (412.0, 8.0))))
    dots = []
    for i in found.entropy.argsort().tolist():
        strength = 0.12 + 0.88 * float(found.entropy[i]) ** 0.5
        dots.append(
            tag(
                "circle",
                cx=x(float(found.points[i, 0])),
                cy=y(float(found.points[i, 1])),
                r=2.8,
                fill=hue(int(found.labels[i]), k),
                opacity=strength,
            )
        )
    mean = float(found.entropy.mean())
    return picture(
        420,
        f"A map of {len(found.points)} samples by their logits; mean entropy {percent(mean)} of its maximum.",
        *dots,
    )


def hue(j: int, k: int) -> str:
    """A colour for each class, as different as can be; it reads well on light and on dark."""
    # Two rings, so that neighbours on the circle of hues also differ in lightness.
    lightness = 0.45 if j % 2 else 0.56
    red, green, blue = colorsys.hls_to_rgb(j / k, lightness, 0.72)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
