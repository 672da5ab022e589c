"""Class frequencies: where a calibrator was fitted, where it is used, and what unlabelled predictions say of them."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from temperance.calibrators import (
    CALIBRATORS,
    Auto,
    Calibrator,
    Identity,
    StructuredVector,
    Temperature,
    load_calibrator,
    make_calibrator,
)
from temperance.calibrators.base import FIT_PART
from temperance.calibrators.fit_part import implied_prior
from temperance.calibrators.priors import LEAST_P_VALUE
from temperance.errors import InputError, NotFittedError, TemperanceWarning
from temperance.jobs.application import apply, with_prior
from temperance.metrics import nll
from temperance.predictions import Predictions

each = pytest.mark.parametrize("method", list(CALIBRATORS), ids=CALIBRATORS.names)
few = pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
EVEN = [0.25, 0.25, 0.25, 0.25]
TAIL = [0.6, 0.25, 0.1, 0.05]


def mixture(n: int, prior: list[float], seed: int = 0, sharpness: float = 2.0, network: list[float] = EVEN) -> Any:
    """Four Gaussian classes and the logits of a network that believes in `network` frequencies, twice too sure."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.tensor(prior, dtype=torch.float64)
    labels = torch.multinomial(weights, n, replacement=True, generator=generator)
    points = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    points[torch.arange(n), labels] += 1.5
    logits = 1.5 * points + torch.tensor(network, dtype=torch.float64).log()
    return sharpness * logits, labels


def true_probs(logits: torch.Tensor, prior: list[float], sharpness: float = 2.0, network: list[float] = EVEN) -> Any:
    shift = torch.tensor(prior, dtype=torch.float64).log() - torch.tensor(network, dtype=torch.float64).log()
    return (logits / sharpness + shift).softmax(1)


# ------------------------------------------------------------------------------------------------------ the correction


@each
@few
def test_every_method_takes_a_prior_and_keeps_it(method: type[Calibrator], tmp_path: Path) -> None:
    logits, labels = mixture(400, TAIL)
    found = method(prior="uniform").fit(logits, labels)
    plain = method().fit(logits, labels)
    probs = found.predict_proba(logits)
    assert float((probs.sum(1) - 1).abs().max()) < 1e-9
    weighted = plain.predict_proba(logits) / plain.implied_prior
    torch.testing.assert_close(probs, weighted / weighted.sum(1, keepdim=True))
    found.save(tmp_path / "cal.safetensors")
    back = load_calibrator(tmp_path / "cal.safetensors")
    assert back.get_params()["prior"] == "uniform" and torch.equal(back.predict_proba(logits), probs)
    blank = method(prior="uniform")
    blank.load_state_dict(found.state_dict())
    assert torch.equal(blank.predict_proba(logits), probs)
    assert found.n_parameters == plain.n_parameters
    assert torch.equal(found.set_prior(None).predict_proba(logits), plain.predict_proba(logits))


@pytest.mark.parametrize("network", [EVEN, TAIL], ids=["network trained on even classes", "on the tail"])
@pytest.mark.parametrize("name", ["identity", "temperature", "bias-corrected-temperature", "structured-vector", "auto"])
def test_it_is_right_whatever_the_method_learns_and_the_network_believes(name: str, network: list[float]) -> None:
    """A temperature does not learn class frequencies, a bias for each class does: with a prior both come out right."""
    logits, labels = mixture(6000, TAIL, 0, network=network)
    test, truth = mixture(6000, EVEN, 1, network=network)
    if name == "identity":  # it cannot learn how sure to be
        logits, test = logits / 2, test / 2
    found = make_calibrator(name, prior="uniform").fit(logits, labels)
    best = nll(true_probs(test, EVEN, 1.0 if name == "identity" else 2.0, network), truth)
    assert nll(found.predict_proba(test), truth) < best + 0.01
    assert nll(found.set_prior(TAIL).predict_proba(test), truth) > best + 0.05


