"""Rows that are measured block by block give what all rows together give, however they are cut and in any order."""

import math
import pickle
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch

from commands import run
from conftest import random_predictions
from temperance import Predictions, abstain, apply, combine, compare, evaluate, statistics
from temperance.calibrators import Temperature
from temperance.errors import InputError, TemperanceWarning
from temperance.jobs.evaluation import Evaluation
from temperance.jobs.ood import compare_ood
from temperance.jobs.statistics import Statistics
from temperance.metrics import METRICS
from temperance.predictions import write_predictions

N, K = 3000, 4
LOGITS, LABELS = random_predictions(N, K)
GROUPS = np.array(["a", "b", "c"])[np.arange(N) % 3]

# Metrics that compare all pairs of rows would take most of the time.
METRIC_NAMES = [metric.name for metric in METRICS if not metric.quadratic]


def cuts(sizes: list[int]) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]


CUTTINGS = {"one": [N], "equal": [500] * 6, "odd": [1, 7, 1492, 3, 997, 500], "tiny": [50] * 60}


def measured(sizes: list[int], metrics: list[str], **options: Any) -> list[Statistics]:
    """The statistics of each block, sent through pickle as to another process."""
    found = [
        statistics(LOGITS[rows], metrics, labels=LABELS[rows], from_logits=True, **options) for rows in cuts(sizes)
    ]
    return [pickle.loads(pickle.dumps(each)) for each in found]


@cache
def all_rows() -> Evaluation:
    return evaluate(LOGITS, LABELS, from_logits=True, metrics=METRIC_NAMES, bootstrap=0)


def same_values(found: Evaluation, expected: Evaluation) -> None:
    assert len(found.rows) == len(expected.rows)
    for one, other in zip(found.rows, expected.rows, strict=True):
        assert (one.metric, one.group, one.n, one.method) == (other.metric, other.group, other.n, other.method)
        assert one.value == pytest.approx(other.value, abs=1e-12, nan_ok=True), one.metric


@pytest.mark.parametrize("sizes", CUTTINGS.values(), ids=CUTTINGS)
@pytest.mark.parametrize("intervals", [True, False], ids=["parts", "whole"])
def test_blocks_give_what_all_rows_give(sizes: list[int], intervals: bool) -> None:
    expected, found = all_rows(), measured(sizes, METRIC_NAMES, intervals=intervals)
    combined = combine(found, bootstrap=0)
    same_values(combined, expected)
    assert combined.verdict == expected.verdict
    # Without ties the order of the blocks makes no difference.
    same_values(combine(found[::-1], bootstrap=0), expected)


@pytest.mark.parametrize("weights", [np.arange(N) % 4, 0.25 + np.arange(N) % 3], ids=["whole", "shares"])
@pytest.mark.parametrize("intervals", [True, False], ids=["parts", "whole"])
def test_blocks_of_weighted_rows_give_what_all_rows_give(weights: Any, intervals: bool) -> None:
    names = [name for name in METRIC_NAMES if not METRICS[name].whole_weights]
    expected = evaluate(LOGITS, LABELS, from_logits=True, weights=weights, metrics=names, bootstrap=0)
    found = [
        statistics(
            LOGITS[rows], names, labels=LABELS[rows], from_logits=True, weights=weights[rows], intervals=intervals
        )
        for rows in cuts([1200, 7, 1793])
    ]
    same_values(combine(found, bootstrap=0), expected)
    assert combine(found, bootstrap=0).verdict == expected.verdict
    block = {"probs": LOGITS[:50].softmax(1).numpy(), "label": LABELS[:50].numpy(), "weight": weights[:50]}
    one = combine([statistics(block, ["nll"], intervals=False)]).row("nll").value
    same = evaluate(LOGITS[:50], LABELS[:50], from_logits=True, weights=weights[:50], metrics=["nll"], bootstrap=0)
    assert one == pytest.approx(same.row("nll").value, abs=1e-9)


