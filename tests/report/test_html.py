"""The page holds the numbers of the evaluation, loads nothing, and shows what users wrote as text."""

import dataclasses
import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import random_predictions
from pages import Page
from report.samples import many_classes
from temperance.errors import FileError
from temperance.jobs.evaluation import Evaluation, evaluate
from temperance.jobs.several import evaluate_each
from temperance.markup import Markup, join, tag
from temperance.metrics import METRICS
from temperance.metrics.classwise import class_errors
from temperance.predictions import Predictions
from temperance.report import write_report
from temperance.report.formats import value_of
from temperance.report.numbers import bars, worst_classes
from temperance.report.pages.evaluation import COVERAGES, evaluation_page
from temperance.report.pages.several import reliabilities_section
from temperance.report.svg import charts
from temperance.report.svg.drawing import Plot, RootScale, Scale, log_ticks, root_ticks, round_ticks

NASTY = ("<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "a & \"b\" 'c'", "ж — 日本")
GROUPS = ("north", "south", "<script>alert(3)</script>")


def measured(n: int, k: int, bootstrap: int = 20, names: tuple[str, ...] | None = None) -> Evaluation:
    logits, labels = random_predictions(n, k)
    return evaluate(Predictions.of(logits, labels, from_logits=True, class_names=names), bootstrap=bootstrap)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return measured(500, 20)


@pytest.fixture(scope="module")
def grouped() -> Evaluation:
    logits, labels = random_predictions(300, 4)
    groups = [GROUPS[i % 3] for i in range(300)]
    predictions = Predictions.of(logits, labels, from_logits=True, class_names=NASTY, groups=groups)
    return evaluate(predictions, bootstrap=20, by_group=True)


# ------------------------------------------------------------------------------------------------------------ the file


