"""How a map of one probability calibrates many classes: the reductions, the curves, and what can go wrong."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit, logsumexp, softmax

from conftest import random_predictions
from temperance import arrays
from temperance.calibrators import CALIBRATORS, Isotonic, Platt, load_calibrator, make_calibrator
from temperance.calibrators._fit.curve import CurveCalibrator, look_up, merge_steps, steps
from temperance.calibrators._fit.reduction import (
    BinaryCalibrator,
    Reduction,
    class_log_odds,
    stack_ragged,
    top_log_odds,
)

REDUCTIONS = get_args(Reduction)
METHODS = [method.name for method in CALIBRATORS if issubclass(method, BinaryCalibrator)]
CURVES = [method.name for method in CALIBRATORS if issubclass(method, CurveCalibrator)]

rows = st.lists(st.floats(-30, 30), min_size=3, max_size=6).map(lambda row: torch.tensor([row], dtype=torch.float64))


class Line(BinaryCalibrator):
    """A map that is known beforehand."""

    name, min_samples = "line", 1

    def __init__(self, reduction: Reduction, slope: float, intercept: float) -> None:
        super().__init__(reduction=reduction)
        self.slope, self.intercept = slope, intercept

    def _fit_binary(
        self, log_odds: torch.Tensor, happened: torch.Tensor, weights: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {"seen": torch.stack([log_odds.sum(1), happened.sum(1).double()], dim=1)}

    def _map(self, log_odds: torch.Tensor) -> torch.Tensor:
        return self.slope * log_odds + self.intercept


def lifted(logits: Any, reduction: str, slope: float, intercept: float) -> Any:
    """The slow, obvious lift of p → expit(slope · logit(p) + intercept)."""
    probs = softmax(logits, axis=1)

    def mapped(p: Any) -> Any:
        return expit(slope * logit(p) + intercept)

    if probs.shape[1] == 2:
        q = mapped(probs[:, 1])
        return np.stack([1 - q, q], axis=1)
    if reduction != "top-label":
        q = mapped(probs)
        return q / q.sum(axis=1, keepdims=True)
    out = np.empty_like(probs)
    for i, row in enumerate(probs):
        j = row.argmax()
        q = mapped(row[j])
        out[i] = row / (1 - row[j]) * (1 - q)
        out[i, j] = q
    return out


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("k", [2, 3, 7])
def test_the_lift_is_the_obvious_one(reduction: Any, k: int) -> None:
    logits, labels = random_predictions(50, k)
    probs = Line(reduction, 0.6, -0.3).fit(logits, labels).predict_proba(logits)
    assert np.allclose(probs, lifted(logits.numpy(), reduction, 0.6, -0.3), atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(logits=rows)
def test_the_identity_changes_nothing(reduction: Any, logits: torch.Tensor) -> None:
    found = Line(reduction, 1.0, 0.0)
    assert torch.allclose(found._calibrate(logits), logits.log_softmax(1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_what_the_maps_learn_from(reduction: Any) -> None:
    logits, labels = random_predictions(40, 5)
    seen = Line(reduction, 1.0, 0.0).fit(logits, labels).get_buffer("seen")
    odds = logit(softmax(logits.numpy(), axis=1))
    hits = np.eye(5)[labels.numpy()]
    expected: dict[str, Any] = {
        "one-versus-rest": np.stack([odds.sum(0), hits.sum(0)], axis=1),
        "pooled": [[odds.sum(), 40]],
        "top-label": [[odds.max(1).sum(), (logits.argmax(1) == labels).sum()]],
    }
    assert np.allclose(seen, expected[reduction])


@given(logits=rows)
def test_log_odds(logits: torch.Tensor) -> None:
    expected = [z - logsumexp(np.delete(logits[0].numpy(), j)) for j, z in enumerate(logits[0].tolist())]
    assert np.allclose(class_log_odds(logits)[0], expected, rtol=1e-9, atol=1e-12)
    prediction, top = top_log_odds(logits)
    assert int(prediction) == int(logits[0].argmax()) and float(top) == pytest.approx(max(expected), abs=1e-12)


def test_log_odds_are_exact_where_a_probability_rounds_to_one() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4], [60.0, 0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1e4, -1e4, -2e4], [60 - np.log(2), -60.0, -60.0]], dtype=torch.float64)
    assert torch.allclose(class_log_odds(logits), expected, rtol=1e-14)


@pytest.mark.parametrize("name", METHODS)
def test_with_two_classes_reductions_agree(name: str) -> None:
    logits, labels = random_predictions(150, 2)
    probs = [make_calibrator(name, reduction=r).fit(logits, labels).predict_proba(logits) for r in REDUCTIONS]
    assert torch.equal(probs[0], probs[1]) and torch.equal(probs[0], probs[2])


def degenerate(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = random_predictions(90, 5)
    if kind == "a class that never occurs":
        labels[labels == 3] = 0
    if kind == "one sample of each class":
        return logits[:5], torch.arange(5)
    if kind == "fewer samples than classes":
        return random_predictions(8, 30)
    if kind == "saturated":
        logits = torch.where(logits == logits.amax(1, keepdim=True), 1e4, -1e4) + logits
    if kind == "ties":
        logits = logits.round()
    if kind == "one confidence":
        logits = torch.nn.functional.one_hot(logits.argmax(1), 5).double() * 2
    if kind == "always right":
        labels = logits.argmax(1)
    if kind == "always wrong":
        labels = logits.argmin(1)
    return logits, labels


KINDS = [
    "a class that never occurs",
    "one sample of each class",
    "fewer samples than classes",
    "saturated",
    "ties",
    "one confidence",
    "always right",
    "always wrong",
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", METHODS)
def test_degenerate_data_costs_a_finite_nll(name: str, reduction: str) -> None:
    for kind in KINDS:
        logits, labels = degenerate(kind)
        found = make_calibrator(name, reduction=reduction).fit(logits, labels)
        others = [random_predictions(20, logits.shape[1], seed=9)[0], 1e4 * random_predictions(20, logits.shape[1])[0]]
        for unseen in (logits, *others, torch.zeros_like(logits[:2])):
            log_probs = found(unseen)
            assert bool(torch.isfinite(log_probs).all()), kind
            assert torch.allclose(log_probs.exp().sum(1), torch.ones(len(unseen), dtype=torch.float64)), kind


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_files_of_ragged_curves_are_bit_equal(name: str, reduction: str, tmp_path: Path) -> None:
    logits, labels = random_predictions(120, 6)
    found = make_calibrator(name, reduction=reduction).fit(logits, labels)
    found.save(tmp_path / "cal.safetensors")
    assert torch.equal(load_calibrator(tmp_path / "cal.safetensors").predict_proba(logits), found.predict_proba(logits))


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("bbq", "histogram", "spline")])
def test_pooled_maps_that_only_rise_change_no_prediction(name: str) -> None:
    logits, labels = random_predictions(400, 8)
    probs = make_calibrator(name, reduction="pooled").fit(logits, labels).predict_proba(logits)
    top = probs.gather(1, logits.argmax(1, keepdim=True))
    assert bool((top >= probs).all())


@pytest.mark.parametrize("name", METHODS)
def test_a_number_added_to_a_row_changes_nothing(name: str) -> None:
    logits, labels = random_predictions(200, 4)
    shifted = logits + torch.linspace(-50, 50, 200, dtype=torch.float64)[:, None]
    for reduction in REDUCTIONS:
        found = make_calibrator(name, reduction=reduction).fit(logits, labels).predict_proba(logits)
        again = make_calibrator(name, reduction=reduction).fit(shifted, labels).predict_proba(shifted)
        assert torch.allclose(found, again, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_samples_does_not_matter(name: str) -> None:
    logits, labels = random_predictions(150, 4)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    for reduction in REDUCTIONS:
        found = make_calibrator(name, reduction=reduction).fit(logits, labels).predict_proba(logits)
        again = make_calibrator(name, reduction=reduction).fit(logits[order], labels[order]).predict_proba(logits)
        assert torch.allclose(found, again, atol=1e-7)


def test_a_class_that_was_never_seen_keeps_its_probability() -> None:
    logits, labels = random_predictions(200, 4)
    labels[labels == 2] = 1
    for name in METHODS:
        found = make_calibrator(name, reduction="one-versus-rest").fit(logits, labels)
        assert isinstance(found, BinaryCalibrator)
        mapped = found._map(class_log_odds(logits).T)
        assert torch.allclose(mapped[2], class_log_odds(logits)[:, 2], rtol=1e-6, atol=1e-9), name


def test_a_row_of_zeros_is_the_networks_own_row() -> None:
    logits, labels = random_predictions(60, 4)
    found = Isotonic(reduction="one-versus-rest").fit(logits, labels)
    found.values.zero_()
    found.share.fill_(0.1)
    assert torch.allclose(found.predict_proba(logits), logits.softmax(1))


def test_the_share_of_the_network() -> None:
    """One in one plus the number of samples with the rarer outcome."""
    logits, labels = random_predictions(100, 3)
    labels[:] = 0
    labels[:7] = 1
    assert torch.allclose(
        Isotonic(reduction="one-versus-rest").fit(logits, labels).share, torch.tensor([1 / 8, 1 / 8, 1]).double()
    )
    found = Isotonic().fit(logits, labels)
    p = class_log_odds(logits).sigmoid().reshape(1, -1)
    mapped = found._map(class_log_odds(logits).reshape(1, -1)).sigmoid()
    assert torch.allclose(mapped, (100 * look_up(p, found.knots, found.values) + p) / 101)


def test_one_versus_rest_does_not_fall_apart_with_many_classes() -> None:
    """Four samples of each class: a floor of 1e-12 costs three times the NLL of the network's share."""
    (logits, labels), (unseen, truth) = random_predictions(800, 200), random_predictions(800, 200, seed=1)

    def nll(found: Isotonic) -> float:
        return float(torch.nn.functional.nll_loss(found(unseen), truth))

    found = Isotonic(reduction="one-versus-rest").fit(logits, labels)
    honest = nll(found)
    found.share.fill_(1e-12)
    assert honest < nll(found) / 2
    assert nll(Isotonic().fit(logits, labels)) < honest


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = random_predictions(300, 6)
    for reduction in REDUCTIONS:
        whole = Platt(reduction=reduction).fit(logits, labels).predict_proba(logits)
        with monkeypatch.context() as patch:
            patch.setitem(arrays.BLOCK_VALUES, "cpu", 700)
            parts = Platt(reduction=reduction).fit(logits, labels).predict_proba(logits)
        assert torch.allclose(whole, parts, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- curves


@given(
    knots=st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=8, unique=True).map(sorted),
    values=st.lists(st.floats(0, 1, allow_subnormal=False), min_size=8, max_size=8),
    x=st.lists(st.floats(-1, 2), min_size=1, max_size=20),
)
def test_looking_up_is_interpolation(knots: list[float], values: list[float], x: list[float]) -> None:
    values = values[: len(knots)]
    found = look_up(*(torch.tensor([numbers], dtype=torch.float64) for numbers in (x, knots, values)))
    assert np.allclose(found[0], np.interp(x, knots, values), atol=1e-9)


def test_steps_include_their_upper_edge() -> None:
    edges, values = torch.tensor([0.2, 0.5]), torch.tensor([0.125, 0.25, 0.75])
    knots, heights = steps(edges, values)
    found = look_up(torch.tensor([[0.0, 0.2, 0.20001, 0.5, 0.50001, 1.0]]), knots[None], heights[None])
    assert found[0].tolist() == [0.125, 0.125, 0.25, 0.25, 0.75, 0.75]


def test_steps_that_hardly_differ_are_merged() -> None:
    values = torch.linspace(-3, 3, 100_001).double().sigmoid()
    edges = torch.linspace(0, 1, 100_000).double()
    fewer, kept = merge_steps(edges, values)
    assert len(fewer) < 7000 and len(kept) == len(fewer) + 1
    index = torch.searchsorted(fewer, edges)
    assert float((kept[index].logit() - values[:-1].logit()).abs().max()) < 1.1e-3


def test_ragged_rows_are_continued_with_their_last_value() -> None:
    rows = [torch.tensor([1.0]), torch.tensor([2.0, 3.0, 4.0])]
    assert stack_ragged(rows).tolist() == [[1.0, 1.0, 1.0], [2.0, 3.0, 4.0]]
