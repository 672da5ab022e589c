"""Choosing and combining: what Auto promises, and kernel logistic regression."""

import math
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import random_predictions
from temperance.calibrators import Auto, KernelLogistic, Temperature, auto, load_calibrator, make_calibrator
from temperance.calibrators._fit.inverse_temperature import (
    SPREAD_ABOVE,
    SPREAD_BELOW,
    TYPICAL,
)
from temperance.calibrators._fit.pool import PSEUDO_SAMPLES, pool_weights
from temperance.calibrators.auto import (
    MEMBERS,
    TOO_LIKELY,
    _chance_of_harm,
    _chance_of_loss,
)
from temperance.errors import FileError, TemperanceWarning
from temperance.metrics import ece, nll
from temperance.numerics import random_folds
from temperance.progress import listening


def calibrated(n: int, k: int, seed: int = 0) -> tuple[Any, Any]:
    """Logits whose softmax is the true distribution of the label."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


def bent(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Three classes; the truth depends on the logits in a way that no linear map of them gives."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    truth = torch.stack([2 * torch.sin(2 * logits[:, 1]), logits[:, 0].square(), logits[:, 2]], 1)
    return logits, torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)


# ----------------------------------------------------------------------------------------------------------------- auto


def test_it_says_which_member_and_fold_it_is_at() -> None:
    said: list[tuple[int, int, str]] = []
    with listening(lambda *told: said.append(told)):
        Auto(members=["structured-vector"], folds=2).fit(*random_predictions(200, 3))
    Auto(members=["structured-vector"], folds=2).fit(*random_predictions(200, 3))  # and now to nobody
    assert [what for _, _, what in said[:4]] == [
        f"auto: {member}, fold {fold} of 2" for fold in (1, 2) for member in ("temperature", "structured-vector")
    ]
    assert all(what.endswith(" on all samples") for _, _, what in said[4:]) and len(said) > 4
    assert all(one[0] < other[0] < other[1] for one, other in pairwise(said))


def test_it_is_no_worse_than_its_best_member_and_says_what_it_chose() -> None:
    fit, test = random_predictions(1500, 5, 0, sharpness=4.0), random_predictions(4000, 5, 1, sharpness=4.0)
    found = Auto().fit(*fit)
    names = ("identity", "temperature", "order-preserving", *MEMBERS)
    single = min(nll(make_calibrator(name).fit(*fit).predict_proba(test[0]), test[1]) for name in names)
    assert nll(found.predict_proba(test[0]), test[1]) < single * 1.005
    assert found.info["weights"] and 0 <= found.info["trust"] <= 1
    steps = ["identity", "temperature", *MEMBERS, "pool", "pool and gap-scaling"]
    assert list(found.info["held_out_nll"]) == steps and len(found.info["gain"]) == 3
    gain, error = found.info["gain"]["temperature"]
    assert gain > 2 * error > 0


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_the_steps_are_judged_on_samples_they_were_not_fitted_on() -> None:
    """Labels that have nothing to do with the logits: whatever a step gains on what it was fitted to is an illusion."""
    logits, labels = calibrated(60, 3)
    scrambled = labels[torch.randperm(60, generator=torch.Generator().manual_seed(1))]
    found = Auto(members=["vector", "matrix"]).fit(logits, scrambled)
    log_probs = found(logits)
    assert float(-log_probs.gather(1, scrambled[:, None]).mean()) < found.info["held_out_nll"]["pool"]


@pytest.mark.parametrize(("enough", "fits"), [(1500, 6), (700, 4), (200, 2)])
def test_of_many_samples_as_few_folds_are_left_out_as_are_enough(
    enough: int, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[int] = []

    def counted(name: str, logits: Any, labels: Any, counts: Any, **how: Any) -> Any:
        fitted.extend([len(labels)] * (name == "structured-vector"))
        return member(name, logits, labels, counts, **how)

    member = auto._member
    monkeypatch.setattr(auto, "_member", counted)
    monkeypatch.setattr(auto, "HELD_OUT", enough)
    fit, test = biased(1500, 0), biased(4000, 1)
    found = Auto(members=["structured-vector"]).fit(*fit)
    assert fitted == [1200] * (fits - 1) + [1500]
    plain = Temperature().fit(*fit)
    assert nll(found.predict_proba(test[0]), test[1]) < nll(plain.predict_proba(test[0]), test[1]) - 0.01


def bent_by_sureness(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Right as often as the softmax says, but the more certain the logits, the less they can be believed."""
    logits, labels = calibrated(n, 6, seed)
    return logits * (0.5 + 2.5 * logits.softmax(1).amax(1, keepdim=True) ** 3), labels