def test_of_all_metrics_weighted_blocks_leave_out_those_that_count_samples() -> None:
    """A block does not know whether the weights of others are whole."""
    whole, shares = (
        statistics(LOGITS[:40], ["all"], labels=LABELS[:40], from_logits=True, weights=[each] * 40, intervals=False)
        for each in (2.0, 0.5)
    )
    counting = [metric.name for metric in METRICS if metric.whole_weights]
    found = combine([whole, shares])
    assert {row.metric for row in found.rows} == set(METRICS.names) - set(counting)
    assert counting and found.notes[-1].endswith(f"{', '.join(counting)}.")


def test_blocks_with_and_without_weights_do_not_add() -> None:
    with_weights = statistics(LOGITS, ["ece"], labels=LABELS, from_logits=True, weights=np.ones(N))
    with pytest.raises(InputError, match="one has weights, another no weights"):
        with_weights + statistics(LOGITS, ["ece"], labels=LABELS, from_logits=True)


def test_counts_are_equal_to_the_bit() -> None:
    expected = evaluate(LOGITS, LABELS, from_logits=True, metrics=["accuracy", "ece", "classwise-ece"], bootstrap=0)
    found = combine(measured(CUTTINGS["odd"], ["accuracy", "ece", "classwise-ece"]), bootstrap=0)
    assert found.row("accuracy").value == expected.row("accuracy").value
    for one, other in ((found.reliability, expected.reliability), (found.classwise, expected.classwise)):
        assert torch.equal(one.count, other.count) and torch.equal(one.hits, other.hits)
    for tally, other_tally in zip(found.tallies, expected.tallies, strict=True):
        assert torch.equal(tally.count, other_tally.count) and torch.equal(tally.hits, other_tally.hits)


def test_sums_of_sums_are_sums() -> None:
    a, b, c = measured([1000, 1500, 500], ["ece", "aurc"])
    assert ((a + b) + c).n == N
    same_values(combine([(a + b) + c], bootstrap=0), combine([a + (b + c)], bootstrap=0))
    # What is added stays as it was.
    assert (a.n, combine([a], bootstrap=0).row("ece").n) == (1000, 1000)


def test_intervals_are_those_of_an_evaluation_with_other_random_numbers() -> None:
    names = ["accuracy", "nll", "ece", "classwise-ece", "aurc"]
    expected = evaluate(LOGITS, LABELS, from_logits=True, metrics=names, bootstrap=500)
    for sizes in (CUTTINGS["equal"], CUTTINGS["tiny"]):
        found = combine(measured(sizes, names))
        for name in names:
            one, other = found.row(name), expected.row(name)
            assert one.low <= one.value <= one.high
            # Widths of 500 resamples scatter by some 5 %; those of classwise errors, cut at the value, by more.
            assert one.high - one.low == pytest.approx(other.high - other.low, rel=0.3), name


def test_groups_and_a_calibrator() -> None:
    calibrator = Temperature().fit(LOGITS, LABELS)
    whole = Predictions.of(LOGITS, LABELS, from_logits=True, groups=GROUPS)
    expected = evaluate(whole, by_group=True, calibrator=calibrator, metrics=["ece", "nll"], bootstrap=0)
    # The first block has one row, so not every group.
    blocks = [
        Predictions.of(LOGITS[rows], LABELS[rows], from_logits=True, groups=GROUPS[rows])
        for rows in cuts(CUTTINGS["odd"])
    ]
    found = [statistics(block, ["ece", "nll"], by_group=True, calibrator=calibrator) for block in blocks]
    same_values(combine(found, bootstrap=0), expected)


def test_a_block_may_be_a_table_a_dictionary_or_a_file(tmp_path: Path) -> None:
    write_predictions(tmp_path / "block.npz", Predictions.of(LOGITS, LABELS, from_logits=True))
    columns = {f"logits_{j}": LOGITS[:, j].numpy() for j in range(K)} | {"label": LABELS.numpy()}
    blocks: list[Any] = [
        pandas.DataFrame(columns),
        pyarrow.table(columns),
        columns,
        {"logits": LOGITS.numpy(), "label": LABELS.numpy()},
        tmp_path / "block.npz",
    ]
    expected = evaluate(LOGITS, LABELS, from_logits=True, metrics=["nll"], bootstrap=0)
    for block in blocks:
        found = combine([statistics(block, ["nll"])], bootstrap=0)
        assert found.row("nll").value == pytest.approx(expected.row("nll").value, abs=1e-12)