def test_the_file_is_the_page(evaluation: Evaluation, tmp_path: Path) -> None:
    write_report(evaluation, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == evaluation_page(evaluation)
    assert list(tmp_path.iterdir()) == [tmp_path / "report.html"]


def test_the_same_evaluation_is_the_same_page(evaluation: Evaluation) -> None:
    assert evaluation_page(evaluation) == evaluation_page(dataclasses.replace(evaluation))


def test_a_missing_folder_is_refused(evaluation: Evaluation, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no folder"):
        write_report(evaluation, tmp_path / "nowhere" / "report.html")


def test_nothing_is_loaded(evaluation: Evaluation) -> None:
    text = evaluation_page(evaluation)
    page = Page(text)
    for _, attributes, _ in page.elements:
        assert not {"src", "srcset", "data", "action"} & set(attributes)
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"https?://|@import|url\(", text)
    (policy,) = (a["content"] for a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy


def test_it_parses_with_a_heading_for_every_section(grouped: Evaluation) -> None:
    page = Page(evaluation_page(grouped))
    assert len(page.all("h1")) == 1
    assert len(page.all("h2")) == 6
    assert all(a.get("aria-label") or a.get("aria-hidden") for a, _ in page.all("svg"))


# ---------------------------------------------------------------------------------------------------------- the numbers


def test_verdict_and_headline(evaluation: Evaluation) -> None:
    page = Page(evaluation_page(evaluation))
    (answer,) = page.all("p", "verdict")
    assert evaluation.verdict.startswith(answer[1])
    for metric in ("accuracy", "ece"):
        assert f"{100 * evaluation.row(metric).value:.2f}\u00a0%" in [text for _, text in page.all("b")]


def test_every_metric_is_there_with_its_explanation(evaluation: Evaluation) -> None:
    page = Page(evaluation_page(evaluation))
    titles = [text for _, text in page.all("span")]
    for row in evaluation.rows:
        metric = METRICS[row.metric]
        assert metric.title in titles
        assert metric.summary.split("`")[0] in page.text


def test_bars_stand_at_the_height_of_the_frequency(evaluation: Evaluation) -> None:
    page = Page(evaluation_page(evaluation))
    found = bars(evaluation.reliability)
    rects = [{k: float(v or 0) for k, v in a.items() if k != "class"} for a, _ in page.all("rect", "bar")][: len(found)]
    dots = [(float(a["cx"] or 0), float(a["cy"] or 0)) for a, _ in page.all("circle", "dot")]
    assert len(dots) == len(found)
    path = page.drawn("path", "guide")[0]["d"]
    (left, bottom), (right, top) = (tuple(map(float, p.split(","))) for p in (path or "")[1:].split("L"))
    for bar, rect, (x, y) in zip(found, rects, dots, strict=True):
        height = bar.accuracy * (bottom - top)
        assert rect["height"] == pytest.approx(max(height, 1), abs=0.02)
        assert rect["y"] + rect["height"] == pytest.approx(bottom, abs=0.02)
        assert y == pytest.approx(bottom - height, abs=0.02)
        assert x == pytest.approx(left + bar.confidence * (right - left), abs=0.02)


def test_answered_shares_are_those_of_the_weight() -> None:
    """Half of the samples have nearly no weight: half of the weight is not half of the samples."""
    logits, labels = random_predictions(400, 4)
    surest_last = logits.softmax(1).amax(1).argsort()
    weights = torch.full((400,), 1.37).index_fill(0, surest_last[200:], 0.013)
    found = evaluate(Predictions.of(logits, labels, from_logits=True, weights=weights), bootstrap=0)
    curve = found.risk_coverage
    page = Page(evaluation_page(found))
    (rows,) = (rows[1:] for _, rows in page.tables if rows[0][0] == "Answered")
    for (answered, error, _), share in zip(rows, COVERAGES, strict=True):
        m = int((curve.coverage >= share - 1e-9).int().argmax())
        assert answered == f"{100 * float(curve.coverage[m]):.0f}\u00a0%"
        assert error == f"{100 * float(curve.risk[m]):.2f}\u00a0%"
    half = float(curve.threshold[int((curve.coverage >= 0.5).int().argmax())])
    assert f"Half of the predictions are at least {math.floor(1e4 * half) / 100:.2f}\u00a0% sure" in page.text


def test_merged_bins_of_several_sets_stay_in_their_frame() -> None:
    logits, labels = random_predictions(500, 4)
    sets = {name: Predictions.of(logits, labels, from_logits=True) for name in ("one", "other")}
    page = Page(reliabilities_section(evaluate_each(sets, n_bins=200, bootstrap=0)))
    heights = [float(a["height"] or 0) for a, _ in page.all("rect", "bar") if float(a["y"] or 0) > 400]
    assert heights and max(heights) <= 60.01


def test_the_bar_of_the_accuracy_shows_behind_the_gap(evaluation: Evaluation) -> None:
    page = Page(evaluation_page(evaluation))
    under = {a["x"]: float(a["width"] or 0) for a, _ in page.all("rect", "under")}
    assert under and any(not bar.over for bar in bars(evaluation.reliability))
    bins = [float(a["width"] or 0) for a, _ in page.all("rect", "bar")]
    assert max(under.values()) < 0.6 * min(bins)


def test_shares_are_on_a_scale_of_square_roots(evaluation: Evaluation) -> None:
    drawn = Page(charts.histogram(evaluation.reliability))
    heights = [float(a["height"] or 0) for a, _ in drawn.all("rect", "bar")]
    roots = [math.sqrt(bar.count) for bar in bars(evaluation.reliability)]
    assert [height / heights[-1] for height in heights] == pytest.approx([r / roots[-1] for r in roots], rel=0.02)
    assert "square-root scale" in drawn.text


def test_merged_bins_are_mentioned() -> None:
    logits, labels = random_predictions(300, 3)
    found = evaluate(Predictions.of(logits, labels, from_logits=True), bootstrap=2, n_bins=1000)
    page = Page(evaluation_page(found))
    assert "A bar stands for 20 of the 1,000 bins." in page.text
    assert len(page.all("rect")) < 250


def test_gaps_have_the_colour_of_their_side(evaluation: Evaluation) -> None:
    page = Page(evaluation_page(evaluation))
    found = bars(evaluation.reliability)
    assert len(page.all("rect", "over")) == sum(bar.over for bar in found)
    assert len(page.all("rect", "under")) == sum(not bar.over for bar in found)
    assert len(page.all("rect", "chance")) == sum(bar.chance for bar in found)


def test_classes_are_worst_first_and_all_can_be_searched(evaluation: Evaluation) -> None:
    page = Page(evaluation_page(evaluation))
    (data,) = (text for a, text in page.all("script") if a.get("type") == "application/json")
    rows = json.loads(data)
    worst = worst_classes(evaluation.classwise, evaluation.class_names)
    assert [row[0] for row in rows] == [entry.name for entry in worst]
    assert [row[1] for row in rows] == [str(entry.labels) for entry in worst]
    for (*_, (over, under, _), error), entry in zip(rows, worst, strict=True):
        assert over + under <= 100.2
        assert float(error.split("\u00a0")[0]) == pytest.approx(100 * entry.error, abs=0.005)


def test_groups_are_worst_first(grouped: Evaluation) -> None:
    page = Page(evaluation_page(grouped))
    names = [text for _, text in page.all("span") if text in GROUPS]
    assert len(names) == 3 and names == sorted(names, key=lambda group: -grouped.row("ece", group=group).value)
    assert len(page.all("i", "point")) == 3
    assert not Page(evaluation_page(measured(50, 3))).all("i", "point")


def test_without_resamples_there_is_no_column_of_intervals() -> None:
    found = measured(100, 3, bootstrap=0)
    assert all(math.isnan(row.low) for row in found.rows)
    page = Page(evaluation_page(found))
    assert "nan" not in page.text.lower().split()
    numbers = page.text[page.text.index("Every number") :]
    assert "interval" not in numbers and "–" not in [text for _, text in page.all("td")]
    assert all(value_of(row) in numbers for row in found.rows)
    assert not any(text.startswith("between") for _, text in (*page.all("small"), *page.all("span")))


def test_at_least_is_never_rounded_up() -> None:
    probs = torch.tensor([[0.99999, 0.00001]] * 4, dtype=torch.float64)
    text = Page(evaluation_page(evaluate(Predictions.of(probs, [0, 0, 0, 1]), bootstrap=2))).text
    assert "at least 99.99\u00a0% sure" in text
    assert "at least 100" not in text


def test_a_confidence_in_float32_is_shown_as_it_was_stated() -> None:
    probs = torch.tensor([[0.95, 0.05], [0.9, 0.1]]).repeat(50, 1)
    text = Page(evaluation_page(evaluate(probs, torch.zeros(100, dtype=torch.long), bootstrap=0))).text
    assert "Half of the predictions are at least 95.00\u00a0% sure, nine in ten at least 90.00\u00a0%" in text


def test_provenance_is_complete(evaluation: Evaluation) -> None:
    text = Page(evaluation_page(evaluation)).text
    provenance = evaluation.provenance
    for value in (*provenance.inputs.values(), *provenance.versions.values(), provenance.created):
        assert value in text


# ----------------------------------------------------------------------------------------------------- what users wrote


def test_text_of_users_is_escaped(grouped: Evaluation) -> None:
    rows = tuple(dataclasses.replace(row, source=f"<b>{NASTY[1]}") for row in grouped.rows)
    inputs = {"<b>": "0" * 64}
    provenance = dataclasses.replace(grouped.provenance, command="temperance <i>x</i>", inputs=inputs)
    page = Page(evaluation_page(dataclasses.replace(grouped, rows=rows, provenance=provenance)))
    assert not page.all("img")
    assert not page.all("b", "none") and all("class" not in a for a, _ in page.all("b"))
    assert len(page.all("script")) == 1  # ours
    assert set(NASTY) <= {text for _, text in page.all("th")}
    assert "temperance <i>x</i>" in page.text


def test_names_cannot_end_the_data_block() -> None:
    names = tuple(f"{NASTY[j % 4]} {j}" for j in range(20))
    page = Page(evaluation_page(measured(200, 20, names=names)))
    (data,) = (text for a, text in page.all("script") if a.get("type") == "application/json")
    assert {row[0] for row in json.loads(data)} == set(names)


@given(st.text(), st.text())
def test_markup_escapes_all_text(content: str, value: str) -> None:
    class Reader(HTMLParser):
        seen = ""
        title: str | None = None

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag == "p"
            self.title = dict(attrs)["title"]

        def handle_data(self, data: str) -> None:
            self.seen += data

    reader = Reader()
    reader.feed(tag("p", content, title=value))
    reader.close()
    assert reader.seen == content
    assert reader.title == value


def test_markup_is_not_escaped_twice() -> None:
    assert tag("p", tag("b", "<")) == "<p><b>&lt;</b></p>"
    assert join([Markup("<br>"), "<"], " & ") == "<br> &amp; &lt;"
    assert tag("input", hidden=True, title=None, size=2.50) == '<input hidden size="2.5">'


# ---------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(("n", "k", "n_bins"), [(1, 2, 15), (1, 3, 1), (5, 3, 15), (200, 2, 300)])
def test_any_size_is_a_page(n: int, k: int, n_bins: int) -> None:
    logits, labels = random_predictions(n, k)
    found = evaluate(Predictions.of(logits, labels, from_logits=True), bootstrap=2, n_bins=n_bins)
    text = evaluation_page(found)
    for attributes, _ in (*Page(text).all("rect"), *Page(text).all("path")):
        assert "nan" not in str(attributes) and "inf" not in str(attributes)


def test_a_perfect_and_a_hopeless_model_are_pages() -> None:
    for probs in (torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64).roll(1, 0)):
        Page(evaluation_page(evaluate(Predictions.of(probs, torch.arange(3)), bootstrap=2)))


def test_a_thousand_classes_stay_small() -> None:
    names = tuple(f"a class with a rather long name, number {j}" for j in range(1000))
    text = evaluation_page(measured(2000, 1000, bootstrap=2, names=names))
    assert len(text.encode()) < 1_000_000
    assert len(Page(text).all("tr")) < 250


def test_tens_of_thousands_of_classes_stay_small(evaluation: Evaluation) -> None:
    found = many_classes(evaluation)
    text = evaluation_page(found)
    page = Page(text)
    assert len(text.encode()) < 300_000 and len(page.elements) < 3000
    assert "The 1,000 classes furthest off" in page.text and "The errors of all 32,000 classes" in page.text
    (data,) = (text for a, text in page.all("script") if a.get("type") == "application/json")
    worst = worst_classes(found.classwise, found.class_names)
    assert [row[0] for row in json.loads(data)] == [entry.name for entry in worst[:1000]]


def test_the_distribution_counts_every_class(evaluation: Evaluation) -> None:
    for k in (50, 3000):
        errors = class_errors(many_classes(evaluation, k).classwise)
        counts = [
            int(text.split()[0].replace(",", "")) for _, text in Page(charts.error_distribution(errors)).all("title")
        ]
        assert sum(counts) == k
    zeros = Page(charts.error_distribution(torch.zeros(60, dtype=torch.float64)))
    assert [text for _, text in zeros.all("title")] == ["60 classes"]


# ------------------------------------------------------------------------------------------------------------------ svg


@given(st.floats(1e-6, 1e6), st.integers(1, 8))
def test_ticks_are_few_round_and_inside(high: float, about: int) -> None:
    ticks = round_ticks(high, about)
    assert ticks[0] == 0 and ticks[-1] <= high * (1 + 1e-9)
    assert 1 <= len(ticks) <= about + 1
    if len(ticks) > 1:
        mantissa = ticks[1] / 10 ** math.floor(math.log10(ticks[1]) + 1e-9)
        assert min(abs(mantissa - m) for m in (1, 2, 5, 10)) < 1e-6


@given(st.floats(1e-6, 1e6), st.floats(30, 300))
def test_ticks_of_square_roots_are_apart(high: float, height: float) -> None:
    scale = RootScale(0, high, height, 0)
    ticks = root_ticks(scale)
    places = [scale(tick) for tick in ticks]
    assert ticks[0] == 0 and ticks[-1] <= high and ticks == sorted(ticks)
    assert all(before - after >= 18 for before, after in itertools.pairwise(places))
    assert all(tick >= 1 for tick in root_ticks(scale, least=1)[1:])


@given(st.floats(1e-9, 1e9), st.floats(1, 1e6))
def test_ticks_of_logarithms_are_powers_of_ten_or_at_least_two(low: float, ratio: float) -> None:
    found = log_ticks(low, low * ratio)
    assert all(low <= tick <= low * ratio for tick in found) and found == sorted(found)
    assert len(found) >= math.floor(math.log10(ratio))
    assert len(found) >= 2 or ratio < 5


def test_a_box_stands_on_its_base_and_is_never_invisible() -> None:
    plot = Plot(Scale(0, 1, 0, 100), Scale(0, 1, 100, 0))
    assert plot.box(0.2, 0.4, 0, 0.5, "bar") == ('<rect x="20.5" y="50" width="19" height="50" class="bar"></rect>')
    assert 'y="99" width="19" height="1"' in plot.box(0.2, 0.4, 0, 1e-9, "bar")