def test_the_formula() -> None:
    logits, labels = mixture(3000, TAIL)
    found = StructuredVector(prior="same").fit(logits, labels)
    torch.testing.assert_close(found.implied_prior, torch.tensor(TAIL, dtype=torch.float64), rtol=0, atol=0.03)
    probs, target = found.predict_proba(logits), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    by_hand = probs * (target / 10) / found.implied_prior
    found.set_prior([1, 2, 3, 4])
    torch.testing.assert_close(found.predict_proba(logits), by_hand / by_hand.sum(1, keepdim=True))
    found.set_prior(np.array([10, 20, 30, 40]))
    torch.testing.assert_close(found.predict_proba(logits), by_hand / by_hand.sum(1, keepdim=True))


def test_the_implied_frequencies_make_predictions_right_on_average() -> None:
    logits, labels = mixture(2000, TAIL)
    log_probs = (logits / 2).log_softmax(1)
    implied = implied_prior(log_probs, labels)
    counts = torch.bincount(labels, minlength=4).double()
    frequencies = (counts + 10 * log_probs.exp().mean(0)) / 2010
    corrected = (log_probs + frequencies.log() - implied.log()).softmax(1)
    torch.testing.assert_close(corrected.mean(0), frequencies, rtol=1e-5, atol=0)
    torch.testing.assert_close(implied, torch.tensor(EVEN, dtype=torch.float64), rtol=0.25, atol=0)