def test_statistics_of_fixed_size_do_not_grow() -> None:
    small, large = (
        statistics(LOGITS[:rows], ["ece", "nll", "classwise-ece"], labels=LABELS[:rows], from_logits=True)
        for rows in (10, N)
    )
    assert len(pickle.dumps(large)) == pytest.approx(len(pickle.dumps(small)), rel=0.01)


def test_probabilities_of_zero_are_noted() -> None:
    probs, labels = [[1.0, 0.0], [0.4, 0.6], [0.0, 1.0]], [1, 1, 0]
    found = [statistics([row], ["nll"], labels=[label]) for row, label in zip(probs, labels, strict=True)]
    assert combine(found, bootstrap=0).notes == evaluate(probs, labels, metrics=["nll"], bootstrap=0).notes


def test_a_cluster_needs_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_predictions(tmp_path / "p.npz", Predictions.of(LOGITS, LABELS, from_logits=True))
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "temperance.interop.ray", raising=False)
    monkeypatch.delattr("temperance.interop.ray", raising=False)
    for command in ("evaluate", "compare"):
        said = run(command, tmp_path / "p.npz", "--ray")
        assert said.code == 2 and "(--ray) needs Ray: pip install 'temperance[ray]'" in said.err


def test_workers_do_not_fit_for_a_gap(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    write_predictions(tmp_path / "p.npz", Predictions.of(LOGITS, LABELS, from_logits=True))
    said = run("evaluate", tmp_path / "p.npz", "--ray", "--gap", "temperature")
    assert said.code == 2 and "leave out --gap or --ray" in said.err


def test_no_job_calibrates_what_is_calibrated() -> None:
    fitted = Temperature().fit(LOGITS, LABELS)
    once = apply(fitted, Predictions.of(LOGITS, LABELS, from_logits=True))
    jobs: list[Callable[[], object]] = [
        lambda: statistics(once, ["nll"], calibrator=fitted),
        lambda: evaluate(once, calibrator=fitted),
        lambda: abstain(once, calibrator=fitted),
        lambda: compare_ood(once, once, calibrator=fitted),
    ]
    for job in jobs:
        with pytest.raises(InputError, match="calibrated already, by temperature; leave out the calibrator"):
            job()
    with pytest.warns(TemperanceWarning, match="corrects them a second time"):
        found = compare(once, methods=["temperature"], bootstrap=20)
    assert found._evaluated(found.ranked[0]).row("nll").value == found.ranked[0].measured["nll"].value


def test_wrong_calls() -> None:
    (one,) = measured([N], ["ece"])
    (bins,) = measured([N], ["ece"], n_bins=10)
    (other,) = measured([N], ["nll"])
    three = statistics([[0.2, 0.3, 0.5]], ["ece"], labels=[0])
    with pytest.raises(InputError, match="n_bins 15, another n_bins 10"):
        combine([one, bins])
    with pytest.raises(InputError, match="metrics ece, another metrics nll"):
        combine([one, other])
    with pytest.raises(InputError, match="4 classes, another 3 classes"):
        combine([one, three])
    answers = statistics([0.9, 0.6], ["ece"], labels=[1, 0], answers=True)
    two = statistics([[0.1, 0.9], [0.4, 0.6]], ["ece"], labels=[1, 0])
    with pytest.raises(InputError, match="answers, another samples"):
        combine([answers, two])
    groups = {"probs": [[0.1, 0.9], [0.4, 0.6]], "label": [1, 0], "group": ["a", "b"]}
    with pytest.raises(InputError, match="groups, another no groups"):
        combine([statistics(groups, ["ece"], by_group=True), two])
    with pytest.raises(InputError, match="no statistics to combine"):
        combine([])
    with pytest.raises(InputError, match="needs classwise-ece, aurc, which the blocks were not measured for"):
        _ = combine([one], bootstrap=0).classwise
    with pytest.raises(InputError, match="no metric named"):
        statistics(LOGITS, ["eec"], labels=LABELS)
    assert math.isnan(combine(measured([N], ["ece"], intervals=False)).row("ece").low)
