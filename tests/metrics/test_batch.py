"""Batches: the same numbers from blocks of any height, and what statistics may ask them for."""

from typing import Any

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance import compiled
from temperance.metrics import batch as module
from temperance.metrics.base import METRICS, Metric
from temperance.metrics.batch import NARROW, Batch, Columns, batches

narrow_metrics = pytest.mark.parametrize("metric", [m for m in METRICS if m.of_batch in NARROW], ids=lambda m: m.name)


def some_probs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = random_predictions(300, 6)
    probs = logits.softmax(1).to(dtype)
    probs[::7] = torch.tensor([0.1, 0.35, 0.05, 0.35, 0.1, 0.05], dtype=dtype)  # tied
    return probs, labels


@narrow_metrics
@pytest.mark.parametrize("from_logits", [True, False])
def test_narrow_statistics_need_only_columns(metric: Metric, from_logits: bool) -> None:
    probs, labels = some_probs()
    scores = probs.log() if from_logits else probs
    several = [
        Batch(scores[i : i + 70], labels[i : i + 70], from_logits=from_logits) for i in range(0, len(labels), 70)
    ]
    joined = Columns.joined(several)
    assert len(joined) == 300 and not hasattr(joined, "scores")
    whole = metric(scores, labels, from_logits=from_logits)
    assert metric.value(metric.of_batch(joined)) == pytest.approx(whole, abs=1e-12)


@narrow_metrics
def test_blocks_of_any_height_give_the_same_number(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = some_probs()
    whole = metric(probs, labels)
    monkeypatch.setattr(module, "TALL_ROWS", 110)
    monkeypatch.setattr(module, "SERIAL_ROWS", 41)
    assert metric(probs, labels) == pytest.approx(whole, abs=1e-9)
    monkeypatch.setattr(compiled, "COMPILED", {})
    assert metric(probs, labels) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_correctness_of_selected_rows(dtype: torch.dtype) -> None:
    probs, labels = some_probs(dtype)
    expected = probs.numpy().argmax(1) == labels.numpy()
    index = torch.arange(299, 0, -3)
    (batch,) = batches(probs, labels)
    np.testing.assert_array_equal(batch.correct, expected)
    np.testing.assert_array_equal(batch.select(index).correct, expected[index])
    assert torch.equal(batch.own_confidence.double(), batch.confidence)


@pytest.mark.skipif(not compiled.COMPILED, reason="temperance was installed without a C compiler")
def test_only_rows_that_are_read_once_are_looked_at_in_tall_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIAL_ROWS", 7)
    probs, labels = some_probs()

    def heights(scores: torch.Tensor, **options: Any) -> set[int]:
        return set(map(len, batches(scores, labels, tall=True, **options)))

    assert heights(probs) == {7, 300 % 7}
    assert heights(probs.double()) == {7, 300 % 7}
    assert heights(probs.log(), from_logits=True) == {300}
    assert heights(probs, ignore_index=-1) == {300}
    assert heights(probs.half()) == {300}
    assert heights(probs.T.contiguous().T) == {300}
