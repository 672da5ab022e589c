"""The page of a comparison holds its numbers, shows what failed, loads nothing, and shows what users wrote as text."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch

from conftest import random_predictions
from pages import Page
from report.samples import many_classes
from temperance.jobs.comparison import Comparison, compare
from temperance.jobs.evaluation import evaluate
from temperance.jobs.outcomes import Method, Outcome
from temperance.metrics import METRICS
from temperance.metrics.classwise import class_errors
from temperance.predictions import Predictions
from temperance.report import write_report
from temperance.report.formats import digits_for, interval_of, points, signed, value_of
from temperance.report.numbers import bars, class_changes
from temperance.report.page import mark
from temperance.report.pages.classes import MOST_CHANGED, class_changes_section
from temperance.report.pages.comparison import comparison_page, nll_scale, remark
from temperance.report.pages.evaluation import evaluation_page
from temperance.report.svg import charts

# Meta-Cal at alpha = 0.9 keeps nine samples to fit its temperature on.
pytestmark = pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")

NASTY = ("<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "a & \"b\" 'c'", "ж — 日本")
FAILING = "meta-acc:accuracy=0.01"  # it finds out when it is fitted
WRONG = "meta-acc:accuracy=<b>x</b>"


def over_confident(n: int, k: int, names: tuple[str, ...] | None = None) -> Predictions:
    return Predictions.of(*random_predictions(n, k, sharpness=3.0), from_logits=True, class_names=names)


def calibrated(n: int, k: int) -> Predictions:
    """Labels drawn from the very probabilities that the logits give."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return Predictions.of(logits, labels, from_logits=True)


@pytest.fixture(scope="module")
def found() -> Comparison:
    """Four classes, five methods of which one is far off and one fails."""
    methods = ["temperature", "vector", "meta-mis:alpha=0.6", "identity", FAILING]
    found = compare(over_confident(600, 4, NASTY), methods=methods, bootstrap=40)
    wrong = Method("meta-acc", {"accuracy": "<b>x</b>"})
    outcomes = (dataclasses.replace(o, method=wrong) if o.label == FAILING else o for o in found.outcomes)
    return dataclasses.replace(found, outcomes=tuple(outcomes))


@pytest.fixture(scope="module")
def left_alone() -> Comparison:
    """Nothing helps, and what is recommended is to do nothing."""
    return compare(calibrated(600, 3), methods=["histogram", "vector"], bootstrap=40)


def outcome_of(found: Comparison, label: str) -> Outcome:
    return next(outcome for outcome in found.outcomes if outcome.label == label)


# ------------------------------------------------------------------------------------------------------------ the file


def test_the_file_is_the_page_of_its_kind(found: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(found, path)
    assert path.read_text(encoding="utf-8") == comparison_page(found)
    write_report(found.before, path)
    assert path.read_text(encoding="utf-8") == evaluation_page(found.before)


def test_the_same_comparison_is_the_same_page(found: Comparison) -> None:
    assert comparison_page(found) == comparison_page(dataclasses.replace(found))


def test_nothing_is_loaded(found: Comparison) -> None:
    text = comparison_page(found)
    for _, attributes, _ in Page(text).elements:
        assert not {"src", "srcset", "data", "action"} & set(attributes)
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"https?://|@import|url\(", text)


def test_it_parses_with_a_heading_for_every_section(found: Comparison, left_alone: Comparison) -> None:
    for comparison in (found, left_alone):
        page = Page(comparison_page(comparison))
        assert len(page.all("h1")) == 1 and len(page.all("h2")) == 5
        pictures = (*page.all("svg"), *page.all("div", "strip"))
        assert all(a.get("aria-label") or a.get("aria-hidden") for a, _ in pictures)


# ----------------------------------------------------------------------------------------------------------- the answer


