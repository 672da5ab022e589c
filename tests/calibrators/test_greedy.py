"""The greedy search for class temperatures: equal to the direct search, and what it promises."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import SHARED, random_predictions
from temperance.calibrators import Calibrator, TemperatureEce, greedy, make_calibrator
from temperance.calibrators.greedy import ClassTemperatureGreedy
from temperance.errors import InputError
from temperance.metrics import accuracy, ece
from temperance.progress import listening

SLACK = 1e-12
COARSE = (0.25, 0.5, 0.8, 1.0, 1.3, 1.7, 2.0, 3.0, 5.0, 8.0)


def direct_search(
    logits: Tensor,
    labels: Tensor,
    grid: Sequence[float],
    *,
    n_bins: int = 15,
    sweeps: int = 5,
    constrained: bool = True,
    accuracy_rule: str = "start",
    reach: int | None = None,
) -> tuple[list[float], list[float]]:
    """CTS Algorithm 1, measuring ECE and accuracy from scratch for every candidate."""
    grid = sorted(grid)
    k = logits.shape[1]

    def measure(temperatures: list[float]) -> tuple[float, int]:
        scaled = logits / torch.tensor(temperatures, dtype=torch.float64)
        hits = round(accuracy(scaled, labels, from_logits=True) * len(labels))
        return ece(scaled, labels, from_logits=True, n_bins=n_bins), hits

    start = grid[0]
    current = measure([start] * k)
    for t in grid[1:]:
        found = measure([t] * k)
        if found[0] < current[0] - SLACK:
            start, current = t, found
    temperatures = [start] * k
    history = [current[0]]
    for _ in range(sweeps):
        before = list(temperatures)
        for j in range(k):
            near = grid
            if reach is not None:
                at = grid.index(temperatures[j])
                near = grid[max(0, at - reach) : at + reach + 1]
            bar = current[1] + (accuracy_rule == "strict")
            kept = temperatures[j]
            for t in near:
                found = measure([*temperatures[:j], t, *temperatures[j + 1 :]])
                if found[0] < current[0] - SLACK and (not constrained or found[1] >= bar):
                    current, kept = found, t
                    bar = found[1] if accuracy_rule == "ratchet" else bar
            temperatures[j] = kept
        history.append(current[0])
        if temperatures == before:
            break
    return temperatures, history


def assert_equals_direct(logits: Tensor, labels: Tensor, grid: Sequence[float] = COARSE, **options: Any) -> None:
    reach = options.pop("reach", None)
    expected, history = direct_search(logits, labels, grid, reach=reach, **options)
    found = ClassTemperatureGreedy(grid=grid, search="full" if reach is None else "local", **options)
    found.fit(logits, labels)
    assert found.temperatures.tolist() == expected
    assert found.info["ece"] == pytest.approx(history, abs=1e-12)


@pytest.mark.parametrize("constrained", [True, False])
def test_vectors(vectors: Any, constrained: bool) -> None:
    v = vectors["cts_greedy_C"]
    found = ClassTemperatureGreedy(grid=v["grid"], n_bins=v["M"], constrained=constrained)
    found.fit(np.array(v["logits"]), np.array(v["labels"]))
    name = "constrained" if constrained else "unconstrained"
    assert found.info["start_temperature"] == v["init_T"]
    assert found.temperatures.tolist() == v[f"{name}_T"]
    assert found.info["ece"] == pytest.approx(v[f"{name}_ece"], abs=1e-6)
    assert found.info["accuracy"][-1] == pytest.approx(v[f"{name}_acc"], abs=1e-12)
    assert found.info["converged"]


def test_the_grid_is_a_tenth_to_ten() -> None:
    logits, labels = random_predictions(50, 3)
    values = ClassTemperatureGreedy()._values()
    assert values.tolist() == [round(0.1 * i, 10) for i in range(1, 101)]
    given = ClassTemperatureGreedy(start=0.5, stop=2.0, step=0.5)._values()
    assert given.tolist() == [0.5, 1.0, 1.5, 2.0]
    found = ClassTemperatureGreedy(grid=[2.0, 1.0, 2.0]).fit(logits, labels)
    assert set(found.temperatures.tolist()) <= {1.0, 2.0}


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_direct_search_on_random_sets(k: int, seed: int) -> None:
    assert_equals_direct(*random_predictions(120, k, seed=seed))


@pytest.mark.parametrize(
    "options",
    [
        {"constrained": False},
        {"accuracy_rule": "strict"},
        {"accuracy_rule": "ratchet"},
        {"reach": 2},
        {"n_bins": 4},
        {"sweeps": 1},
    ],
)
def test_equals_direct_search_with_every_setting(options: dict[str, Any]) -> None:
    assert_equals_direct(*random_predictions(150, 4, seed=7), **options)


def test_equals_direct_search_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(greedy.BLOCK_VALUES, "cpu", 70)
    assert_equals_direct(*random_predictions(60, 5, seed=3))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_equals_direct_search_with_ties_and_edges(data: st.DataObject) -> None:
    """Whole logits on a grid of halves: tied classes, and confidences exactly on bin edges such as 1/2 and 1/3."""
    k = data.draw(st.integers(2, 4))
    n = data.draw(st.integers(4, 20))
    rows = st.lists(st.sampled_from([-2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0]), min_size=k, max_size=k)
    logits = torch.tensor(data.draw(st.lists(rows, min_size=n, max_size=n)), dtype=torch.float64)
    labels = torch.tensor(data.draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n)))
    labels[:2] = torch.tensor([0, 1])
    n_bins = data.draw(st.sampled_from([2, 6, 15]))
    constrained = data.draw(st.booleans())
    logits[0, 0] = -1.0  # never rows of probabilities, which the edge refuses
    assert_equals_direct(logits, labels, (0.5, 1.0, 2.0, 3.0), n_bins=n_bins, constrained=constrained)


@pytest.mark.parametrize("scale", [1e4, 1e-3])
def test_equals_direct_search_at_extreme_scales(scale: float) -> None:
    logits, labels = random_predictions(80, 4, seed=5)
    logits = logits / logits.abs().max() * scale
    assert_equals_direct(logits, labels, (0.1, 1.0, 10.0))


@pytest.mark.shared
@pytest.mark.parametrize(("name", "n", "step"), [("c10_densenet40", 600, 5), ("c100_resnet20", 300, 25)])
def test_equals_direct_search_on_real_predictions(shared_data: Path, name: str, n: int, step: int) -> None:
    logits, labels = fit_part(shared_data / "logits" / f"{name}.npz")
    grid = [round(0.1 * i, 10) for i in range(step, 101, step)]
    assert_equals_direct(logits[:n], labels[:n], grid, sweeps=2)


def fit_part(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        if "val_logits" in file:
            logits, labels = file["val_logits"], file["val_labels"]
        else:
            half = np.random.default_rng(0).permutation(len(file["labels"]))[: len(file["labels"]) // 2]
            logits, labels = file["logits"][half], file["labels"][half]
    return torch.from_numpy(logits).double(), torch.from_numpy(labels).long()


FILES = sorted(path.stem for path in (SHARED / "logits").glob("*.npz"))
# Every fifth by default.
SOME = [name if i % 5 == 0 else pytest.param(name, marks=pytest.mark.exhaustive) for i, name in enumerate(FILES)]


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name", SOME or ["none"])
def test_promises_hold_on_real_predictions(shared_data: Path, name: str) -> None:
    """ECE never rises and accuracy never falls, as `info` says and as the metrics measure."""
    logits, labels = fit_part(shared_data / "logits" / f"{name}.npz")
    found = ClassTemperatureGreedy(start=0.5, step=0.5).fit(logits, labels)
    history = found.info["ece"]
    assert all(after <= before for before, after in itertools.pairwise(history))
    assert min(found.info["accuracy"]) == found.info["accuracy"][0]
    probs = found.predict_proba(logits)
    assert ece(probs, labels) == pytest.approx(history[-1], abs=1e-9)
    assert accuracy(probs, labels) == pytest.approx(found.info["accuracy"][-1], abs=1e-12)
    assert accuracy(probs, labels) >= accuracy(logits, labels, from_logits=True)


def test_missing_class_and_more_classes_than_samples() -> None:
    logits, labels = random_predictions(30, 50, seed=2)
    found = ClassTemperatureGreedy(grid=COARSE, sweeps=1).fit(logits, labels % 7)
    assert found.predict_proba(logits).shape == (30, 50)
    assert bool(torch.isfinite(found.temperatures).all())


def test_a_thousand_classes() -> None:
    logits, labels = random_predictions(40, 1000, seed=2)
    found = ClassTemperatureGreedy(grid=(0.5, 1.0, 2.0), sweeps=1).fit(logits, labels)
    assert found.info["ece"][1] <= found.info["ece"][0]


def test_equal_logits_change_nothing() -> None:
    labels = torch.tensor([0, 1, 2, 0])
    found = ClassTemperatureGreedy().fit(torch.zeros(4, 3, dtype=torch.float64) - 1, labels)
    assert found.info["ece"][-1] <= found.info["ece"][0]
    assert bool(torch.isfinite(found.predict_proba(torch.zeros(4, 3) - 1)).all())


def test_progress_is_reported_class_by_class() -> None:
    logits, labels = random_predictions(60, 3)
    found = ClassTemperatureGreedy(grid=COARSE)
    calls: list[tuple[int, int]] = []
    with listening(lambda done, total, what: calls.append((done, total))):
        found.fit(logits, labels)
    assert calls[0] == (1, 15)
    assert calls == [(done, 15) for done in range(1, 3 * len(found.info["ece"]) - 2)]


@pytest.mark.parametrize("wrong", [{"grid": []}, {"start": 5.0, "stop": 1.0}])
def test_what_is_not_a_grid_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"class-temperature-greedy: (grid|start, stop and step) must be"):
        make_calibrator("class-temperature-greedy", **wrong)
    with pytest.raises(InputError, match="class-temperature-greedy: "):
        ClassTemperatureGreedy(**wrong).fit(*random_predictions(20, 3))


@pytest.mark.parametrize("method", [ClassTemperatureGreedy, TemperatureEce])
@pytest.mark.parametrize("scale", [1e4, 1e9])
def test_the_grid_is_in_the_unit_of_the_logits(method: type[Calibrator], scale: float) -> None:
    logits, labels = random_predictions(2000, 4, 0, sharpness=3.0)
    before, after = (
        ece(method().fit(factor * logits, labels).predict_proba(factor * logits), labels) for factor in (1, scale)
    )
    assert after == pytest.approx(before, abs=0.01)