def test_gap_scaling_mends_what_the_members_cannot() -> None:
    fit, test = bent_by_sureness(4000), bent_by_sureness(6000, 1)
    found = Auto(members=["temperature"]).fit(*fit)
    gain, error = found.info["gain"]["pool and gap-scaling"]
    assert gain > 2 * error
    plain = Temperature().fit(*fit).predict_proba(test[0])
    assert nll(found.predict_proba(test[0]), test[1]) < nll(plain, test[1]) - gain / 2
    assert ece(found.predict_proba(test[0]), test[1]) < ece(plain, test[1])


def test_it_finds_what_only_a_nonlinear_member_can() -> None:
    fit, test = bent(3000), bent(4000, 1)
    found = Auto().fit(*fit)
    assert max(found.info["weights"], key=found.info["weights"].get) == "kernel-logistic"
    linear = make_calibrator("structured-matrix").fit(*fit)
    assert nll(found.predict_proba(test[0]), test[1]) < nll(linear.predict_proba(test[0]), test[1]) - 0.05


@pytest.mark.parametrize("n", [60, 300, 2000])
def test_what_is_calibrated_is_left_alone_up_to_noise(n: int) -> None:
    losses = []
    for seed in range(3):
        fit, test = calibrated(n, 4, seed), calibrated(4000, 4, 100 + seed)
        found = Auto().fit(*fit)
        losses.append(nll(found.predict_proba(test[0]), test[1]) - nll(test[0], test[1], from_logits=True))
    assert sum(losses) / 3 < 10 / n


@pytest.mark.parametrize("n", [50, 150, 500])
def test_few_samples_do_no_harm(n: int) -> None:
    """Fifty classes, so that there are more of them than of samples, or as few as ten of each."""
    excess = []
    for seed in range(4):
        fit, test = random_predictions(n, 50, seed, sharpness=4.0), random_predictions(3000, 50, 100 + seed, 4.0)
        found, plain = Auto().fit(*fit), Temperature().fit(*fit)
        excess.append(nll(found.predict_proba(test[0]), test[1]) - nll(plain.predict_proba(test[0]), test[1]))
    assert sum(excess) / 4 < 5 / n


def sure(n: int, seed: int = 0) -> tuple[Any, Any]:
    """A network that is right 24 times in 25, and twice as sure as it should be."""
    generator = torch.Generator().manual_seed(seed)
    logits = 20 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return 2 * logits, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("n", [15, 40])
def test_samples_without_a_mistake_do_not_make_it_certain(n: int) -> None:
    """All happen to be right: the likeliest temperature is zero, and the first mistake would cost a fortune."""
    logits, labels = sure(4000)
    right = torch.nonzero(logits.argmax(1) == labels).squeeze(1)[:n]
    with pytest.warns(TemperanceWarning, match=f"^in {n} samples there is no mistake") as warned:
        found = Auto().fit(logits[right], labels[right])
    assert len(warned) == 1
    (unseen, truth), asis = sure(4000, 1), nll(*sure(4000, 1), from_logits=True)
    assert found.info["trust"] == 0 and nll(found.predict_proba(unseen), truth) < 1.2 * asis
    assert nll((unseen / 0.01).softmax(1), truth) > 5 * asis


def test_few_mistakes_are_believed() -> None:
    """A hundred samples with a few mistakes: as good as temperature scaling, and far better than nothing."""
    ours, theirs, asis = [], [], []
    for seed in range(5):
        fit, test = sure(100, seed), sure(4000, 100 + seed)
        ours.append(nll(Auto().fit(*fit).predict_proba(test[0]), test[1]))
        theirs.append(nll(Temperature().fit(*fit).predict_proba(test[0]), test[1]))
        asis.append(nll(*test, from_logits=True))
    assert sum(ours) < min(1.02 * sum(theirs), 0.9 * sum(asis))


