"""Metrics of temperance as torchmetrics objects."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import random_predictions
from processes import forked, synced
from temperance.errors import InputError
from temperance.metrics import METRICS, Metric, ece

torchmetrics: Any = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
from temperance.interop.torchmetrics import CalibrationMetric  # noqa: E402

each_metric = pytest.mark.parametrize("metric", list(METRICS), ids=METRICS.names)


def pieces(n: int = 200, k: int = 4) -> list[tuple[Tensor, Tensor]]:
    logits, labels = random_predictions(n, k, seed=0)
    return list(zip(torch.split(logits, 30), torch.split(labels, 30), strict=True))


def expected(metric: Metric, **options: Any) -> Any:
    logits, labels = random_predictions(200, 4, seed=0)
    return pytest.approx(metric(logits, labels, from_logits=True, **options), rel=1e-9, abs=1e-12)


@each_metric
def test_pieces_give_the_value_of_the_whole(metric: Metric) -> None:
    found = CalibrationMetric(metric.name, from_logits=True)
    for logits, labels in pieces():
        found.update(logits, labels)
    assert float(found.compute()) == expected(metric)
    found.reset()
    with pytest.raises(InputError, match="has seen no predictions yet"), pytest.warns(UserWarning, match="compute"):
        found.compute()


def test_a_call_gives_the_value_of_the_batch_and_adds_it() -> None:
    found = CalibrationMetric("ece", from_logits=True)
    for logits, labels in pieces():
        assert float(found(logits, labels)) == pytest.approx(ece(logits, labels, from_logits=True))
    assert float(found.compute()) == expected(ece)


def test_a_collection_measures_every_metric_and_shares_statistics() -> None:
    found = torchmetrics.MetricCollection({m.name: CalibrationMetric(m.name, from_logits=True) for m in METRICS})
    for logits, labels in pieces():
        found.update(logits, labels)
    values = found.compute()
    for metric in METRICS:
        assert float(values[metric.name]) == expected(metric), metric.name
    groups = [set(names) for names in found.compute_groups.values()]
    assert any({"ece", "mce", "debiased-ece"} <= names for names in groups)


def test_metrics_with_other_bins_share_nothing() -> None:
    found = torchmetrics.MetricCollection(
        {str(n): CalibrationMetric("ece", n_bins=n, from_logits=True) for n in (10, 15)}
    )
    for logits, labels in pieces():
        found.update(logits, labels)
    values = found.compute()
    for n in (10, 15):
        assert float(values[str(n)]) == expected(ece, n_bins=n)


def test_memory_does_not_grow_where_the_statistic_does_not() -> None:
    found = CalibrationMetric("ece", from_logits=True)
    logits, labels = random_predictions(20, 4, seed=0)
    for _ in range(300):
        found.update(logits, labels)
    assert len(found.statistics) <= 65
    assert float(found.compute()) == pytest.approx(ece(logits, labels, from_logits=True))


def test_ignored_labels_pickling_and_wrong_settings() -> None:
    logits, labels = random_predictions(50, 4, seed=0)
    found = CalibrationMetric("nll", from_logits=True, ignore_index=255)
    found.update(logits[:5], torch.full((5,), 255))
    found.update(logits, labels.clone().index_fill_(0, torch.arange(10), 255))
    again = pickle.loads(pickle.dumps(found))
    assert float(again.compute()) == pytest.approx(METRICS["nll"](logits[10:], labels[10:], from_logits=True))
    with pytest.raises(InputError, match="n_bins"):
        CalibrationMetric("ece", n_bins=0)
    with pytest.raises(InputError, match="no-such-metric"):
        CalibrationMetric("no-such-metric")


def test_a_batch_whose_labels_are_all_ignored_has_no_value_and_changes_nothing() -> None:
    logits, labels = random_predictions(20, 4, seed=0)
    found = CalibrationMetric("ece", from_logits=True, ignore_index=255)
    nothing = torch.full_like(labels, 255)
    assert bool(found(logits, nothing).isnan())
    found(logits, labels)
    assert bool(found(logits, nothing).isnan())
    assert float(found.compute()) == pytest.approx(ece(logits, labels, from_logits=True))


def test_a_tracker_knows_which_value_is_best() -> None:
    found = torchmetrics.MetricTracker(CalibrationMetric("ece", from_logits=True))
    values = []
    for logits, labels in pieces():
        found.increment()
        values.append(float(found(logits, labels)))
    assert found.best_metric() == min(values)
    assert CalibrationMetric("accuracy").higher_is_better is True
    assert CalibrationMetric("confidence-gap").higher_is_better is None


def test_it_draws_its_value() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    found = CalibrationMetric("ece", from_logits=True)
    values = [found(logits, labels) for logits, labels in pieces()]
    figure, axes = found.plot(values)
    assert axes.lines[0].get_ydata() == pytest.approx([float(value) for value in values])
    pyplot.close(figure)


@pytest.mark.slow
def test_processes_sync_to_the_value_of_all_samples(tmp_path: Path) -> None:
    forked(synced, 2, pieces(), tmp_path, imported=("processes", "torchmetrics"))
    for rank in range(2):
        for name, value in json.loads((tmp_path / str(rank)).read_text()).items():
            assert value == expected(METRICS[name]), name