def test_the_answer_stands_first(found: Comparison) -> None:
    assert found.recommended is not found.baseline
    page = Page(comparison_page(found))
    (verdict,) = page.all("p", "verdict")
    assert found.verdict.startswith(verdict[1].replace("\xa0", " ")) and found.recommended.label in verdict[1]
    about = page.all("p", "about")[0][1]
    assert found.split in about and "4 classes" in about and "5 methods" in about


def test_headline_figures_before_and_after(found: Comparison) -> None:
    page = Page(comparison_page(found))
    was = [text for _, text in page.all("span", "was")]
    for metric in ("nll", "ece"):
        old, new = found.row(metric, method="identity"), found.row(metric, method=found.recommended.label)
        assert value_of(old) in was
        assert value_of(new) in [text for _, text in page.all("span")]
        for row, when in ((old, "before"), (new, "after")):
            assert f"{interval_of(row)} {when}" in [text for _, text in page.all("span")]


def test_accuracy_says_by_how_much_it_changed(found: Comparison) -> None:
    vector = outcome_of(found, "vector")
    page = Page(comparison_page(dataclasses.replace(found, recommended=vector)))
    by = vector.minus(found.baseline, "accuracy")
    assert by.value
    assert f"{points(by.value)} points," in page.text
    assert f"between {points(by.low)} and {points(by.high)}" in page.text


def test_accuracy_that_stays_is_said_once(found: Comparison) -> None:
    temperature = outcome_of(found, "temperature")
    page = Page(comparison_page(dataclasses.replace(found, recommended=temperature)))
    assert "the same before and after" in [text for _, text in page.all("small")]
    assert value_of(found.row("accuracy", method="temperature")) in [text for _, text in page.all("b")]


# ---------------------------------------------------------------------------------------------------------- the ranking


def test_every_method_with_its_numbers_in_order(found: Comparison) -> None:
    rows = [row for row in Page(comparison_page(found)).table("ranking")[1:] if len(row) > 1]
    assert len(rows) == len(found.ranked) == 4
    for (name, _, nll, ece, accuracy, parameters, seconds), outcome in zip(rows, found.ranked, strict=True):
        assert name == " ".join(filter(None, [outcome.label, found.remark(outcome)]))
        measured = outcome.measured
        assert nll.startswith(f"{measured['nll'].value:.4f} ")
        assert ece.startswith(f"{100 * measured['ece'].value:.2f}\u00a0% ")
        by = measured["accuracy"].value - found.baseline.measured["accuracy"].value
        change = "" if outcome is found.baseline else f" {points(by)}"
        assert accuracy == f"{100 * measured['accuracy'].value:.2f}\u00a0%{change}"
        assert (parameters, seconds) == (f"{outcome.n_parameters:,}", f"{outcome.seconds:.2f}")
    assert [name for name, *_ in rows if "recommended" in name] == [f"{found.recommended.label} recommended"]


def test_methods_level_with_the_best_stand_together(found: Comparison) -> None:
    column = [row[0].split(" ")[0] if len(row) > 1 else row[0] for row in Page(comparison_page(found)).table("ranking")]
    level = [outcome.label for outcome in found.ranked if found.level_with_best(outcome)]
    behind = [outcome.label for outcome in found.ranked if not found.level_with_best(outcome)]
    assert level and behind
    assert column == ["Method", "Level with the best", *level, "Behind the best", *behind]


def left_of(style: str | None) -> float:
    return float(re.findall(r"left:([-\d.]+)%", style or "")[0])


def test_dots_stand_at_the_nll_and_whiskers_at_its_interval(found: Comparison) -> None:
    best, scale = found.ranked[0], nll_scale(found)
    drawn = 0
    for outcome, marks in zip(found.ranked, strips_of(found), strict=True):
        assert marks["upright"][0][0] == pytest.approx(scale(best.measured["nll"].value), abs=0.1)
        if "point" in marks:
            ((at, _),), ((low, width),) = marks["point"], marks["range"]
            by, start = outcome.minus(best, "nll"), best.measured["nll"].value
            assert at == pytest.approx(scale(outcome.measured["nll"].value), abs=0.1)
            assert low == pytest.approx(scale(start + by.low), abs=0.1)
            assert low + width == pytest.approx(min(scale(start + by.high), 100), abs=0.2)
            drawn += 1
    assert drawn >= 2


