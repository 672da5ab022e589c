"""Evaluating: the same numbers as the metrics alone, whatever the source, and a verdict that fits them."""

import dataclasses
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from rich.console import Console

import temperance
from conftest import random_predictions
from temperance import Predictions, evaluate, interval
from temperance.calibrators import Identity
from temperance.errors import InputError
from temperance.jobs.statistics import NOT_BELOW_GAP
from temperance.metrics import METRICS, adaptive_ece, brier, eaurc, ece
from temperance.metrics.stats import TopLabels
from temperance.predictions import write_predictions
from temperance.report import write_report
from temperance.report.pages.evaluation import evaluation_page


def confident(n: int, gap: float, seed: int = 0) -> tuple[Any, Any]:
    """Two classes; says between 0.6 and 0.95 and is right `gap` less often than that."""
    generator = torch.Generator().manual_seed(seed)
    says = 0.6 + 0.35 * torch.rand(n, generator=generator).double()
    right = torch.rand(n, generator=generator) < says - gap
    return torch.stack([says, 1 - says], 1), (~right).long()


def test_rows_are_the_metrics() -> None:
    logits, labels = random_predictions(500, 4)
    found = evaluate(logits, labels, from_logits=True, metrics=["all"], n_bins=10, bootstrap=5)
    assert [row.metric for row in found.rows] == METRICS.names
    for row in found.rows:
        metric = METRICS[row.metric]
        options = {"n_bins": 10} if "n_bins" in metric.options else {}
        assert row.value == pytest.approx(metric(logits, labels, from_logits=True, **options), abs=1e-12)
        assert row.low <= row.value <= row.high or math.isnan(row.low)
        assert row.n == 500
    without = {row.metric for row in found.rows if math.isnan(row.low)}
    assert without - {"conditional-ece"} == {metric.name for metric in METRICS if metric.interval == "none"} | {
        "top-k-accuracy"  # of four classes five are always right
    }


def test_metrics_are_named_with_their_settings(tmp_path: Path) -> None:
    logits, labels = random_predictions(300, 4)
    names = "ece, ece:closed=left:n-bins=5, adaptive-ece:rule=interp, brier:mean_over_classes=true, eaurc:optimum=exact"
    found = evaluate(logits, labels, from_logits=True, metrics=names, n_bins=10, bootstrap=20)
    values = {row.metric: row.value for row in found.rows}
    assert list(values) == [
        "ece",
        "ece:closed=left:n_bins=5",
        "adaptive-ece:rule=interp",
        "brier:mean_over_classes=True",
        "eaurc:optimum=exact",
    ]
    expected = [
        ece(logits, labels, from_logits=True, n_bins=10),
        ece(logits, labels, from_logits=True, closed="left", n_bins=5),
        adaptive_ece(logits, labels, from_logits=True, rule="interp", n_bins=10),
        brier(logits, labels, from_logits=True, mean_over_classes=True),
        eaurc(logits, labels, from_logits=True, optimum="exact"),
    ]
    assert list(values.values()) == pytest.approx(expected, abs=1e-12)
    assert all(row.low < row.high for row in found.rows)
    out = io.StringIO()
    Console(file=out, width=80).print(found)
    assert "ECE (closed=left, n_bins=5)" in out.getvalue()
    assert "Brier (mean_over_classes=True)" in str(evaluation_page(found))
    with pytest.raises(InputError, match="there is no metric named 'ecce'"):
        evaluate(logits, labels, from_logits=True, metrics="ecce:n_bins=5")
    with pytest.raises(InputError, match="ece: closed must be"):
        evaluate(logits, labels, from_logits=True, metrics="ece:closed=up")
    with pytest.raises(InputError, match="no setting"):
        evaluate(logits, labels, from_logits=True, metrics="nll:n_bins=5")


