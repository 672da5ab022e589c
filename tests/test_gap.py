"""The calibration error without bins: below the truth, near it, and nothing where nothing is wrong."""

import math
from pathlib import Path

import pytest
import torch

from temperance import calibration_gap, evaluate
from temperance.cli import main
from temperance.errors import InputError
from temperance.predictions import Predictions, write_predictions


def samples(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that say how likely each label is, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


def true_errors(logits: torch.Tensor, factor: float) -> dict[str, float]:
    """What the errors are if probabilities come from the logits times a factor."""
    right, said = logits.softmax(1), (factor * logits).softmax(1)
    off = (said - right).gather(1, said.argmax(1, keepdim=True))
    return {
        "nll": float((right * (right / said).log()).sum(1).mean()),
        "brier": float((said - right).square().sum(1).mean()),
        "top-l1": float(off.abs().mean()),
        "top-l2": math.sqrt(float(off.square().mean())),
    }


def test_it_is_near_the_truth_and_its_bound_below() -> None:
    logits, labels = samples(20_000)
    truth = true_errors(logits, 2.0)
    found = calibration_gap(2.0 * logits, labels, from_logits=True, method="temperature")
    assert list(found) == list(truth)
    for name, gap in found.items():
        assert gap.low < gap.value and gap.low < truth[name]
        # The confidence alone does not tell how it is off for each sample, so less than all of it is found.
        assert gap.value == pytest.approx(truth[name], rel=0.15)


def test_bounds_hold_for_calibrated_predictions() -> None:
    found = [calibration_gap(*samples(200, seed), from_logits=True, method="temperature") for seed in range(30)]
    for name in found[0]:
        assert all(gap[name].value >= gap[name].low >= 0 for gap in found)
        assert sum(gap[name].low > 0 for gap in found) <= 5  # of 30 at 5 %: more with a chance of 0.3 %


def test_the_bound_of_the_mean_error_allows_for_sides_that_are_chosen_by_chance() -> None:
    above = 0
    for seed in range(80):
        generator = torch.Generator().manual_seed(seed)
        said = torch.tensor([0.6, 0.7, 0.8, 0.9])[torch.randint(4, (500,), generator=generator)]
        right = torch.bernoulli(said, generator=generator).long()
        above += calibration_gap(said, right, answers=True, method="isotonic")["top-l1"].low > 0
    assert above <= 8  # of 80 at 5 %; with a bound for independent samples 11


def test_probabilities_and_logits_agree() -> None:
    logits, labels = samples(500)
    one = calibration_gap(2 * logits, labels, from_logits=True, method="temperature")
    other = calibration_gap((2 * logits).softmax(1), labels, method="temperature")
    assert all(one[name].value == pytest.approx(other[name].value, abs=1e-9) for name in one)


def test_weights_count() -> None:
    logits, labels = samples(1000)
    logits[::2] *= 3  # the half that is off
    plain = calibration_gap(logits, labels, from_logits=True, method="temperature")
    weights = torch.where(torch.arange(1000) % 2 == 0, 1.0, 0.01)
    found = calibration_gap(logits, labels, from_logits=True, method="temperature", weights=weights)
    scaled = calibration_gap(logits, labels, from_logits=True, method="temperature", weights=9.3 * weights)
    for name, gap in found.items():
        assert gap.value > plain[name].value and gap.low == pytest.approx(scaled[name].low, abs=1e-6)
    kept = torch.arange(1000) % 2 == 0
    some = calibration_gap(logits, labels, from_logits=True, method="temperature", weights=kept)
    alone = calibration_gap(logits[kept], labels[kept], from_logits=True, method="temperature")
    assert some["nll"].value == pytest.approx(alone["nll"].value, abs=1e-9)


def test_evaluate_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logits, labels = samples(400)
    data = Predictions.of(2 * logits, labels, from_logits=True)
    found = calibration_gap(data, method="temperature")
    note = evaluate(data, gap="temperature", bootstrap=0).notes[-1]
    assert f"would lower NLL by {found['nll'].value:.4g}"[:28] in note and "one-sided 95 % bound" in note
    write_predictions(tmp_path / "p.npz", data)
    assert main(["evaluate", str(tmp_path / "p.npz"), "--gap", "temperature", "--bootstrap", "0"]) == 0
    assert "Measured without bins" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "wrong"), [*(("temperature", wrong) for wrong in (0, 1, 199, 200)), ("auto", 0), ("auto", 199)]
)
def test_where_all_predictions_are_right_or_wrong_the_rest_is_measured(method: str, wrong: int) -> None:
    logits, _ = samples(200)
    labels = logits.argmax(1)
    labels[:wrong] = logits[:wrong].argmin(1)
    result = evaluate(Predictions.of(logits, labels, from_logits=True), gap=method, bootstrap=0)
    assert result.row("accuracy").value == pytest.approx(1 - wrong / 200)
    assert ("There is no confidence gap to measure" in result.notes[-1]) == (wrong in (0, 200))
    assert "would lower NLL by" in result.notes[-1]


def test_no_error_is_not_called_an_error_of_nothing() -> None:
    logits, labels = samples(5)
    data = Predictions.of(logits, labels, from_logits=True)
    assert calibration_gap(data, method="identity")["top-l2"].value == 0
    note = evaluate(data, gap="identity", bootstrap=0).notes[-1]
    assert "of the confidence it finds no error" in note and "confidence is off" not in note


def test_labels_of_one_class_have_no_gap() -> None:
    found = calibration_gap(samples(100)[0], torch.zeros(100, dtype=torch.long), from_logits=True, method="auto")
    assert found["nll"].value == found["nll"].low == 0


def test_the_root_mean_square_is_at_least_the_mean() -> None:
    for seed in range(20):
        found = calibration_gap(*samples(60, seed), from_logits=True, method="temperature")
        assert found["top-l2"].value >= found["top-l1"].value


def test_wrong_settings_are_refused() -> None:
    logits, labels = samples(50)
    with pytest.raises(InputError, match="level must be a number above 0 and below 1"):
        calibration_gap(logits, labels, from_logits=True, level=1.0)
    with pytest.raises(InputError, match="folds"):
        calibration_gap(logits, labels, from_logits=True, folds=1)
    for call in (lambda: calibration_gap("nowhere.npz", method="magic"), lambda: evaluate("nowhere.npz", gap="magic")):
        with pytest.raises(InputError, match=r"^there is no calibrator named"):
            call()