def test_a_far_worse_method_does_not_flatten_the_others(found: Comparison) -> None:
    far = outcome_of(found, "meta-mis:alpha=0.6")
    for outcome, marks in zip(found.ranked, strips_of(found), strict=True):
        assert ("point" in marks) == (outcome.measured["nll"].value <= nll_scale(found).high)
        assert ("point" in marks) or ("beyond" in marks)
        assert all(0 <= at <= 100 for kind in marks.values() for at, _ in kind)
    assert "point" not in strips_of(found)[found.ranked.index(far)]
    assert "higher than the scale reaches" in Page(comparison_page(found)).text


def test_methods_that_nearly_coincide_can_be_told_apart() -> None:
    """No calibration is far off, so it is marked at the edge and the scale is around the methods."""
    methods = ["temperature", "vector", "platt", "beta"]
    found = compare(over_confident(600, 4), methods=methods, bootstrap=40)
    strips = dict(zip((outcome.label for outcome in found.ranked), strips_of(found), strict=True))
    assert "point" not in strips["identity"] and strips["identity"]["beyond"] == [(100.0, 0.0)]
    places = [at for marks in strips.values() for at, _ in marks.get("point", [])]
    values = [outcome.measured["nll"].value for outcome in found.ranked if outcome is not found.baseline]
    share = (max(values) - min(values)) / (found.baseline.measured["nll"].value - min(values))
    assert max(places) - min(places) > 3 * 100 * share  # on a scale that held no calibration it would be the share


def test_one_method_is_shown_beside_no_calibration() -> None:
    found = compare(over_confident(300, 3), methods=["temperature"], bootstrap=20)
    assert all("point" in marks for marks in strips_of(found))
    assert "no calibration" in [text for _, text in Page(comparison_page(found)).all("li")]


def test_a_recommendation_behind_the_best_is_explained(found: Comparison) -> None:
    behind = outcome_of(found, "meta-mis:alpha=0.6")
    assert not found.level_with_best(behind)
    changed = dataclasses.replace(found, recommended=behind)
    words = remark(changed, behind)
    assert words == f"{changed.remark(behind)}; the verdict says why not {found.ranked[0].label}"
    assert words in Page(comparison_page(changed)).text
    best = dataclasses.replace(found, recommended=found.ranked[0])
    assert remark(best, best.recommended) == best.remark(best.recommended)


def strips_of(found: Comparison) -> list[dict[str, list[tuple[float, float]]]]:
    """The marks of each strip of the ranking: (left, width) by kind."""
    page = Page(comparison_page(found))
    strips: list[dict[str, list[tuple[float, float]]]] = []
    for element, attributes, _ in page.elements:
        if element == "div" and attributes.get("class") == "strip":
            strips.append({})
        elif element == "i" and strips and "left:" in (attributes.get("style") or ""):
            width = re.findall(r"width:([\d.]+)%", attributes["style"] or "")
            kind = (attributes.get("class") or "").split()[0]
            strips[-1].setdefault(kind, []).append((left_of(attributes["style"]), float((width or ["0"])[0])))
    return strips[: len(found.ranked)]


def test_failures_are_shown_with_the_reason(found: Comparison) -> None:
    failed = outcome_of(found, WRONG)
    assert "accuracy must lie between" in failed.failure
    assert Page(comparison_page(found)).table("failures")[1:] == [[WRONG, failed.failure]]


# --------------------------------------------------------------------------------------------------------- the pictures


