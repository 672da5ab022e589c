"""A calibrator knows which samples it was fitted on, so nothing that is measured on them passes for new."""

from pathlib import Path

import pytest

from commands import run
from conftest import random_predictions
from temperance.calibrators import Calibrator, Temperature, load_calibrator
from temperance.errors import InputError
from temperance.jobs import application
from temperance.jobs.abstention import abstain
from temperance.jobs.comparison import compare
from temperance.jobs.decisions import decide
from temperance.jobs.evaluation import evaluate
from temperance.predictions import Predictions, read_predictions, write_predictions

MET = "and looks better on them than on new ones"
N = 300
COSTS = ("--false-alarm", "1", "--miss", "2")


def some(seed: int = 0) -> Predictions:
    return Predictions.of(*random_predictions(N, 2, seed=seed), from_logits=True)


def noted(data: Predictions, calibrator: Calibrator) -> list[str]:
    """What an evaluation says about the samples of the fit."""
    return [note for note in evaluate(data, calibrator=calibrator, bootstrap=0).notes if MET in note]


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_measuring_on_the_samples_of_the_fit_is_noted_and_promises_on_them_are_refused(
    tmp_path: Path, suffix: str
) -> None:
    fitted, new, cal = tmp_path / f"fit{suffix}", tmp_path / f"new{suffix}", tmp_path / "cal.safetensors"
    for path, seed in ((fitted, 0), (new, 1)):
        write_predictions(path, some(seed))
    run("fit", "vector", fitted, "-o", cal)
    assert load_calibrator(cal).info["fitted_on"] == f"{N} samples (fit{suffix})"
    said = "The calibrator was fitted on these samples, and looks better on them than on new ones."
    assert said in " ".join(run("evaluate", fitted, "--calibrator", cal, "--bootstrap", "0").out.split())
    assert MET not in " ".join(run("evaluate", new, "--calibrator", cal, "--bootstrap", "0").out.split())
    out = tmp_path / f"out{suffix}"
    assert run("apply", cal, fitted, "-o", out).out.endswith("on these samples, so do not measure it on them\n")
    assert run("apply", cal, new, "-o", out).out.endswith(f"probabilities in {out}\n")
    found = run("abstain", fitted, "--calibrator", cal)
    assert found.code == 2
    assert "fitted on these samples, and the promise is for samples that are new to it; give others" in found.err
    found = run("decide", fitted, "--calibrator", cal, *COSTS)
    assert found.code == 2
    assert "fitted on these samples, so what it saves here says little; give others, or leave out --cal" in found.err
    assert run("abstain", new, "--calibrator", cal).code == 0
    assert run("decide", new, "--calibrator", cal, *COSTS).code == 0


def test_a_fit_to_half_of_the_samples_is_known_too() -> None:
    data = some()
    found = compare(data, methods=["temperature"], bootstrap=20)
    half, both = found.calibrator(), found.calibrator(refit=True)
    assert noted(data, half) == [
        f"The calibrator was fitted on {N // 2} of these {N} samples, {MET}. Measure it on others."
    ]
    assert noted(found.fit, half) == noted(data, both) == noted(found.test, both)
    assert noted(found.fit, half) == [f"The calibrator was fitted on these samples, {MET}. Measure it on others."]
    assert not noted(found.test, half)
    with pytest.raises(InputError, match=f"fitted on {N // 2} of these {N} samples, and the promise"):
        abstain(data, calibrator=half)
    with pytest.raises(InputError, match="or leave out the calibrator, and each sample is calibrated by a fit on"):
        decide(data, calibrator=half, false_alarm=1, miss=2)


def test_a_fit_to_a_file_in_several_passes_is_known_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_predictions(tmp_path / "fit.npz", some())
    monkeypatch.setattr(application, "LARGE", 1)
    fitted = application.fit(Temperature(), read_predictions(tmp_path / "fit.npz"))
    assert noted(some(), fitted) and not noted(some(1), fitted)


def test_a_fit_to_arrays_is_not_known() -> None:
    data = some()
    assert not noted(data, Temperature().fit(data.scores, data.labels))
