"""The page of an analysis: what is behind the confidence of a network, a classifier or a calibrator."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from torch import Tensor

from temperance.diagnose.analysis import Analysis, Embedding, simplex_angle
from temperance.errors import plural
from temperance.markup import Markup, join, tag
from temperance.metrics.binned import ece
from temperance.metrics.bins import Bins
from temperance.report.formats import percent
from temperance.report.numbers import bars
from temperance.report.page import heading, legend, noted, page, pair, section, stroke
from temperance.report.pages.traces import toy_section, trace_section
from temperance.report.pages.training import head_section, training_section
from temperance.report.svg import charts
from temperance.report.svg.angles import angle_histogram, angle_matrix, closest_pairs, summary
from temperance.report.svg.drawing import picture, roomy
from temperance.report.svg.lines import Line, line_chart, line_legend
from temperance.showing import listed

CLOSEST = 3  # pairs of classes that are named
NAMED_CLASSES = 10  # more colours could not be told apart


def analysis_page(found: Analysis) -> str:
    """The page, with a section for everything that applies."""
    names = [subject.name for subject in found.subjects]
    sizes = list(dict.fromkeys(f"{subject.test.n:,}" for subject in found.subjects))
    samples = plural(found.subjects[0].test.n, "test sample") if len(sizes) == 1 else f"{listed(sizes)} test samples"
    about = [samples, f"{len(found.class_names):,} classes"]
    parts = [
        heading("Analysis", listed(names), about),
        confidence_section(found.confidence),
        *histories(found),
        masked_section(found),
        trace_section(found.traces, names[0]),
        toy_section(found.toy, found.class_names),
        angles_section(found.angles, found.class_names),
        map_section(found.maps, found.class_names),
        notes_section(found.notes),
    ]
    return page(f"{names[0]} – analysis", *parts)


def histories(found: Analysis) -> list[Markup]:
    """The history of each subject: of a training or of a head, as its log says."""
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
    highest = max(bar.count / float(bins.n) for bins in sets.values() for bar in bars(bins))
    figures = []
    for name, bins in sets.items():
        caption = [tag("b", name), f" ECE\u00a0{percent(ece.value(bins))}"]
        figures.append((join(caption), charts.histogram(bins, highest)))
    return section(
        "How sure is it?",
        "The share of predictions at each confidence. In a calibrated model the two vertical lines meet.",
        pair(*figures),
    )


# ----------------------------------------------------------------------------------------------------- class prototypes


def angles_section(sets: dict[str, Tensor], names: Sequence[str]) -> Markup:
    """The angles between class prototypes, as a matrix and as a histogram (MaC-Cal Figure 2)."""
    if not sets:
        return Markup()
    figures = []
    for title, angles in sets.items():
        figures.append((noted(tag("b", title), summary(angles)), angle_matrix(angles, names)))
        closest = (f"{names[i]} and {names[j]} ({angle:.1f}°)" for i, j, angle in closest_pairs(angles, CLOSEST))
        caption = noted(tag("b", "The same angles"), f"closest: {', '.join(closest)}")
        figures.append((caption, angle_histogram(angles)))
    k = len(names)
    return section(
        "How far apart are the classes?",
        "The angle between the prototypes of each pair of classes, after their mean is subtracted. "
        f"{k:,} directions can at best all be {simplex_angle(k):.1f}° apart. Closer pairs are red, pairs further "
        "apart are blue; each matrix has its own scale above it.",
        legend(("bar", "pairs of classes"), (stroke("guide"), "as far apart as possible")),
        pair(*figures),
    )


# ---------------------------------------------------------------------------------------------------- masked inference


def masked_section(found: Analysis) -> Markup:
    """Accuracy and confidence with weights of the classifier masked at random (MaC-Cal Figure 1)."""
    figures = []
    for subject in found.subjects:
        if subject.masked:
            lines = [
                Line("accuracy", [(100 * each.ratio, each.accuracy) for each in subject.masked], 0),
                Line("mean confidence", [(100 * each.ratio, each.confidence) for each in subject.masked], 1),
            ]
            drawn = line_chart(
                lines, y_title="Accuracy and confidence", x_title="weights masked, %", percent=True, dots=True
            )
            figures.append((join([tag("b", subject.name), line_legend(lines)]), drawn))
    if not figures:
        return Markup()
    return section(
        "What if weights of the classifier are masked?",
        "The network's own classifier with a share of its weights masked at random in every batch, without any "
        "training. Where the lines meet, masking alone makes it as sure as it is right on average; training with masks "
        "is meant to recover the accuracy that masking costs.",
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
        "A map of the logits by t-SNE: samples with similar logits are near each other. The colour is the label; "
        "the stronger it is, the less sure the prediction (entropy). The map of a model that is always sure is "
        "pale.",
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
    """A colour for each class, as different as possible and visible on light and on dark paper."""
    # Two rings, so that neighbours on the circle of hues also differ in lightness.
    lightness = 0.5 if j % 2 else 0.6
    red, green, blue = colorsys.hls_to_rgb(j / k, lightness, 0.72)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