@pytest.mark.parametrize(("n", "low", "high"), [(60, 0.0, 0.2), (3000, 0.95, 1.0)])
def test_it_is_trusted_as_far_as_it_is_seen_to_help(n: int, low: float, high: float) -> None:
    trusts = [Auto(members=["structured-matrix"]).fit(*biased(n, seed)).info["trust"] for seed in range(4)]
    assert low <= sum(trusts) / 4 <= high


def biased(n: int, seed: int) -> tuple[Any, Any]:
    """Some classes are a little more common than the logits say."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 10, generator=generator, dtype=torch.float64)
    truth = logits + 0.5 * torch.linspace(-1, 1, 10, dtype=torch.float64)
    return logits, torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)


def test_a_loss_is_as_likely_as_randomly_weighted_samples_lose() -> None:
    """The pseudo-samples among them, labelled as a belief says."""
    logits, labels = calibrated(300, 4)
    plain, other, belief = (each.log_softmax(1) for each in (logits, 0.9 * logits, 0.8 * logits))
    gain = (other - plain).gather(1, labels[:, None]).squeeze(1)
    expected = (belief.exp() * (other - plain)).sum(1)
    shapes = torch.cat([torch.ones(300), torch.full((300,), PSEUDO_SAMPLES / 300)])
    weights = torch.distributions.Gamma(shapes.double(), torch.ones(600, dtype=torch.float64))
    torch.manual_seed(0)
    drawn = float((weights.sample((20000,)) @ torch.cat([gain, expected]) < 0).double().mean())
    assert 0.05 < drawn < 0.95
    assert _chance_of_loss(other, plain, belief, labels, ones(300)) == pytest.approx(drawn, abs=0.02)


def test_the_chances_of_weighted_samples_are_those_of_repeated_ones() -> None:
    logits, labels = calibrated(60, 4)
    counts = torch.arange(60) % 3 + 1
    many, again = logits.repeat_interleave(counts, 0), labels.repeat_interleave(counts)

    def chance_of_loss(logits: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor) -> float:
        plain, other, belief = ((factor * logits).log_softmax(1) for factor in (1.0, 0.9, 0.8))
        return _chance_of_loss(other, plain, belief, labels, counts)

    expected = chance_of_loss(many, again, ones(len(again)))
    assert 0.05 < expected < 0.95
    assert chance_of_loss(logits, labels, counts.double()) == pytest.approx(expected, rel=1e-9)
    expected = _chance_of_harm(many, again, ones(len(again)), 1.3)
    assert 0.05 < expected < 0.95
    assert _chance_of_harm(logits, labels, counts.double(), 1.3) == pytest.approx(expected, rel=1e-9)


def ones(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.float64)


def test_much_better_and_much_worse_predictions_are_told_apart() -> None:
    logits, labels = calibrated(2000, 4)
    plain, sharper = logits.log_softmax(1), (3 * logits).log_softmax(1)
    assert _chance_of_loss(sharper, plain, plain, labels, ones(2000)) > 0.999
    assert _chance_of_loss(plain, sharper, plain, labels, ones(2000)) < 0.001


@pytest.mark.parametrize(("n", "sharpness"), [(30, 1.4), (30, 1.0), (30, 0.7), (800, 1.05), (800, 1.5)])
def test_a_temperature_does_harm_as_often_as_temperatures_from_the_posterior_say(n: int, sharpness: float) -> None:
    """By a fine sum over all temperatures that could be true."""
    logits, labels = calibrated(n, 4)
    logits = sharpness * logits
    log_temperatures = torch.linspace(-3, 4, 7001, dtype=torch.float64)
    away = log_temperatures - TYPICAL
    surprise = (away / torch.where(away > 0, SPREAD_ABOVE, SPREAD_BELOW)).square() / 2
    truths = [(logits / at.exp()).log_softmax(1) for at in log_temperatures]
    likelihoods = torch.stack([truth.gather(1, labels[:, None]).sum() for truth in truths])
    posterior = (likelihoods / 2 - surprise).softmax(0)
    temperature = float((likelihoods - surprise).argmax() * 0.001 - 3)
    difference = (logits / math.exp(temperature)).log_softmax(1) - logits.log_softmax(1)
    harm = torch.stack([(truth.exp() * difference).sum() < 0 for truth in truths])
    expected = float(posterior[harm].sum())
    assert _chance_of_harm(logits, labels, ones(n), math.exp(temperature)) == pytest.approx(expected, abs=0.01)


def test_where_harm_is_likely_probabilities_are_left_as_they_are() -> None:
    kept = 0
    for seed in range(4):
        logits, labels = calibrated(400, 4, seed)
        found = Auto().fit(logits, labels)
        same = torch.allclose(found.predict_proba(logits), logits.softmax(1))
        assert same == (found.info["harm"] >= TOO_LIKELY) == found.info["verdict"].startswith("Probabilities are left")
        kept += same
    assert kept >= 2


def test_harm_is_unlikely_where_calibrating_is_needed() -> None:
    found = Auto().fit(*random_predictions(400, 4, sharpness=4.0))
    assert found.info["harm"] < 0.01
    assert found.info["verdict"] == (
        "The probability that calibrating does harm, a higher NLL on new data like these, is less than 0.1 %."
    )


@pytest.mark.parametrize("wrong", [0, 1, 9, 10])
def test_the_probability_of_harm_is_stated_from_ten_mistakes_on(wrong: int) -> None:
    logits, _ = random_predictions(200, 3, sharpness=4.0)
    labels = logits.argmax(1)
    labels[:wrong] = (labels[:wrong] + 1) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        found = Auto().fit(logits, labels).info
    said = found["verdict"]
    assert (" %" in said) == (wrong == 10)
    if wrong < 10:
        count = f"{wrong} mistake{'s' * (wrong != 1)} in 200 samples {'is' if wrong == 1 else 'are'} too few to "
        assert count in said and said.endswith("Collect samples until 10 are predicted wrong.")
        left = said.startswith("Probabilities are left as they are: ")
        assert left == (found["harm"] >= TOO_LIKELY) and not (left and "caution" in found)  # nothing was fitted


def test_a_shift_of_class_frequencies_costs_no_more_than_the_frequencies_explain() -> None:
    """What is right for all frequencies stays right: it must not have been traded for those of the fit."""
    fit, test = bent_by_sureness(4000), bent_by_sureness(12000, 1)
    keep = torch.rand(12000, generator=torch.Generator().manual_seed(2)) < (test[1] + 1) / 6
    logits, labels = test[0][keep], test[1][keep]
    found, plain = Auto().fit(*fit), Temperature().fit(*fit)
    assert nll(found.predict_proba(logits), labels) < nll(plain.predict_proba(logits), labels)


def test_the_weights_are_the_best_ones() -> None:
    logits, labels = random_predictions(500, 3, sharpness=3.0)
    log_probs = torch.stack([logits, logits.flip(1), -logits]).log_softmax(2)
    found = pool_weights(log_probs, labels, torch.ones(500).double())

    def value(weights: torch.Tensor) -> float:
        pooled = torch.einsum("m,mnk->nk", weights, log_probs).log_softmax(1)
        expected = -(log_probs[0].exp() * pooled).sum(1).mean() * PSEUDO_SAMPLES
        return float(torch.nn.functional.nll_loss(pooled, labels, reduction="sum") + expected)

    assert bool((found >= 0).all()) and float(found[0]) > 0.1
    for i in range(3):
        for step in (-1e-3, 1e-3):
            other = found.clone()
            other[i] = (other[i] + step).clamp_min(0)
            assert value(other) >= value(found)


def test_harmful_members_are_not_used() -> None:
    """Meta-Cal answers "uniform" for some samples by design; its weight, if any, must not cost."""
    fit, test = calibrated(1000, 4), calibrated(4000, 4, 1)
    found = Auto(members=["meta-mis"]).fit(*fit)
    assert nll(found.predict_proba(test[0]), test[1]) < nll(test[0], test[1], from_logits=True) + 0.01


def test_it_lowers_the_calibration_error() -> None:
    fit, test = random_predictions(3000, 5, 0, sharpness=3.0), random_predictions(6000, 5, 1, sharpness=3.0)
    found = Auto().fit(*fit)
    assert ece(found.predict_proba(test[0]), test[1]) < 0.25 * ece(test[0], test[1], from_logits=True)


def test_members_that_cannot_be_fitted_are_left_out_with_the_reason() -> None:
    logits, labels = random_predictions(12, 3)
    found = Auto(members=["temperature", "meta-mis"]).fit(logits, labels)
    assert "meta-mis" not in found.info["weights"]
    assert "meta-mis" in found.info["left_out"]


def test_the_seed_decides() -> None:
    logits, labels = random_predictions(100, 3)
    same = [Auto(seed=3).fit(logits, labels).predict_proba(logits) for _ in range(2)]
    assert torch.equal(*same)


def test_files_hold_only_what_is_in_use(tmp_path: Path) -> None:
    for data, last in ((random_predictions(400, 4), set()), (bent_by_sureness(400), {"last"})):
        found = Auto(members=["temperature", "vector"]).fit(*data)
        found.save(tmp_path / "auto.safetensors")
        back = load_calibrator(tmp_path / "auto.safetensors")
        assert back.info == found.info
        assert {name.split(".")[0] for name in back.state_dict() if "." in name} == {*found.info["weights"], *last}
        assert torch.equal(back.predict_proba(data[0]), found.predict_proba(data[0]))
    found.info["weights"] = {name: weight / 2 for name, weight in found.info["weights"].items()}
    found.save(tmp_path / "auto.safetensors")
    with pytest.raises(FileError, match=r"auto\.safetensors.*do not match those in its info; fit it again"):
        load_calibrator(tmp_path / "auto.safetensors")


# ------------------------------------------------------------------------------------------------------ kernel logistic


def test_kernel_logistic_learns_a_bent_truth() -> None:
    fit, test = bent(4000), bent(4000, 1)
    plain = nll(Temperature().fit(*fit).predict_proba(test[0]), test[1])
    assert nll(KernelLogistic().fit(*fit).predict_proba(test[0]), test[1]) < plain - 0.1


def test_a_strong_ridge_leaves_temperature_scaling_and_an_intercept() -> None:
    logits, labels = random_predictions(300, 4, sharpness=3.0)
    held = KernelLogistic(ridge=1e9).fit(logits, labels)
    identity = torch.cat([torch.eye(4, dtype=torch.float64) * held.spread, torch.zeros(4, 200)], 1)
    assert torch.allclose(held.weight, identity, atol=1e-6)
    assert held.info["temperature"] == pytest.approx(float(Temperature().fit(logits, labels).temperature))


def test_kernel_logistic_reports_its_end() -> None:
    found = KernelLogistic().fit(*random_predictions(400, 3))
    assert found.info["converged"] and found.info["gradient"] < 1e-2


def test_a_class_may_be_missing_among_the_samples_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # As with thousands of samples, of which one part is held out.
    monkeypatch.setattr("temperance.calibrators.auto.HELD_OUT", 20)
    logits = 3 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0)) + torch.tensor([3.0, 0.0])
    fold = random_folds(100, 5, seed=0)
    labels = torch.zeros(100, dtype=torch.int64)
    labels[int((fold == 1).nonzero()[0])] = 1
    assert int(labels[fold == 0].sum()) == 0
    found = Auto(prior="same").fit(logits, labels)
    assert found.info["trust"] > 0.1 and "last" in found._modules
    assert found.predict_proba(logits).isfinite().all()


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_members_that_are_slow_with_many_classes_are_left_out() -> None:
    logits, labels = random_predictions(40, 1001)
    found = Auto(folds=2).fit(logits, labels)
    slow = {name for name in auto.MEMBERS if make_calibrator(name).most_classes <= 1000}
    assert set(found.info["left_out"]) == slow == {"structured-matrix", "kernel-logistic"}
    named = Auto(members=["kernel-logistic"], folds=2).fit(logits[:, :5], labels % 5)
    assert not named.info["left_out"]
