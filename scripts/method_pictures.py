"""What the pages of methods show: pictures and numbers, computed from the demo when the site is built."""

import math
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import torch
from torch import Tensor

from tables import LOSS_FAMILIES
from temperance.calibrators import CALIBRATORS
from temperance.demo import demo_predictions
from temperance.diagnose.gradient import against_probability, probe, sweep
from temperance.losses import LOSSES
from temperance.markup import Markup, join, tag
from temperance.metrics import METRICS, accuracy, ece, nll, risk_coverage_curve
from temperance.metrics.stats import top_label_bins
from temperance.report.formats import percent
from temperance.report.pages.gradients import LOWEST_SLOPE, smoothing_chart
from temperance.report.svg.charts import reliability, risk_coverage
from temperance.report.svg.drawing import FIFTHS
from temperance.report.svg.lines import Line, line_chart, line_legend, points
from temperance.training.recipe import RECIPES

DEMO = "the demo, a ResNet-18 on CIFAR-100"


class Shown(NamedTuple):
    """Calibrated test predictions of the demo."""

    probs: Tensor
    labels: Tensor


@cache
def calibrated(name: str) -> Shown:
    """The demo's test predictions after a calibrator that was fitted to its validation part."""
    val, test = demo_predictions()
    found = CALIBRATORS[name]().fit(val.scores, val.labels)
    return Shown(torch.as_tensor(found.predict_proba(test.scores)), test.labels)


def shown(kind: str, name: str) -> str:
    """The picture of an entry with what it says, as Markdown, or nothing where there is none to draw."""
    drawers = {"metrics": of_metric, "calibrators": of_calibrator, "losses": of_loss, "recipes": of_recipe}
    return drawers[kind](name) if kind in drawers else ""


def of_metric(name: str) -> str:
    metric = METRICS[name]
    if metric.quadratic:
        return ""
    before, after = calibrated("identity"), calibrated("temperature")
    was, now = (_number(metric(*one), is_share=metric.percent) for one in (before, after))
    said = f"On {DEMO}, it is {was}, and {now} after [temperature scaling](../calibrators/temperature.md)."
    if metric.of_batch is top_label_bins:
        return _figures(_reliability(before, "before"), _reliability(after, "after temperature")) + said
    if name in ("aurc", "eaurc", "augrc", "risk-at-coverage", "coverage-at-risk"):
        curves = [risk_coverage_curve(*one) for one in (after, before)]
        return _figures(("risk and coverage, after and (grey) before", risk_coverage(*curves))) + said
    return said


def of_calibrator(name: str) -> str:
    before, after = calibrated("identity"), calibrated(name)
    rows = [
        f"| {label} | {nll(*one):.3f} | {percent(ece(*one), 2)} | {percent(accuracy(*one), 2)} |"
        for label, one in (("before", before), ("after", after))
    ]
    table = "\n".join(["| | NLL | ECE | accuracy |", "|---|---|---|---|", *rows])
    pictures = _figures(_reliability(before, "before"), _reliability(after, f"after {name}"))
    return f"{pictures}On {DEMO}, fitted to 5,000 predictions and measured on 10,000 others:\n\n{table}"


def of_loss(name: str) -> str:
    """Losses that weigh samples over the label's probability, those that smooth labels over the logit of a class."""
    if LOSSES[name].needs_indices:
        return ""  # it depends on the samples' histories
    family = next(family for family, names in LOSS_FAMILIES.items() if name in names)
    if family in ("smoothing", "batch"):
        loss = probe(name)
        top, other = ({name: sweep(loss, place)} for place in ("top", "other"))
        if not any(bool(found[name].f.isfinite().any() and found[name].f.any()) for found in (top, other)):
            return ""
        pictures = _figures(
            ("the predicted class: its label is lowered by f", smoothing_chart(top, "logit", name, "its logit")),
            ("another class: its label is raised by f", smoothing_chart(other, "logit", name, "its logit")),
        )
        return f"{pictures}How it smooths the label of a right prediction: `temperance gradients {name} -o page.html`."
    names = list(dict.fromkeys(["cross-entropy", name]))
    curves = {each: against_probability(probe(each)) for each in names}
    panels = []
    for column, ends in (("loss", (0.0, 5.0)), ("slope", (LOWEST_SLOPE, 1.0))):
        lines = [Line(each, points(one.prob, getattr(one, column)), i) for i, (each, one) in enumerate(curves.items())]
        chart = line_chart(lines, y_title=column, x_title="probability of the label", limits=ends, x_ticks=FIFTHS)
        panels.append((f"{column}, weights scaled to a mean of 1", chart))
    legend = line_legend([Line(each, [], i) for i, each in enumerate(names)])
    command = f"temperance gradients {' '.join(names)} --figure weights -o page.html"
    return f"{_figures(*panels, legend=legend)}Over the probability of the label: `{command}`."


def of_recipe(name: str) -> str:
    recipe = RECIPES[name]
    rates = [(float(epoch), recipe.lr_at(epoch)) for epoch in range(recipe.epochs)]
    chart = line_chart([Line(name, rates, 0)], y_title="learning rate", x_title="epoch", from_zero=True)
    return _figures(("learning rate", chart))


def _reliability(one: Shown, caption: str) -> tuple[str, Markup]:
    return caption, reliability(ece.stats(*one))


def _figures(*drawn: tuple[str, Markup], legend: Markup | None = None) -> str:
    parts = [tag("figure", tag("figcaption", caption), picture) for caption, picture in drawn]
    return f"{tag('div', *filter(None, [legend]), join(parts), class_='drawn')}\n\n"


def _number(value: float, *, is_share: bool) -> str:
    if math.isnan(value):
        return "undefined"
    return percent(value, 2) if is_share else f"{value:.4g}".replace("-", "−")


def style() -> str:
    """The rules of report pages that pictures need, with the colours of the site's two schemes."""
    rules = files("temperance.report").joinpath("page.css").read_text()
    light, dark = (part.split("}")[0] for part in rules.split(":root {")[1:3])
    drawing = [line for line in rules.splitlines() if line.startswith(("svg", ".series-", ".legend", ".key"))]
    scoped = "\n".join(f".drawn {line}" for line in drawing)
    return f":root {{{light}}}\n[data-md-color-scheme=slate] {{{dark}}}\n{scoped}\n"