def test_the_two_reliability_diagrams_have_the_same_scales(found: Comparison) -> None:
    sides = [bars(found.before.reliability), bars(found.after.reliability)]
    most = max(bar.count for side in sides for bar in side)
    per_sample = []
    for evaluation, side in ((found.before, sides[0]), (found.after, sides[1])):
        drawn = charts.reliability(evaluation.reliability, most)
        assert drawn in comparison_page(found)
        counts = Page(drawn).all("rect", "bar")[len(side) :]
        for bar, (rect, _) in zip(side, counts, strict=True):
            if bar.count > most / 20:  # less is drawn a little higher, to be seen
                per_sample.append(float(rect["height"] or 0) / math.sqrt(bar.count))
    assert per_sample == pytest.approx([per_sample[0]] * len(per_sample), rel=0.01)


def test_both_risk_coverage_curves_are_in_one_picture(found: Comparison) -> None:
    page = Page(comparison_page(found))
    assert len(page.drawn("path", "curve")) == 2 and len(page.drawn("path", "was")) == 1
    drawn = charts.risk_coverage(found.after.risk_coverage, found.before.risk_coverage)
    assert drawn in comparison_page(found)
    rows = [row for row in page.table("") if len(row) == 3 and row[0] == "100\u00a0%"]
    risks = [float(side.risk_coverage.risk[-1]) for side in (found.before, found.after)]
    assert rows == [["100\u00a0%", *(f"{100 * risk:.2f}\u00a0%" for risk in risks)]]


# ------------------------------------------------------------------------------------------------- classes and metrics


def test_classes_most_improved_and_most_worsened_first() -> None:
    found = compare(over_confident(800, 40), methods=["vector"], bootstrap=20)
    assert found.recommended.label == "vector"
    page = Page(comparison_page(found))
    errors = [class_errors(side.classwise) for side in (found.before, found.after)]
    change = (errors[1] - errors[0]).tolist()
    order = sorted(range(40), key=change.__getitem__)
    heads = [row[0] for row in page.table("changes") if row[2] == "Before"]
    rows = [row for row in page.table("changes") if row[2] != "Before"]
    worse = [j for j in reversed(order) if change[j] > 0][:MOST_CHANGED]
    assert heads == ["Most improved", "Most worsened"]
    assert [int(row[0]) for row in rows] == [*order[:MOST_CHANGED], *worse]
    digits = digits_for(max(float(e.max()) for e in errors))
    for name, _, before, after in rows:
        assert before == f"{100 * float(errors[0][int(name)]):.{digits}f}\u00a0%"
        assert after == f"{100 * float(errors[1][int(name)]):.{digits}f}\u00a0%"
    better = sum(value < 0 for value in change)
    assert f"{better} of 40 classes got better, {sum(value > 0 for value in change)} worse" in page.text
    (data,) = (text for a, text in page.all("script") if a.get("type") == "application/json")
    assert [int(row[0]) for row in json.loads(data)] == order


def test_class_changes_have_their_labels() -> None:
    logits, labels = random_predictions(300, 5)
    before, after = (evaluate(scale * logits, labels, from_logits=True, bootstrap=0) for scale in (1.0, 0.4))
    changes = class_changes(before.classwise, after.classwise, before.class_names)
    assert {int(entry.name): entry.labels for entry in changes} == dict(enumerate(torch.bincount(labels).tolist()))
    assert [entry.change for entry in changes] == sorted(entry.after - entry.before for entry in changes)


def test_every_metric_before_and_after(found: Comparison) -> None:
    rows = Page(comparison_page(found)).table("metrics both")[1:]
    assert len(rows) == len(found.before.rows)
    for (name, *values), old, new in zip(rows, found.before.rows, found.after.rows, strict=True):
        assert name.startswith(METRICS[old.metric].title)
        assert values == [f"{value_of(row)} {interval_of(row)}".strip() for row in (old, new)]


