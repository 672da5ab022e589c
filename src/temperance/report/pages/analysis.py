"""The page of an analysis: what the papers show of a network, a classifier or a calibrator in training."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from temperance.diagnose.analysis import Analysis, Embedding, simplex_angle
from temperance.metrics.binned import ece
from temperance.metrics.bins import Bins
from temperance.report.formats import percent
from temperance.report.markup import Markup, join, tag
from temperance.report.page import heading, legend, noted, page, pair, section
from temperance.report.pages.traces import toy_section, trace_section
from temperance.report.pages.training import head_section, training_section
from temperance.report.svg import charts
from temperance.report.svg.drawing import (
    INNER,
    LEFT,
    RIGHT,
    Plot,
    Scale,
    label,
    number_text,
    picture,
    roomy,
    round_ticks,
    ticks_between,
)
from temperance.report.svg.lines import Line, line_chart, line_legend
from temperance.report.svg.raster import data_address

NEAR, FAR = (240, 244, 250), (24, 62, 112)  # colours of an angle at the mean and of the one furthest from it
NAMED_CLASSES = 10  # so many colours can be told apart and have a name


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
    x = roomy(low, high, LEFT, RIGHT)
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
    few = len(names) <= NAMED_CLASSES
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
    x, y = (roomy(float(low[i]), float(high[i]), *ends) for i, ends in enumerate(((8.0, 412.0), (412.0, 8.0))))
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
