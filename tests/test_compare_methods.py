"""Comparing: a method that fails is an outcome, one that is written wrongly is refused first."""

import json
import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import over_confident, random_predictions
from temperance.calibrators import CALIBRATORS, Temperature
from temperance.calibrators.base import Calibrator
from temperance.errors import InputError, TemperanceError
from temperance.jobs.comparison import compare
from temperance.jobs.outcomes import Method
from temperance.predictions import Predictions
from temperance.registry import parse_entry

# ------------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("error", [InputError("it has two\nlines"), ZeroDivisionError("by zero")])
def test_a_failure_is_an_outcome(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Calibrator, logits: Tensor, labels: Tensor) -> None:
        raise error

    monkeypatch.setattr(CALIBRATORS["vector"], "_fit", fail)
    found = compare(over_confident(), methods=["vector", "temperature"], bootstrap=20)
    (failed,) = (outcome for outcome in found.outcomes if outcome.failure)
    assert failed is found.outcomes[-1] and failed not in found.ranked
    assert failed.failure in ("it has two lines", "ZeroDivisionError: by zero")
    assert json.loads(found.to_json())["failures"] == {"vector": failed.failure}
    assert (failed.n_parameters, failed.fitted) == (0, None)
    assert found.recommended.label == "temperature" and "vector" not in found.to_csv()


def test_a_matrix_that_torch_cannot_invert_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Calibrator, logits: Tensor, labels: Tensor) -> None:
        torch.linalg.inv(torch.zeros(2, 2))

    monkeypatch.setattr(CALIBRATORS["vector"], "_fit", fail)
    found = compare(over_confident(60), methods=["vector"], bootstrap=20)
    assert found.outcomes[-1].failure.startswith("LinAlgError: ")


def test_a_fault_of_the_program_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Calibrator, logits: Tensor, labels: Tensor) -> None:
        raise KeyError("x")

    monkeypatch.setattr(CALIBRATORS["vector"], "_fit", fail)
    with pytest.raises(KeyError):
        compare(over_confident(), methods=["vector", "temperature"], bootstrap=20)


def test_too_few_samples_are_a_failure_of_that_method_alone() -> None:
    few = Predictions.of(*(t[:5] for t in random_predictions(30, 3)), from_logits=True)
    found = compare(few, over_confident(60, 3, seed=1), methods=["meta-mis", "temperature"], bootstrap=20)
    failures = {outcome.label: outcome.failure for outcome in found.outcomes}
    assert "needs at least 10 samples" in failures["meta-mis"] and not failures["temperature"]


def test_where_every_method_fails_nothing_is_recommended() -> None:
    one_label = Predictions.of(random_predictions(20, 3)[0], [1] * 20, from_logits=True)
    found = compare(one_label, over_confident(60, 3, seed=1), methods=["temperature"], bootstrap=20)
    assert found.recommended is found.baseline and found.verdict.startswith("Nothing to recommend")


@pytest.mark.parametrize("which", [0, 1])
def test_data_that_cannot_be_measured_are_refused_before_anything_is_fitted(which: int) -> None:
    sets = [over_confident(20, 3, seed=seed) for seed in (0, 1)]
    broken = sets[which].scores.clone()
    broken[3, 1] = math.nan
    sets[which] = Predictions.of(broken, sets[which].labels, from_logits=True)
    told: list[str] = []
    with pytest.raises(InputError, match=r"logits must be finite; row 3, class 1 is nan"):
        compare(*sets, bootstrap=20, progress=lambda done, steps, what: told.append(what))
    assert not told


def test_a_process_that_dies_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["temperance.jobs.outcomes"], "ProcessPoolExecutor", DeadPool)
    with pytest.raises(TemperanceError, match="try jobs=1"):
        compare(over_confident(), methods=["temperature", "vector"], bootstrap=20, jobs=2)


class DeadPool:
    """A pool whose processes are gone."""

    def __init__(self, *args: Any) -> None:
        pass

    def __enter__(self) -> "DeadPool":
        return self

    def __exit__(self, *args: Any) -> None:
        pass

    def map(self, *args: Any) -> Any:
        from concurrent.futures.process import BrokenProcessPool

        raise BrokenProcessPool


# -------------------------------------------------------------------------------------------------- methods as written


def test_a_method_with_settings() -> None:
    method = Method.parse(" temperature : objective = class-scaled ")
    assert (method.name, method.settings) == ("temperature", {"objective": "class-scaled"})
    assert method.label == "temperature:objective=class-scaled"
    assert method.make().get_params()["objective"] == "class-scaled"
    assert Method.parse("histogram:n-bins=7").settings == {"n_bins": 7}


def test_a_method_with_settings_of_its_objective() -> None:
    text = "temperature:objective=class-scaled:objective.normalise=mm:objective.ddof=0:solver=released"
    method = Method.parse(text)
    assert method.settings == {"objective": "class-scaled:normalise=mm:ddof=0", "solver": "released"}
    assert method.label == text and Method.parse(method.label) == method
    made = Temperature(objective="class-scaled:normalise=mm:ddof=0", solver="released")
    assert method.make().get_params() == made.get_params()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("temprature", "no calibrator named 'temprature'; did you mean temperature"),
        ("temperature:objektive=nll", "no setting of temperature named 'objektive'; did you mean objective"),
        ("temperature:objective", "key=value; got 'objective'"),
        ("temperature:", "key=value; got ''"),
        ("", "no calibrator named ''"),
        ("temperature:objective=nlll", "temperature: there is no objective named 'nlll'; did you mean nll"),
        ("temperature:objective=3", "temperature: objective must be the name of an objective; got 3"),
        ("temperature:objective=focal:objective.gama=2", "temperature: there is no setting of focal named 'gama'"),
        ("temperature:objective=focal:objective.gamma=-2", "temperature: focal: gamma must be a number from 0 to 100"),
        ("temperature:objective=focal:gamma=2", "a setting of objective is written objective.gamma=2"),
        ("temperature:objective.gamma=2", "objective.gamma=2 is a setting of objective: say which one, objective=NAME"),
        ("temperature:objective_settings=x", "no setting of temperature named 'objective_settings'"),
        ("temperature-ece:n-bins=0", "temperature-ece: n_bins must be a whole number of at least 1; got 0"),
        ("class-temperature-greedy:start=20", "class-temperature-greedy: start, stop and step must be a rising grid"),
    ],
)
def test_wrong_methods_are_refused_first(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Method.parse(text)
    with pytest.raises(InputError, match=sentence):
        compare("nowhere.npz", methods=[text])


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("1e-3", 0.001), ("true", True), ("False", False), ("none", None), ("nll", "nll")],
)
def test_settings_have_the_type_they_look_like(text: str, value: object) -> None:
    parsed = parse_entry(f"temperature:objective={text}")[1]["objective"]
    assert parsed == value and type(parsed) is type(value)


def test_each_method_once() -> None:
    methods = ["temperature", "temperature", "identity", "temperature:objective=brier"]
    found = compare(over_confident(60), methods=methods, bootstrap=20)
    labels = [outcome.label for outcome in found.outcomes]
    assert sorted(labels) == ["identity", "temperature", "temperature:objective=brier"]
    assert found.provenance.settings["methods"] == ["temperature", "temperature:objective=brier"]
