"""Calibrators that are fitted to a stream learn what they learn from the same rows in memory."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import random_predictions
from temperance.calibrators import CALIBRATORS, Calibrator, Temperature, make_calibrator
from temperance.calibrators._fit.streaming import StreamCalibrator, Streamed
from temperance.errors import InputError
from temperance.metrics import nll
from temperance.objectives import OBJECTIVES, make_objective

N, K = 20_000, 5
LOGITS, LABELS = random_predictions(N, K)
FEW = 1_000 * K  # values that are held

STREAMED = [name for name in CALIBRATORS.names if issubclass(CALIBRATORS[name], StreamCalibrator)]


class Blocks:
    """Rows in blocks, which counts the passes over them."""

    def __init__(self, logits: Tensor, labels: Tensor, size: int = 3_333) -> None:
        self.blocks = list(zip(torch.split(logits, size), torch.split(labels, size), strict=True))
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # The first call of a fit only asks whether it can be iterated over again.
        self.passes += 1
        return iter(self.blocks)


def both(entry: str, logits: Tensor = LOGITS, labels: Tensor = LABELS) -> tuple[Calibrator, Any, Blocks]:
    """Fitted in memory and to a stream."""
    blocks = Blocks(logits, labels)
    streamed = make_calibrator(entry)
    assert isinstance(streamed, StreamCalibrator)
    return make_calibrator(entry).fit(logits, labels), streamed.fit_stream(blocks, most_values=FEW), blocks


def test_which_can_be_fitted_to_a_stream() -> None:
    assert set(STREAMED) == {
        "temperature",
        "class-temperature",
        "vector",
        "isotonic",
        "centred-isotonic",
        "histogram",
    }


@pytest.mark.parametrize(
    "entry",
    [
        "temperature",
        "temperature:objective=class-scaled",
        "temperature:objective=class-balanced-nll",
        "temperature:objective=label-smoothing",
        "temperature:objective=brier",
        "class-temperature",
        "class-temperature:centre=max",
        pytest.param("class-temperature:objective=class-scaled", marks=pytest.mark.slow),
        "vector",
        "vector:ridge=0.01",
        pytest.param("vector:objective=class-scaled", marks=pytest.mark.slow),
    ],
)
def test_smooth_objectives(entry: str) -> None:
    # Weights that are chosen again and again take many passes.
    adapts = "class-scaled" in entry
    n = N // 5 if adapts else N
    memory, streamed, blocks = both(entry, LOGITS[:n], LABELS[:n])
    assert streamed.info["converged"]
    for name, value in memory.learnt.items():
        # The mean of the biases makes no difference, and so hardly any to the penalty.
        one, other = ((each - each.mean()) if name == "bias" else each for each in (streamed.learnt[name], value))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(streamed.predict_proba(LOGITS), memory.predict_proba(LOGITS), rtol=0, atol=1e-5)
    assert adapts or blocks.passes <= 60


@pytest.mark.parametrize("reduction", ["pooled", "one-versus-rest", "top-label"])
@pytest.mark.parametrize("method", ["isotonic", "centred-isotonic", "histogram", "histogram:bins=width"])
def test_curves_over_cells(method: str, reduction: str) -> None:
    memory, streamed, blocks = both(f"{method}:reduction={reduction}")
    cells, exact = streamed.predict_proba(LOGITS), memory.predict_proba(LOGITS)
    # What one bin or one step of 20,000 samples can tell is known to some 0.01, so this is far below it.
    assert float((cells - exact).abs().mean()) < 2e-3
    assert nll(cells, LABELS) == pytest.approx(nll(exact, LABELS), abs=1e-3)
    # It is asked whether it can be iterated over again, looked at, and counted.
    assert blocks.passes == 3


@pytest.mark.parametrize("method", ["isotonic", "centred-isotonic", "histogram", "histogram:bins=width"])
def test_curves_are_exact_where_equal_scores_are_the_only_near_ones(method: str) -> None:
    logits = (LOGITS * 4).round() / 4
    logits = torch.stack([torch.zeros(N, dtype=torch.float64), logits[:, 0]], 1)
    labels = (torch.rand(N, generator=torch.Generator().manual_seed(0)) < logits[:, 1].sigmoid() ** 2).long()
    memory, streamed, _ = both(method, logits, labels)
    for name, value in memory.learnt.items():
        torch.testing.assert_close(streamed.learnt[name], value, rtol=1e-12, atol=1e-12)


def test_few_rows_are_fitted_as_ever() -> None:
    blocks = Blocks(LOGITS[:500], LABELS[:500], size=100)
    for name in STREAMED:
        memory, streamed = make_calibrator(name).fit(LOGITS[:500], LABELS[:500]), make_calibrator(name)
        assert isinstance(streamed, StreamCalibrator)
        streamed.fit_stream(blocks)
        assert all(torch.equal(streamed.learnt[key], value) for key, value in memory.learnt.items())


def test_some_rows_are_kept_evenly() -> None:
    found = Streamed.of(Blocks(LOGITS, LABELS, size=77), most_values=1000)
    assert found.n == N and found.every == 128 and len(found.logits) == 157
    assert torch.equal(found.logits, LOGITS[::128]) and torch.equal(found.labels, LABELS[::128])
    assert torch.equal(found.counts, torch.bincount(LABELS))


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_weights_of_classes_are_the_weights_of_their_rows(name: str) -> None:
    made = make_objective(name)
    assert made.weighs_classes
    log_probs, counts = LOGITS.log_softmax(1), torch.bincount(LABELS)
    for _ in range(2):
        torch.testing.assert_close(made.weights(LABELS, K), made.class_weights_of(counts)[LABELS])
        losses = made.losses(log_probs, LABELS)
        if made.adapts:
            made.reweigh_classes(torch.bincount(LABELS, losses), counts)


def test_a_class_without_samples() -> None:
    labels = LABELS.clamp_max(K - 2)
    for name in ("class-temperature", "vector"):
        memory, streamed, _ = both(name, LOGITS, labels)
        torch.testing.assert_close(streamed.predict_proba(LOGITS), memory.predict_proba(LOGITS), rtol=0, atol=1e-5)


def test_a_streamed_calibrator_is_one_like_any_other(tmp_path: Any) -> None:
    _, streamed, _ = both("vector")
    streamed.save(tmp_path / "cal.safetensors")
    loaded = Calibrator.load(tmp_path / "cal.safetensors")
    assert torch.equal(loaded.predict_proba(LOGITS), streamed.predict_proba(LOGITS))
    assert streamed.set_prior("uniform").predict_proba(LOGITS).shape == LOGITS.shape


def test_wrong_streams() -> None:
    bad = LOGITS.clone()
    bad[7_000, 2] = torch.nan
    streamed: Any = make_calibrator("temperature")
    with pytest.raises(InputError, match="logits must be finite; row 7000, class 2 is nan"):
        streamed.fit_stream(Blocks(bad, LABELS))
    with pytest.raises(InputError, match="such as a list of blocks"):
        streamed.fit_stream(iter(Blocks(LOGITS, LABELS)))
    with pytest.raises(InputError, match="must have labelled rows"):
        streamed.fit_stream([])
    with pytest.raises(InputError, match="same number of classes; got 5 and 4"):
        streamed.fit_stream([(LOGITS, LABELS), (LOGITS[:, :4], LABELS % 4)])
    for entry, says in (
        ("temperature:solver=released", "solver=exact"),
        ("temperature:objective=focal:objective.detach_weight=true", "needs all rows at once"),
        ("temperature:objective=soft-ece", "needs all rows at once"),
    ):
        made: Any = make_calibrator(entry)
        with pytest.raises(InputError, match=says):
            made.fit_stream(Blocks(LOGITS, LABELS), most_values=FEW)


def test_dense_blocks_and_ignored_labels_are_rows_like_others() -> None:
    dense = LOGITS[:1200].reshape(30, 8, 5, K).movedim(-1, 1)
    marked = torch.where(torch.arange(1200) % 7 == 0, 255, LABELS[:1200])
    marked[:400] = 255
    kept = marked != 255
    blocks, plain = Blocks(dense, marked.reshape(30, 8, 5), size=10), [(LOGITS[:1200][kept], marked[kept])]
    for most in (FEW, 500):
        for name in STREAMED:
            first, second = make_calibrator(name), make_calibrator(name)
            assert isinstance(first, StreamCalibrator) and isinstance(second, StreamCalibrator)
            first.fit_stream(blocks, ignore_index=255, most_values=most)
            second.fit_stream(plain, most_values=most)
            for key, value in second.learnt.items():
                torch.testing.assert_close(first.learnt[key], value, rtol=1e-6, atol=1e-9)
    with pytest.raises(InputError, match="labelled rows"):
        Temperature().fit_stream([(dense[:10], marked[:400].reshape(10, 8, 5))], ignore_index=255)