def test_a_few_rows_that_are_nearly_certain_have_a_finite_prior() -> None:
    """Most of the hundred classes do not occur, and what others say of them is below rounding."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(100, (20,), generator=generator)
    logits = torch.randn(20, 100, generator=generator, dtype=torch.float64)
    logits[torch.arange(20), labels] += 2
    prior = implied_prior((20 * logits).log_softmax(1), labels)
    assert bool((prior > 0).all()) and float(prior.sum()) == pytest.approx(1)


def test_a_class_without_a_sample_does_not_become_impossible_or_certain() -> None:
    logits, labels = mixture(900, [1, 1, 1, 0])
    found = Temperature(prior="uniform").fit(logits, labels)
    probs = found.predict_proba(mixture(500, EVEN, 1)[0])
    assert bool(torch.isfinite(probs).all()) and 0.01 < float(probs[:, 3].mean()) < 0.99


def test_a_layer_with_a_prior_is_cast_and_exported() -> None:
    logits, labels = mixture(500, TAIL)
    found = Temperature(prior=TAIL).fit(logits, labels)
    expected = found.predict_proba(logits)
    network = torch.nn.Sequential(torch.nn.Identity(), found).half()
    assert found.target_prior.dtype == torch.float64
    assert torch.equal(network(logits).exp(), expected)
    exported = torch.export.export(network, (logits,)).module()
    torch.testing.assert_close(exported(logits).exp(), expected)


def test_settings_say_what_is_wrong_with_a_prior() -> None:
    logits, labels = mixture(300, EVEN)
    for wrong, says in (
        ("unifrom", "prior must be uniform, same, a list of numbers or none; got 'unifrom'"),
        ([0.5, 0.5], r"a number for each of the 4 classes; got shape \(2,\)"),
        ([1, 1, 1, 0], "above 0 for every class; got 0 for class 3"),
        ([1, 1, 1, -math.inf], "a list of numbers or none; got"),
    ):
        with pytest.raises(InputError, match=says):
            Temperature(prior=wrong).fit(logits, labels)  # type: ignore[arg-type]
    with pytest.raises(NotFittedError):
        Temperature().set_prior("uniform")
    with pytest.raises(NotFittedError):
        Temperature().adapt(logits)


def test_a_file_from_before_there_were_priors_still_loads(tmp_path: Path) -> None:
    logits, labels = mixture(300, EVEN)
    found = Temperature().fit(logits, labels)
    for name in FIT_PART:
        del found._buffers[name]
    found.save(tmp_path / "old.safetensors")
    back = load_calibrator(tmp_path / "old.safetensors")
    assert torch.equal(back.predict_proba(logits), found.predict_proba(logits))
    with pytest.raises(InputError, match="saved without its class frequencies: fit it again"):
        back.set_prior("uniform")


# ------------------------------------------------------------------------------------------------------ the warning


def test_an_imbalanced_fit_part_warns_unless_a_prior_is_given() -> None:
    logits, labels = mixture(4000, [0.7, 0.2, 0.07, 0.03])
    with pytest.warns(
        TemperanceWarning, match=r"^the samples are imbalanced: 2,\d\d\d of class 0, 1\d\d of class 3"
    ) as w:
        Temperature().fit(logits, labels)
    assert len(w) == 1
    for prior in ("same", "uniform", EVEN):
        Temperature(prior=prior).fit(logits, labels)


@pytest.mark.parametrize(
    "counts",
    [[500, 80, 70, 63], [900, 20], [60, 60, 60, 3], [2500, 2500, 2400, 0]],
    ids=["under eight times", "two classes", "few samples", "a class that never occurs"],
)
def test_ordinary_data_do_not_warn(counts: list[int]) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    logits = torch.randn(len(labels), len(counts), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[torch.arange(len(labels)), labels] += 1.5
    Identity().fit(logits, labels)


# ------------------------------------------------------------------------------------------------------ estimation


def test_em_finds_the_frequencies_and_adapting_helps() -> None:
    logits, labels = mixture(5000, TAIL)
    found = StructuredVector(prior="same").fit(logits, labels)
    new, truth = mixture(3000, [0.1, 0.2, 0.3, 0.4], 1)
    before = nll(found.predict_proba(new), truth)
    shift = found.adapt(new.numpy())
    real = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert float((shift.prior - real).abs().max()) < 0.04 and bool((shift.high - shift.low < 0.08).all())
    assert shift.shifted and not shift.other_shift and shift.n == 3000
    assert shift.verdict.startswith(
        "the class frequencies of these 3,000 predictions differ from those of the fit part"
    )
    assert nll(found.predict_proba(new), truth) < before - 0.1
    known = StructuredVector(prior=real.tolist()).fit(logits, labels)
    assert nll(found.predict_proba(new), truth) < nll(known.predict_proba(new), truth) + 0.01


def test_em_reaches_the_maximum_of_the_likelihood() -> None:
    """With two classes and an even prior the likelihood can be searched by brute force."""
    logits, labels = mixture(2000, EVEN)
    pair = labels < 2
    found = StructuredVector().fit(logits[pair][:, :2], labels[pair])
    new, truth = mixture(1500, [0.5, 0.1, 0.2, 0.2], 1)
    rows = new[truth < 2][:, :2]
    ratios = found.predict_proba(rows) / found.implied_prior
    grid = torch.linspace(0.001, 0.999, 9981, dtype=torch.float64)
    values = (ratios @ torch.stack([grid, 1 - grid])).log().sum(0)
    assert abs(float(found.adapt(rows).prior[0] - grid[values.argmax()])) < 2e-3


def test_what_it_finds_does_not_depend_on_an_earlier_prior() -> None:
    logits, labels = mixture(1000, EVEN)
    new, _ = mixture(800, TAIL, 1)
    found = Temperature().fit(logits, labels)
    first = found.adapt(new).prior
    assert torch.equal(found.set_prior("uniform").adapt(new).prior, first)


def test_intervals_cover() -> None:
    covered = []
    for seed in range(30):
        logits, labels = mixture(1000, EVEN, 2 * seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperanceWarning)  # false alarms
            shift = StructuredVector().fit(logits, labels).adapt(mixture(700, EVEN, 2 * seed + 1)[0])
        covered.append(((shift.low <= 0.25) & (shift.high >= 0.25)).double().mean())
    assert 0.88 < float(torch.stack(covered).mean()) < 0.995


def clusters(n: int, prior: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of any number of classes, and calibrated logits for classes with these frequencies."""
    labels = torch.multinomial(prior, n, replacement=True, generator=generator)
    points = torch.randn(n, len(prior), generator=generator, dtype=torch.float64)
    points[torch.arange(n), labels] += 2.5
    return 2.5 * points, labels