def test_a_metric_without_an_interval_shows_none(tmp_path: Path) -> None:
    found = evaluate(*random_predictions(300, 4), from_logits=True, metrics=["ece", "mce"], bootstrap=20)
    of_ece, of_mce = json.loads(found.to_json())["rows"]
    assert (of_mce["low"], of_mce["high"]) == (None, None) and of_ece["low"] < of_ece["high"]
    assert found.to_pandas()["low"].isna().tolist() == [False, True]
    out = io.StringIO()
    Console(file=out, width=80).print(found)
    (told,) = [line.split("│") for line in out.getvalue().splitlines() if line.startswith("│ MCE ")]
    assert told[3].strip() == ""
    write_report(found, tmp_path / "page.html")
    cells = re.findall(r"<td[^>]*>(.*?)</td>", (tmp_path / "page.html").read_text(encoding="utf-8").split(">MCE<")[1])
    assert cells[1] == ""


@pytest.mark.parametrize(("wrong", "said"), [(0, "none is wrong"), (1, "1 is wrong"), (19, "19 are wrong"), (20, "")])
def test_intervals_need_mistakes(wrong: int, said: str) -> None:
    """No resample has a mistake that the data lack; and the other way round."""
    confidence = torch.linspace(0.6, 0.95, 200, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = (torch.arange(200) % 10 == 5).cumsum(0).le(wrong) & (torch.arange(200) % 10 == 5)
    for truth, what in ((labels.long(), "wrong"), ((~labels).long(), "right")):
        found = evaluate(probs, truth, bootstrap=20)
        assert [math.isnan(found.row(name).low) for name in ("accuracy", "nll", "ece")] == [bool(said)] * 3
        notes = [note for note in found.notes if "intervals" in note]
        assert [note.endswith(f"and {said.replace('wrong', what)}.") for note in notes] == [True] * bool(said)
        assert math.isnan(interval(METRICS["nll"], probs, truth, n_resamples=20).low) == bool(said)


def test_intervals_need_mistakes_that_weigh_as_much_as_others() -> None:
    probs, labels = confident(600, 0.1)
    right = (labels == 0).numpy()
    few = evaluate(probs, labels, weights=3.0 * (right | (np.cumsum(~right) <= 4)), bootstrap=20)
    needed = "There are no intervals: they need 20 right and 20 wrong predictions"
    assert f"{needed} of equal weight, and by their weights the wrong ones are worth 4." in few.notes
    # Light mistakes do not show how often heavy predictions are wrong, and the other way round.
    for weights, what in ((np.where(right, 1.5, 0.01), "wrong"), (np.where(right, 0.01, 1.5), "right")):
        uneven = evaluate(probs, labels, weights=weights, bootstrap=20)
        assert any(note.startswith(needed) and f"the {what} ones are worth" in note for note in uneven.notes)
        assert math.isnan(uneven.row("ece").low)
    alike = evaluate(probs, labels, weights=1.5 + (np.arange(600) % 2), bootstrap=20)
    assert not any("intervals" in note for note in alike.notes) and not math.isnan(alike.row("ece").low)
    data = Predictions.of(probs, labels, groups=np.where(right & (np.arange(600) % 2 == 0), "all right", "others"))
    found = evaluate(data, by_group=True, bootstrap=20, metrics=["ece"])
    assert [math.isnan(found.row("ece", group=name).low) for name in ("all right", "others")] == [True, False]
    assert found.notes[1].startswith("1 of 2 groups has no intervals")


def test_the_interval_of_the_ece_is_not_below_that_of_the_gap() -> None:
    for seed in range(5):
        logits, labels = random_predictions(300, 3, seed, sharpness=1.6)
        found = evaluate(logits, labels, from_logits=True, metrics=["confidence-gap", "ece", "rms-ce"], bootstrap=50)
        gap = found.row("confidence-gap")
        for name in ("ece", "rms-ce"):
            error = found.row(name)
            assert max(gap.low, -gap.high, 0) <= error.low <= error.value <= error.high
            assert error.high >= max(gap.high, -gap.low)


def test_an_interval_does_not_depend_on_the_other_metrics() -> None:
    logits, labels = random_predictions(300, 4)
    alone = evaluate(logits, labels, from_logits=True, metrics=["ece"], bootstrap=50)
    among = evaluate(logits, labels, from_logits=True, bootstrap=50)
    assert alone.row("ece").low == among.row("ece").low


def test_headline_metrics_are_the_default_in_their_order() -> None:
    probs, labels = confident(100, 0.1)
    found = [METRICS[row.metric] for row in evaluate(probs, labels, bootstrap=0).rows]
    assert [metric.headline for metric in found] == sorted(m.headline for m in METRICS if m.headline)


def test_names_may_be_one_text_as_on_the_command_line() -> None:
    probs, labels = confident(100, 0.1)
    for metrics in ("ece, nll", "ece,nll,ece"):
        assert [row.metric for row in evaluate(probs, labels, metrics=metrics, bootstrap=0).rows] == ["ece", "nll"]
    with pytest.raises(InputError, match="there is no metric named 'eec'; did you mean ece"):
        evaluate(probs, labels, metrics="eec")
    with pytest.raises(InputError, match="there is no calibrator named 'temprature'; did you mean temperature"):
        temperance.compare(probs, labels, methods="temprature")


def test_groups(tmp_path: Path) -> None:
    probs, labels = confident(300, 0.1)
    groups = np.array(["a", "b", "a"] * 100)
    write_predictions(tmp_path / "p.npz", Predictions.of(probs, labels, groups=groups))
    found = evaluate(tmp_path / "p.npz", by_group=True, bootstrap=0, metrics=["ece"])
    mask = torch.tensor(groups == "b")
    assert found.row("ece", group="b").value == pytest.approx(ece(probs[mask], labels[mask]))
    assert (found.row("ece", group="b").n, found.row("ece").n) == (100, 300)
    out = io.StringIO()
    Console(file=out, width=160).print(found)
    assert out.getvalue().count("Expected calibration error") == 1  # explained once, not for each group
    assert re.findall(r"│ (all|a|b) +│ +(\d+) │", out.getvalue()) == [("all", "300"), ("a", "200"), ("b", "100")]


def test_groups_are_measured_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has the values of its rows alone, however its rows are spread over the blocks."""
    monkeypatch.setattr("temperance.jobs.measuring.CHUNK_VALUES", 30)
    logits, labels = random_predictions(1_000, 3)
    groups = np.random.default_rng(0).permutation(np.repeat(["a", "b", "c"], [700, 280, 20]))
    data = Predictions.of(logits, labels, from_logits=True, groups=groups)
    reading = Mock(side_effect=data.chunks)
    monkeypatch.setattr(Predictions, "chunks", reading)
    found = evaluate(data, by_group=True, bootstrap=0, metrics=METRICS.names)
    assert reading.call_count == 2  # the sizes of the groups, then their values
    monkeypatch.undo()
    for name in ("a", "b", "c"):
        alone = evaluate(data.select(groups == name), bootstrap=0, metrics=METRICS.names)
        for row in alone.rows:
            assert found.row(row.metric, group=name).value == pytest.approx(row.value, rel=1e-6, nan_ok=True), row


def test_the_logits_of_a_small_group_may_look_like_probabilities() -> None:
    """Of a binary classifier, a logit of 1 makes the row 0, 1, which sums to 1."""
    logits = torch.cat([random_predictions(50, 2)[0].diff()[:, 0], torch.ones(2, dtype=torch.float64)])
    data = Predictions.of(logits, [0, 1] * 26, from_logits=True, positive=1, groups=["a"] * 50 + ["b"] * 2)
    found = evaluate(data, by_group=True, bootstrap=0, metrics=["nll"])
    assert found.row("nll", group="b").value == pytest.approx(math.log1p(math.e) - 0.5)
    with pytest.raises(InputError, match="these logits are probabilities"):
        evaluate(data.select([50, 51]), bootstrap=0)


def test_very_many_groups_have_fewer_resamples() -> None:
    """An interval takes a moment, and there is one for every metric and group."""
    logits, labels = random_predictions(8_400, 3)
    of_group = Predictions.of(logits, labels, from_logits=True, groups=np.arange(8_400) % 140)
    found = evaluate(of_group, by_group=True, bootstrap=500, metrics=["nll"])
    assert "With 140 groups, the intervals of each rest on 357 resamples instead of 500." in found.notes
    assert found.row("nll") == dataclasses.replace(
        evaluate(of_group, bootstrap=500, metrics=["nll"]).row("nll"), seconds=found.row("nll").seconds
    )
    few = evaluate(of_group, by_group=True, bootstrap=300, metrics=["nll"])
    assert not any("resamples instead" in note for note in few.notes)


def test_small_groups_are_said_to_be_small() -> None:
    probs, labels = confident(600, 0.1)
    data = Predictions.of(probs, labels, groups=["a"] * 560 + ["b"] * 30 + ["c"] * 10)
    found = evaluate(data, by_group=True, bootstrap=20, metrics=["ece"])
    assert [math.isnan(found.row("ece", group=name).low) for name in "abc"] == [False, True, True]
    assert found.notes[1].startswith("2 of 3 groups have no intervals, which need 20 right and 20 wrong predictions.")
    assert "Where there is no interval, the samples cannot say how the group compares." in evaluation_page(found)
    large = evaluate(data.select(np.arange(560)), by_group=True, bootstrap=20, metrics=["ece"])
    assert not large.notes and "Where there is no interval" not in evaluation_page(large)
    assert len(evaluate(data, by_group=True, bootstrap=0, metrics=["ece"]).notes) == 1


def test_other_classes_than_the_predicted_one_are_noted_where_they_are_off() -> None:
    """The second and the fourth of four probabilities change places, which the predicted class does not show."""
    generator = torch.Generator().manual_seed(0)
    probs = (1.5 * torch.randn(4000, 4, generator=generator, dtype=torch.float64)).softmax(1)
    labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    order = probs.argsort(1, descending=True)
    swapped = probs.clone().scatter_(1, order[:, [1, 3]], probs.gather(1, order[:, [3, 1]]))
    found = evaluate(swapped, labels, metrics="classwise-ece", bootstrap=50)
    assert found.verdict.startswith("No miscalibration found ")
    row = found.row("classwise-ece")
    assert found.notes == (
        "The verdict is about predicted classes alone. The probabilities of other classes seem to be off: classwise "
        f"ECE, which is about all classes, is {100 * row.value:.2f} %, and its interval begins at "
        f"{100 * row.low:.2f} %.",
    )
    assert not evaluate(probs, labels, metrics="classwise-ece", bootstrap=50).notes


def test_equal_confidences_are_noted_where_the_order_of_the_rows_decides() -> None:
    """Stated confidences, 70 or 90 %, of which the wrong ones come first."""
    probs, labels = torch.tensor([[0.9, 0.1], [0.7, 0.3]]).repeat(100, 1), (torch.arange(200) < 60).long()
    averaged = METRICS["aurc"](probs, labels, ties="mean")
    assert evaluate(probs, labels, metrics="accuracy,aurc", bootstrap=0).notes == (
        "Some confidences are equal, so AURC and E-AURC depend on the order of the rows. If tied samples share their "
        f"mistakes equally, AURC is {100 * averaged:.2f} %.",
    )
    assert evaluate(probs, labels, metrics="adaptive-ece,aurc", bootstrap=20, n_bins=2).notes == (
        "Some confidences are equal, so AURC and E-AURC depend on the order of the rows. If tied samples share their "
        f"mistakes equally, AURC is {100 * averaged:.2f} %.",
    )
    assert evaluate(probs, labels, metrics="adaptive-ece,aurc", bootstrap=20).notes == (
        "Some confidences are equal, so adaptive ECE, AURC and E-AURC depend on the order of the rows. If tied samples "
        f"share their mistakes equally, adaptive ECE is 10.00 % and AURC {100 * averaged:.2f} %.",
    )
    distinct, truth = confident(200, 0.1)
    assert not evaluate(distinct, truth, metrics="adaptive-ece,aurc", bootstrap=20).notes
    assert not evaluate(probs, labels, metrics="accuracy", bootstrap=20).notes


@pytest.mark.parametrize("weights", [None, [1, 2, 3, 1, 0.5, 1]])
def test_rows_that_are_equal_in_the_order_share_the_mean(weights: list[float] | None) -> None:
    weigh = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    found = TopLabels(torch.tensor([0.9, 0.6, 0.9, 0.6, 0.7, 0.9]), torch.arange(6) < 2, weigh).level()
    assert found.confidence.tolist() == pytest.approx([0.6, 0.6, 0.7, 0.9, 0.9, 0.9])
    low, high = (1 / 2, 1 / 3) if weights is None else (2 / 3, 1 / 5)
    assert found.correct.tolist() == pytest.approx([low, low, 0, high, high, high])


def test_a_group_without_a_name_is_not_the_whole() -> None:
    probs, labels = confident(100, 0.1)
    found = evaluate(Predictions.of(probs, labels, groups=[""] * 40 + ["b"] * 60), by_group=True, bootstrap=0)
    assert {(row.group, row.n) for row in found.rows} == {("", 100), ("(no name)", 40), ("b", 60)}


def test_dense_predictions_with_ignored_pixels() -> None:
    probs, labels = confident(60, 0.1)
    dense = probs.reshape(3, 4, 5, 2).movedim(-1, 1)
    truth = labels.reshape(3, 4, 5).clone()
    truth[0] = 255
    found = evaluate(dense, truth, ignore_index=255, bootstrap=0)
    assert found.row("ece").value == pytest.approx(ece(probs[20:], labels[20:])) and found.row("ece").n == 40


def test_rows_are_counted_with_those_that_are_ignored() -> None:
    probs, truth = np.full((20, 3), 1 / 3), np.arange(20) % 3
    truth[:5], probs[7, 1] = -100, np.nan
    with pytest.raises(InputError, match="row 7, class 1 is nan"):
        evaluate(probs, truth, ignore_index=-100)


def test_a_calibrator_is_measured() -> None:
    logits, labels = random_predictions(200, 3)
    plain = evaluate(logits, labels, from_logits=True, bootstrap=0)
    same = evaluate(logits, labels, from_logits=True, bootstrap=0, calibrator=Identity().fit(logits, labels))
    assert same.row("nll").value == pytest.approx(plain.row("nll").value, abs=1e-9)
    assert same.rows[0].method == "identity" and plain.rows[0].method == "uncalibrated"
    probs = torch.tensor([[1.0, 0.0], [0.3, 0.7], [0.6, 0.4]])
    from_probs = evaluate(probs, [0, 1, 0], bootstrap=0, calibrator=Identity().fit([[0.0, 1.0]] * 2, [0, 1]))
    assert from_probs.row("nll").value == pytest.approx(evaluate(probs, [0, 1, 0], bootstrap=0).row("nll").value)


@pytest.mark.parametrize(
    ("gap", "word"), [(0.15, "Over-confident."), (-0.05, "Under-confident."), (0.0, "No miscalibration found ")]
)
def test_the_verdict_says_which_way(gap: float, word: str) -> None:
    found = evaluate(*confident(20_000, gap), bootstrap=0).verdict
    assert found.startswith(word)
    assert ("To correct it without retraining, run `temperance compare`" in found) == (gap != 0)


def test_the_verdict_sees_errors_that_cancel() -> None:
    over, under = confident(10_000, 0.12), confident(10_000, -0.05, seed=1)
    wide = torch.cat([over[0] * 0 + torch.tensor([0.95, 0.05], dtype=torch.float64), under[0]])
    labels = torch.cat([(torch.rand(10_000, generator=torch.Generator().manual_seed(2)) > 0.9).long(), under[1]])
    assert evaluate(wide, labels, bootstrap=0).verdict.startswith("Over-confident in some places")


def test_the_verdict_names_the_classes() -> None:
    logits, labels = random_predictions(3000, 5, sharpness=3.0)
    found = evaluate(
        Predictions.of(logits, labels, from_logits=True, class_names=["ant", "bee", "cat", "dog", "eel"]), bootstrap=0
    )
    assert re.search(r"when it predicts (ant|bee|cat|dog|eel), it is [\d.]+ % sure on average and right", found.verdict)


def test_json_csv_and_table_agree() -> None:
    found = evaluate(*confident(50, 0.1), bootstrap=0)
    as_json = json.loads(found.to_json())
    assert as_json["rows"][0]["value"] == found.rows[0].value
    assert as_json["rows"][0]["low"] is None  # no resamples, no interval
    assert as_json["provenance"]["versions"]["temperance"] == temperance.__version__
    assert found.to_csv().count("\n") == len(found.rows) + 1
    for width in (60, 80, 140):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(found)
        text = console.export_text()
        assert "accuracy" in text and max(map(len, text.splitlines())) <= width


def test_one_sample() -> None:
    found = evaluate([[0.6, 0.4]], [0], bootstrap=5)
    assert found.row("accuracy").value == 1 and found.verdict.startswith("One sample cannot tell.")


def test_wrong_calls() -> None:
    with pytest.raises(InputError, match="arrays need labels"):
        evaluate([[0.6, 0.4]])
    with pytest.raises(InputError, match="brings its own labels"):
        evaluate("file.npz", [0])
    with pytest.raises(InputError, match="no metric named 'eec'; did you mean"):
        evaluate([[0.6, 0.4]], [0], metrics=["eec"])
    with pytest.raises(InputError, match="no row for 'nonsense' of method 'beta'"):
        evaluate([[0.6, 0.4]], [0], bootstrap=0).row("nonsense", method="beta")
    with pytest.raises(InputError, match="every label is ignore_index=0"):
        evaluate(Predictions.of([[0.6, 0.4]], [0]), ignore_index=0)
    with pytest.raises(InputError, match=r"these logits are probabilities .* pass them as probs"):
        evaluate([[0.6, 0.4], [0.3, 0.7]], [0, 1], from_logits=True)
    for seed in (-1, 1.5, 1 << 64):
        with pytest.raises(InputError, match="seed must be"):
            evaluate([[0.6, 0.4]], [0], seed=seed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="level must be a number above 0 and below 1"):
        evaluate([[0.6, 0.4]], [0], level=95, bootstrap=0)  # before anything is measured


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    evaluate(*confident(50, 0.1), bootstrap=0, progress=lambda done, steps, what: told.append((done, steps)))
    assert told == sorted(told) and told[-1][0] == told[-1][1]


def test_predictions_without_labels_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="the predictions have no labels"):
        evaluate(Predictions.of([[0.9, 0.1], [0.2, 0.8]]), bootstrap=0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/somewhere/temperance/__main__.py", "evaluate", "my file.npz"], "temperance evaluate 'my file.npz'"),
        (["/somewhere/bin/temperance", "evaluate", "a.npz"], "temperance evaluate a.npz"),
        (["/mine/__main__.py"], "__main__.py"),
    ],
)
def test_the_command_is_kept_as_it_is_typed(arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert evaluate([[0.9, 0.1]], [0], bootstrap=0, metrics=["nll"]).provenance.command == said


def test_labels_that_all_have_a_probability_of_zero() -> None:
    (note,) = evaluate([[1.0, 0.0]] * 2, [1, 1], bootstrap=0, metrics=["nll"]).notes
    assert note.startswith("2 labels have a probability of 0") and "other" not in note
    (note,) = evaluate([[1.0, 0.0]] * 2, [1, 0], bootstrap=0, metrics=["nll"]).notes
    assert note.endswith("; on the other 1 sample it is 0.0000.")


@pytest.mark.parametrize("sharpness", [3.0, 0.4])
def test_errors_and_their_intervals_are_not_below_the_gap(sharpness: float) -> None:
    logits, labels = random_predictions(600, 4, sharpness=sharpness)
    names = [*sorted(NOT_BELOW_GAP), "ece:n_bins=5", "adaptive-ece:rule=sorted"]
    found = evaluate(logits, labels, from_logits=True, metrics=["confidence-gap", *names], bootstrap=60)
    gap = found.row("confidence-gap")
    low, high = sorted((abs(gap.low), abs(gap.high))) if gap.low * gap.high > 0 else (0.0, max(-gap.low, gap.high))
    for name in names:
        row = found.row(name)
        assert row.value >= abs(gap.value) - 1e-9
        assert row.low >= min(low, row.value) - 1e-9 and row.high >= high - 1e-9, name
        (alone,) = evaluate(logits, labels, from_logits=True, metrics=[name], bootstrap=60).rows
        assert (alone.low, alone.high) == (row.low, row.high)
