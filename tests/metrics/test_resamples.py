"""Shared resamples give what the metrics give on the same rows drawn one by one."""

import pytest
import torch

from conftest import random_predictions
from temperance.metrics import accuracy, ece, nll
from temperance.metrics.batch import batches
from temperance.metrics.resamples import N_PARTS, Resamples


@pytest.mark.parametrize("n", [1, 2, 150, 700])
def test_a_resample_is_so_many_copies_of_the_rows_of_each_part(n: int) -> None:
    logits, labels = random_predictions(n, 4)
    (batch,) = batches(logits, labels, from_logits=True)
    found = Resamples.draw(n, 5, seed=0)
    draws = {
        nll: found.means(batch.nll),
        accuracy: found.means(batch.correct),
        ece: found.calibration_errors(batch.confidence, batch.correct, 15),
    }
    for i, weights in enumerate(found.weights):
        rows = torch.arange(n).repeat_interleave(weights[found.part].long())
        for metric, each in draws.items():
            expected = metric(logits[rows], labels[rows], from_logits=True)
            assert float(each.values[i]) == pytest.approx(expected, abs=1e-12)
            assert each.share == 1


def test_parts_are_even_and_all_are_drawn_from() -> None:
    found = Resamples.draw(5 * N_PARTS, 7, seed=0)
    assert torch.bincount(found.part).tolist() == [5] * N_PARTS
    assert found.weights.sum(1).tolist() == [N_PARTS] * 7


def test_the_seed_decides() -> None:
    first, second, other = (Resamples.draw(50, 20, seed) for seed in (0, 0, 1))
    assert torch.equal(first.weights, second.weights) and torch.equal(first.part, second.part)
    assert not torch.equal(first.weights, other.weights)
