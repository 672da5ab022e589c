"""The pages of a training and of a retraining hold their numbers, load nothing, and draw what the log says."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conftest import random_predictions
from pages import Page
from temperance.calibrators import make_calibrator
from temperance.heads import make_head
from temperance.heads.change import differences
from temperance.heads.retraining import OWN, STAND_IN, Retrained
from temperance.jobs.evaluation import evaluate
from temperance.jobs.results import Provenance
from temperance.predictions import Predictions
from temperance.report import write_report
from temperance.report.formats import duration
from temperance.report.pages.training import retraining_page, run_page, training_section
from temperance.report.svg.lines import Line, line_chart, unbroken
from temperance.training.run import Run

NASTY = "<script>alert(1)</script>"


def predictions(seed: int) -> Predictions:
    logits, labels = random_predictions(300, 4, seed, sharpness=4.0)
    return Predictions.of(logits, labels, from_logits=True, class_names=(NASTY, "b", "c", "d"))


def history(epochs: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "epoch": e,
            "lr": 0.1 / e,
            "loss": 2 / e,
            "accuracy": 1 - 1 / (e + 1),
            "val_accuracy": 0.8 - 0.5 / e,
            "val_ece": 0.1 + 0.01 * e,
            "val_loss": 1.0,
            "val_nll": 1.0,
            "seconds": 2.0,
            **more,
        }
        for e in range(1, epochs + 1)
    ]


def a_run(rows: list[dict[str, Any]], folder: Path | None = None, **job: Any) -> Run:
    parts = {"val": predictions(0), "test": predictions(1)}
    return Run(torch.nn.Linear(2, 2), (0.5,), (0.2,), rows, parts, folder, {"job": job} if job else {})


def page_of(run: Run) -> str:
    found = evaluate(run.predictions["test"], bootstrap=0)
    return run_page(run, found, found.provenance)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(page_of(a_run(history(10), data="digits", network=NASTY, loss="focal:gamma=3", clip=None)))


# --------------------------------------------------------------------------------------------------------- a training


def test_it_says_what_was_trained_and_how_it_did(page: Page) -> None:
    (about,) = page.all("p", "about")
    assert about[1] == f"{NASTY} · digits · focal:gamma=3 · 10 epochs · measured on 300 test images"
    assert page.all("p", "verdict") == [({"class": "verdict"}, "Over-confident.")]
    assert "It took 20 s, 2 s an epoch." in page.text
    assert {"Loss", "Accuracy", "Calibration error", "Learning rate"} <= {text for _, text in page.all("b")}
    assert ({}, "clip") in page.all("dt") and ({}, "none") in page.all("dd")


def test_it_has_the_sections_of_an_evaluation(page: Page) -> None:
    assert len(page.all("h1")) == 1 and len(page.all("h2")) == 6
    assert all(a.get("aria-label") or a.get("aria-hidden") for a, _ in page.all("svg"))
    assert not page.all("script", NASTY)


def test_intervals_are_shown_where_there_are_any() -> None:
    run = a_run(history(2))
    for bootstrap in (0, 20):
        found = evaluate(run.predictions["test"], bootstrap=bootstrap)
        page = Page(run_page(run, found, found.provenance))
        # Those of the bins of the reliability diagram need no resamples.
        numbers = page.text[page.text.index("Every number") :]
        assert ("interval" in numbers) == bool(bootstrap) == bool(re.search(r"between \d", page.text))
        assert "nan" not in page.text and " – " not in numbers


def test_a_warning_about_a_network_that_hardly_learnt_comes_first() -> None:
    labels = torch.arange(300) % 4
    guess = Predictions.of(
        0.1 * torch.randn(300, 4, generator=torch.Generator().manual_seed(0)), labels, from_logits=True
    )
    page = Page(page_of(replace(a_run(history(1)), predictions={"val": guess, "test": guess})))
    assert page.all("p", "verdict") == [({"class": "verdict"}, "It is no better than guessing.")]
    assert "always predicting the most frequent class would be right 25.0\u00a0% of the time" in page.text
    assert "1 epoch ·" in page.text


def test_nothing_is_loaded() -> None:
    text = page_of(a_run(history(3), network=NASTY))
    assert NASTY not in text
    assert not re.search(r"https?://|@import|url\(", text)


def test_curves_go_through_the_log() -> None:
    rows = history(6)
    drawn = Page(str(line_chart([Line("loss", [(r["epoch"], r["loss"]) for r in rows])], y_title="", x_title="epoch")))
    (path,) = [a["d"] for a, _ in drawn.all("path", "line")]
    points = [tuple(map(float, p.split(","))) for p in (path or "")[1:].split("L")]
    for (x, y), row in zip(points, rows, strict=True):
        share = (x - points[0][0]) / (points[-1][0] - points[0][0])
        assert share == pytest.approx((row["epoch"] - 1) / 5, abs=1e-3)
        height = (y - points[-1][1]) / (points[0][1] - points[-1][1])
        assert height == pytest.approx((row["loss"] - rows[-1]["loss"]) / (2 - rows[-1]["loss"]), abs=1e-2)


def test_mixtures_have_no_training_accuracy() -> None:
    lines = [Page(page_of(a_run(rows))).drawn("path", "line") for rows in (history(4), history(4, accuracy=None))]
    assert [len(found) for found in lines] == [6, 5]


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_short_trainings(epochs: int) -> None:
    page = Page(page_of(a_run(history(epochs))))
    assert len(page.all("circle", "point")) == (6 if epochs else 0) * epochs


def test_the_provenance_is_that_of_the_training(tmp_path: Path) -> None:
    about = '{"temperance_run": 1, "provenance": {"inputs": {}, "settings": {"lr": 1}, "seed": 77, "device": "cuda:3", '
    about += '"versions": {}, "commit": "", "command": "temperance train digits", "created": "then"}}'
    (tmp_path / "run.json").write_text(about)
    write_report(a_run(history(2), tmp_path), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "cuda:3" in text and "temperance train digits" in text and f"<h1>{tmp_path.name}</h1>" in text


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=30))
def test_any_curve_can_be_drawn(values: list[float]) -> None:
    points = list(enumerate(values))
    pieces = unbroken([(float(x), y) for x, y in points])
    assert sum(map(len, pieces)) == sum(map(math.isfinite, values))
    if pieces:
        drawn = Page(str(line_chart([Line("a", points)], y_title="y", x_title="x")))
        assert len(drawn.all("path", "line")) == len(pieces)
        assert "nan" not in str([a for a, _ in drawn.all("path")])


@pytest.mark.parametrize(("seconds", "said"), [(0.1234, "0.123 s"), (89, "89 s"), (130, "2.17 min"), (7200, "2 h")])
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


# ------------------------------------------------------------------------------------------------------- a retraining


Pair = tuple[Predictions, Predictions]


@pytest.fixture(scope="module")
def pair() -> Pair:
    fit, test = predictions(0), predictions(1)
    calibrated = make_calibrator("temperature").fit(fit.scores, fit.labels)(test.scores)
    return test, Predictions.of(calibrated, test.labels, from_logits=True, class_names=test.class_names)


def retrained(
    before: Predictions, after: Predictions, rows: list[dict[str, Any]], bootstrap: int = 60, replaced: str = OWN
) -> Retrained:
    old, new = (evaluate(side, bootstrap=bootstrap) for side in (before, after))
    by = differences(before, after, bootstrap=bootstrap, seed=0)
    on_val = differences(before, after, bootstrap=200, seed=0)
    head = make_head("mac-cal")
    head.history, head.seconds = rows, 12.345
    return Retrained(
        before=old,
        after=new,
        replaced=replaced,
        differences=by,
        head=head,
        predictions={"val": after, "test": after},
        val_differences=on_val,
        provenance=Provenance.of({}, {}, 3),
    )


def shown_on_terminal(found: Retrained) -> str:
    said = io.StringIO()
    Console(file=said, width=100).print(found)
    return said.getvalue()


def test_what_changed(pair: Pair) -> None:
    rows = [{"epoch": e, "loss": 1.0 / e, "keep_rate": 0.5 - 0.01 * e, "val_nll": 2.0 / e} for e in range(1, 6)]
    found = retrained(*pair, rows)
    page = Page(retraining_page(found))
    assert page.all("p", "verdict") == [({"class": "verdict"}, "Better in NLL and ECE.")]
    assert "Keep rate" in {text for _, text in page.all("b")} and "After mac-cal" in {t for _, t in page.all("b")}
    assert "With mac-cal in place of the network's classifier, accuracy stays at " in found.verdict
    was = [text for _, text in page.all("span", "was")]
    assert was[2] == f"{100 * found.before.row('ece').value:.2f}\u00a0%"
    assert len(re.findall(r"between [+−\d]", page.text)) == 3


def test_a_worse_head_and_no_change(pair: Pair) -> None:
    before, after = pair
    worse = retrained(after, before, [])
    assert worse.verdict.startswith("Worse in NLL and ECE.") and worse.verdict.endswith(worse.warning)
    assert worse.warning in " ".join(Page(retraining_page(worse)).text.split())
    assert retrained(before, before, []).verdict.startswith("No clear change.")
    assert "get there" not in retraining_page(retrained(before, before, []))


def test_without_resamples_there_is_no_verdict(pair: Pair) -> None:
    found = retrained(*pair, [], bootstrap=0)
    assert found.verdict.startswith("No verdict without at least 60 resamples. With mac-cal")
    assert "chance" not in found.verdict
    page = Page(retraining_page(found))
    assert not re.search(r"between [+−\d]", page.text) and "nan" not in page.text
    assert "In small print" not in page.text
    assert "95 % interval" not in shown_on_terminal(found) and "95 % interval" in shown_on_terminal(
        retrained(*pair, [])
    )


def test_the_duration_is_shown(pair: Pair) -> None:
    assert "mac-cal took 12.3 s to train" in shown_on_terminal(retrained(*pair, []))


def test_confidence_and_accuracy_are_drawn_under_the_part_that_they_were_measured_on(pair: Pair) -> None:
    on_training = [{"epoch": e, "loss": 1.0, "confidence": 0.9, "accuracy": 0.8} for e in range(1, 4)]
    on_val = [{"epoch": e, "loss": 1.0, "val_confidence": 0.9, "val_accuracy": 0.8} for e in range(1, 4)]
    titles = [
        {text for _, text in Page(retraining_page(retrained(*pair, rows))).all("b")} for rows in (on_training, on_val)
    ]
    train, held_out = (f"Confidence and accuracy on {part} samples" for part in ("training", "held-out"))
    assert train in titles[0] - titles[1] and held_out in titles[1] - titles[0]


def test_the_replaced_classifier_is_named(pair: Pair) -> None:
    found = retrained(*pair, [], bootstrap=0, replaced=STAND_IN)
    assert f"in place of {STAND_IN}" in found.verdict and "without a classifier of their network" in found.verdict
    (about,) = Page(retraining_page(found)).all("p", "about")
    assert f"before: {STAND_IN}" in about[1]


def test_a_column_that_is_never_finite_is_not_drawn() -> None:
    page = Page(training_section(history(3, val_loss=math.nan, val_ece=math.nan)))
    captions = [text for _, text in page.all("figcaption")] + [text for _, text in page.all("b")]
    assert "Loss" in captions and "Calibration error" not in captions
    assert "nan" not in page.text.lower()