def test_provenance_is_complete(found: Comparison) -> None:
    text = Page(comparison_page(found)).text
    provenance = found.provenance
    for value in (*provenance.inputs.values(), *provenance.versions.values(), provenance.created):
        assert value in text
    assert ", ".join(provenance.settings["methods"]) in text


# ----------------------------------------------------------------------------------------------------- what users wrote


def test_text_of_users_is_escaped(found: Comparison) -> None:
    provenance = dataclasses.replace(found.provenance, command="temperance <i>x</i>", inputs={"<b>": "0" * 64})
    renamed = dataclasses.replace(found.test, source="a/<img src=x onerror=alert(3)>")
    changed = dataclasses.replace(found, test=renamed, provenance=provenance, split="split <u>so</u>")
    page = Page(comparison_page(changed))
    assert not page.all("img") and not page.all("u")
    assert len(page.all("script")) == 1  # ours
    assert page.all("h1")[0][1] == "<img src=x onerror=alert(3)>"
    assert set(NASTY) <= {text for _, text in page.all("th")}
    assert {WRONG, "temperance <i>x</i>"} <= {text for _, text in (*page.all("th"), *page.all("dd"))}
    assert not any(text == "x" for _, text in (*page.all("b"), *page.all("i")))


# --------------------------------------------------------------------------------------------------------------- sizes


def test_where_nothing_helps_there_is_no_before_and_after(left_alone: Comparison) -> None:
    assert left_alone.recommended is left_alone.baseline
    page = Page(comparison_page(left_alone))
    assert page.all("p", "verdict")[0][1].startswith("Leave it as it is")
    assert not page.all("span", "was") and len(page.drawn("path", "curve")) == 1
    assert len([a for a, _ in page.all("svg") if a.get("role") == "img"]) == 2
    assert not page.table("changes") and not page.table("metrics both") and page.table("classes")
    assert len([row for row in page.table("ranking") if len(row) > 1]) == 4


@pytest.mark.parametrize("methods", [["temperature"], ["identity"], [FAILING]])
@pytest.mark.parametrize(("n", "k"), [(2, 2), (9, 3), (300, 2)])
def test_any_size_is_a_page(methods: list[str], n: int, k: int) -> None:
    found = compare(over_confident(n, k), methods=methods, bootstrap=20)
    page = Page(comparison_page(found))
    for element in ("rect", "path", "i", "circle"):
        for attributes, _ in page.all(element):
            assert "nan" not in str(attributes) and "inf" not in str(attributes)


def test_a_thousand_classes_stay_small() -> None:
    names = tuple(f"a class with a rather long name, number {j}" for j in range(1000))
    found = compare(over_confident(1000, 1000, names), methods=["temperature"], bootstrap=20)
    text = comparison_page(found)
    assert len(text.encode()) < 1_000_000 and len(Page(text).all("tr")) < 250


def test_tens_of_thousands_of_classes_stay_small(found: Comparison) -> None:
    text = class_changes_section(many_classes(found.before), many_classes(found.before, seed=1))
    page = Page(text)
    assert len(text.encode()) < 250_000 and len(page.elements) < 2500
    assert "The 1,000 classes that changed most" in page.text and "The changes of all 32,000 classes" in page.text


# -------------------------------------------------------------------------------------------------------------- formats


def test_changes_have_a_true_sign_and_nothing_has_none() -> None:
    assert (points(0.0123), points(-0.0123), points(-0.00001)) == ("+1.23", "−1.23", "0.00")
    assert (signed(-0.5, 1), signed(0.0, 3)) == ("−0.5", "0.000")


def test_small_shares_get_more_digits() -> None:
    assert [digits_for(largest) for largest in (0.0, 1.0, 0.05, 0.004, 0.0004, 1e-9)] == [2, 2, 2, 3, 4, 4]


def test_a_mark_may_have_its_ends_in_either_order() -> None:
    assert mark("range", 60, 20) == mark("range", 20, 60) == '<i class="range" style="left:20.0%;width:40.0%"></i>'