@few
@pytest.mark.parametrize(("k", "draws"), [(3, 40), (10, 40), (100, 15)])
def test_false_alarms_are_rare_for_any_number_of_rows_and_classes(k: int, draws: int) -> None:
    """Frequencies that fall to a tenth, and a new fit part for every draw."""
    prior = torch.logspace(0, -1, k, dtype=torch.float64) / torch.logspace(0, -1, k, dtype=torch.float64).sum()
    sizes = (5, 20, 50, 100, 500, 2000)
    shifted, other = torch.zeros(len(sizes)), torch.zeros(len(sizes))
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        logits, labels = clusters(1000, prior, generator)
        found = Identity(prior="same").fit(logits + prior.log(), labels)
        new = clusters(2000, prior, generator)[0] + prior.log()
        for i, n in enumerate(sizes):
            shift = found.adapt(new[:n])
            shifted[i] += shift.shifted
            other[i] += shift.other_shift
    # 5 % of the draws; more than `most` happen once in a thousand times, and more than 5 % of all are chance as well.
    most = binom.ppf(0.999, draws, 0.05)
    assert int(shifted.max()) <= most and int(other.max()) <= most, (shifted, other)
    assert float(shifted.mean()) <= 0.09 * draws and float(other.mean()) <= 0.09 * draws


@few
@pytest.mark.parametrize("k", [3, 10, 100])
def test_a_shift_is_found_and_adapting_to_500_rows_helps(k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    even = torch.ones(k, dtype=torch.float64) / k
    tail = torch.logspace(0, -1.5, k, dtype=torch.float64)
    tail /= tail.sum()
    found = Identity().fit(*clusters(3000, even, generator))
    new, truth = clusters(500, tail, generator)
    before = nll(found.predict_proba(new), truth)
    shift = found.adapt(new)
    assert shift.shifted and shift.applied is not None
    assert nll(found.predict_proba(new), truth) < before - 0.01
    torch.testing.assert_close(shift.applied.sum(), torch.tensor(1.0, dtype=torch.float64))
    # Between the fit part and the likeliest, for every class.
    assert bool(((shift.applied - shift.fit_prior) * (shift.prior - shift.applied) >= -1e-12).all())


def test_without_a_shift_the_probabilities_stay_as_they_are() -> None:
    logits, labels = mixture(2000, TAIL)
    new = mixture(600, TAIL, 3)[0]
    for prior in ("same", "uniform"):
        found = StructuredVector(prior=prior).fit(logits, labels)
        before = found.predict_proba(new)
        for rows, says in (
            (new[:15], "these 15 predictions are too few to tell"),
            (new[:1], "one prediction is too few to tell"),
        ):
            shift = found.adapt(rows)
            assert shift.applied is None and shift.verdict.startswith(says)
            assert shift.verdict.endswith("the calibrator stays as it is")
            assert torch.equal(found.predict_proba(new), before)
        # Enough of them say that the classes are as common as in the fit part, whatever was said before.
        shift = found.adapt(new)
        assert shift.applied is None and shift.verdict.startswith("these 600 predictions show no shift of class")
        assert shift.verdict.endswith("from the fit part; no correction is applied")
        assert torch.equal(found.predict_proba(new), before) == (prior == "same")
        assert torch.equal(found.predict_proba(new), found.set_prior("same").predict_proba(new))


def test_fewer_rows_than_classes_are_not_adapted_to() -> None:
    generator = torch.Generator().manual_seed(0)
    even = torch.ones(100, dtype=torch.float64) / 100
    found = Identity().fit(*clusters(3000, even, generator))
    new, _ = clusters(60, torch.eye(100, dtype=torch.float64)[0], generator)
    before = found.predict_proba(new)
    shift = found.adapt(new)
    assert shift.shifted and shift.applied is None and "fewer predictions than classes" in shift.verdict
    assert torch.equal(found.predict_proba(new), before)


def test_a_rare_class_that_is_never_the_likeliest_still_shows_its_shift() -> None:
    """One sample in fifty is positive, and no probability of it exceeds a half."""
    generator = torch.Generator().manual_seed(0)

    def scores(n: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
        labels = (torch.rand(n, generator=generator) < share).long()
        points = torch.randn(n, generator=generator, dtype=torch.float64) + labels
        margin = (points - 0.5 + math.log(0.02 / 0.98)).clamp_max(-0.01)
        return torch.stack([torch.zeros_like(margin), margin], 1), labels

    found = Temperature(prior="same").fit(*scores(5000, 0.02))
    shift = found.adapt(scores(500, 0.3)[0])
    assert shift.shifted and float(shift.prior[1]) > 0.15


def test_the_frequencies_that_are_applied_are_told_and_kept() -> None:
    logits, labels = mixture(3000, TAIL)
    found = Temperature(prior="same").fit(logits, labels)
    data = Predictions.of(mixture(2000, EVEN, 1)[0], from_logits=True)
    corrected = with_prior(found, "adapt", data)
    shift = found.adapt(data.logits())
    assert corrected.info["prior"] == shift.applied.tolist() and corrected.info["adapted"] in shift.verdict  # type: ignore[union-attr]
    assert "frequency in brackets: class 0 2" in shift.verdict and shift.verdict.count(" %)") == 3


def test_another_kind_of_shift_is_recognised() -> None:
    logits, labels = mixture(3000, EVEN)
    found = Temperature().fit(logits, labels)
    blurred = 0.5 * mixture(1500, EVEN, 1)[0]
    with pytest.warns(TemperanceWarning, match="differ from the fit part by something other than class frequencies"):
        shift = found.adapt(blurred)
    assert shift.other_shift and shift.p_value_other == LEAST_P_VALUE
    assert "show no shift of class frequencies from the fit part" in shift.verdict
    assert "other than class frequencies (p ≤ 0.001). A fit on" in shift.verdict


def test_what_other_inputs_may_have_done_is_not_said_of_the_classes() -> None:
    """Noise makes one class look like another, as if it were rarer; nothing happened to the classes."""
    logits, labels = mixture(3000, EVEN)
    found = Temperature().fit(logits, labels)
    noisy = mixture(1500, EVEN, 1)[0]
    noisy[:, 0] -= 1.5
    with pytest.warns(TemperanceWarning, match="may do harm. Label some of them. Then measure with and without"):
        shift = found.adapt(noisy)
    assert shift.shifted and shift.verdict.startswith("the class frequencies of these 1,500 predictions seem to differ")


def test_applying_with_a_prior_leaves_the_calibrator_as_it_is() -> None:
    logits, labels = mixture(2000, TAIL)
    found = Temperature(prior="same").fit(logits, labels)
    new = Predictions.of(mixture(900, EVEN, 1)[0], from_logits=True)
    plain = apply(found, new)
    for prior in ("uniform", "adapt", [4, 3, 2, 1]):
        assert not torch.allclose(apply(found, new, prior=prior).scores, plain.scores, atol=1e-3)
    assert torch.equal(apply(found, new, prior="same").scores, plain.scores)
    assert "target_prior" not in found.state_dict()


def test_auto_is_told_too() -> None:
    logits, labels = mixture(1500, TAIL)
    found = Auto(prior="uniform", members=["structured-vector"]).fit(logits, labels)
    assert json.loads(json.dumps(found.info)) and all(not hasattr(part, "target_prior") for part in found.children())


def test_a_class_that_the_fit_part_has_no_sample_of_is_left_next_to_nothing() -> None:
    logits, labels = mixture(2000, [2, 1, 1, 0])
    new, _ = mixture(1000, [1, 1, 2, 0], 1)
    shift = Temperature().fit(logits, labels).adapt(new)
    assert 0 < float(shift.prior[3]) < 1e-3 and shift.shifted and not shift.other_shift
    torch.testing.assert_close(shift.prior[:3], torch.tensor([0.25, 0.25, 0.5]).double(), rtol=0, atol=0.06)
