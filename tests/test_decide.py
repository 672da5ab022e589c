"""Decisions with costs: the cheapest is taken, what it costs is counted right, and no saving is claimed by chance."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from commands import run
from conftest import random_predictions
from temperance import decide
from temperance.calibrators import Temperature
from temperance.errors import InputError
from temperance.jobs.costs import Costs
from temperance.jobs.cross_fitting import cross_fitted
from temperance.jobs.policies import THRESHOLDS
from temperance.predictions import Predictions, write_predictions

CLASSES = ("cat", "dog", "owl")


def two_classes(n: int, seed: int, sharpness: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of two classes and labels drawn from them; with a sharpness of 1 they are calibrated."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(n, generator=generator, dtype=torch.float64) - 1
    labels = (torch.rand(n, generator=generator, dtype=torch.float64) < x.sigmoid()).long()
    return torch.stack([torch.zeros_like(x), sharpness * x], 1), labels


def matrix(values: Any, classes: tuple[str, ...] | None = None) -> Costs:
    array = torch.as_tensor(values, dtype=torch.float64)
    names = classes or tuple(map(str, range(len(array))))
    return Costs(array, names, tuple(f"d{i}" for i in range(array.shape[1])))


# -------------------------------------------------------------------------------------------------------------- numbers


def test_numbers_by_hand() -> None:
    probs = [0.05, 0.2, 0.6, 0.95, 0.08]
    labels = [0, 1, 0, 1, 1]
    found = decide(probs, labels, positive=1, false_alarm=1, miss=9, method="temperature")
    # Acting above 10 %: the second, third and fourth; a false alarm for the third, a miss of the fifth.
    assert found.given.cost == pytest.approx((1 + 9) / 5)
    assert found.given.shares == pytest.approx((2 / 5, 3 / 5)) and found.given.means == pytest.approx((9 / 2, 1 / 3))
    # The most probable class: the third and fourth; a false alarm and two misses. Always acting: two false alarms.
    assert found.most_probable is not None and found.most_probable.cost == pytest.approx(19 / 5)
    assert found.constant.cost == pytest.approx(2 / 5) and found.constant.name == "always act"
    assert found.costs.rule[1].low == pytest.approx(0.1)
    assert found.curve is not None
    place = found.curve.thresholds.index(0.5)
    assert found.curve.net_benefit["these probabilities"][place] == pytest.approx(1 / 5 - 1 / 5)
    assert found.curve.net_benefit["act on all"][place] == pytest.approx(3 / 5 - 2 / 5)
    assert found.curve.cost["these probabilities"][place] == pytest.approx(19 / 5)
    assert found.curve.cost["these probabilities"][found.curve.thresholds.index(0.1)] == pytest.approx(10 / 5)


@pytest.mark.parametrize(("false_alarm", "miss"), [(1, 1), (1, 10), (3, 0.5), (2, 0), (0, 2)])
def test_the_threshold_is_that_of_the_formula(false_alarm: float, miss: float) -> None:
    logits, labels = two_classes(500, 0)
    found = decide(logits, labels, from_logits=True, false_alarm=false_alarm, miss=miss, method="temperature")
    acts = logits.softmax(1)[:, 1] > false_alarm / (false_alarm + miss)
    wrong = torch.where(acts, (labels == 0) * false_alarm, (labels == 1) * miss)
    assert found.given.cost == pytest.approx(float(wrong.double().mean()))


def test_abstaining_has_two_thresholds() -> None:
    logits, labels = two_classes(2000, 0)
    how: dict[str, Any] = {"from_logits": True, "false_alarm": 1, "miss": 10, "method": "temperature"}
    found = decide(logits, labels, abstain=0.5, **how)
    names = [(found.costs.decisions[part.decision], part.low, part.high) for part in found.costs.rule]
    assert names == [("do not act", 0, 0.05), ("abstain", 0.05, 0.5), ("act", 0.5, 1)]
    assert found.verdict.endswith("of class 1: act above 50 %, else abstain above 5 %, else do not act.")
    dear = decide(logits, labels, abstain=0.95, **how)
    assert dear.notes == ("Never taken: abstain. Whatever the probabilities, another decision costs no more.",)
    assert (
        dear.given == decide(logits, labels, **how).given or dear.given.cost == decide(logits, labels, **how).given.cost
    )


@pytest.mark.parametrize(("false_alarm", "miss"), [(3, 7), (7, 3), (1, 1), (6, 4), (2, 8)])
def test_what_is_said_gives_the_decisions_at_ties(false_alarm: float, miss: float) -> None:
    p = np.arange(11).repeat(10) / 10
    labels = np.arange(len(p)) % 2
    found = decide(p, labels, positive=1, false_alarm=false_alarm, miss=miss, method="identity")
    assert f"Act if the probability of class 1 is above {100 * found.costs.rule[1].low:.3g} %, else" in found.verdict
    acts = p > false_alarm / (false_alarm + miss)
    assert found.given.shares[1] == pytest.approx(acts.mean())
    assert found.given.cost == pytest.approx(np.where(acts, false_alarm * (labels == 0), miss * (labels == 1)).mean())
    assert found.curve is not None and found.curve.chosen is not None
    place = found.curve.thresholds.index(found.curve.chosen)
    assert found.curve.cost["these probabilities"][place] == pytest.approx(found.given.cost)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_probabilities_in_float32_are_not_above_themselves(kind: torch.dtype) -> None:
    confidence = torch.tensor([0.8, 0.6, 0.9, 1.0] * 10, dtype=kind)
    how: dict[str, Any] = {"answers": True, "abstain": 1, "method": "identity"}
    found = decide(confidence, [0, 1] * 20, false_alarm=5, **how)
    assert found.given.shares == found.by_probabilities[-1].shares == (0.5, 0.5)
    sure = decide(confidence, [0, 1] * 20, false_alarm=1e9, **how)
    assert sure.given.shares == (0.25, 0.75)  # certain is above 99.9999999 %
    assert sure.curve is not None and sure.curve.cost["these probabilities"][-1] == pytest.approx(sure.given.cost)


def test_a_decision_that_is_never_taken_is_not_taken_at_a_tie() -> None:
    costs = {"call": [0.5, 0.5], "no": [0.0, 1.0], "yes": [1.0, 0.0]}
    found = decide([0.5] * 20, [0, 1] * 10, positive=1, costs=costs, method="identity")
    assert found.costs.never == ("call",) and found.given.shares[0] == 0


def test_the_first_of_equals_is_taken() -> None:
    # Sums of tenths differ by rounding: 0.1 + 0.2 is not 0.3.
    probs = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    prices = matrix([[1, 0], [1, 0], [0, 1], [0, 0]])
    assert (probs @ prices.values)[0].tolist() != [0.3, 0.3] and prices.cheapest(probs).tolist() == [0]


@given(st.integers(2, 5), st.integers(2, 6), st.integers(0, 10_000))
def test_the_cheapest_decision_equals_brute_force(k: int, n_decisions: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    costs = generator.integers(-3, 10, (k, n_decisions)).astype(float)
    if (costs == costs[:, :1]).all():
        return
    probs = generator.dirichlet(np.ones(k), 50)
    prices = matrix(costs)
    found = prices.cheapest(torch.from_numpy(probs))
    for row, decision in zip(probs, found.tolist(), strict=True):
        expected = [sum(p * c for p, c in zip(row, column, strict=True)) for column in costs.T]
        assert expected[decision] == pytest.approx(min(expected))
        assert prices.decisions[decision] not in prices.never
        if k == 2:
            (stretch,) = [part for part in prices.rule if part.low < row[1] <= part.high]
            assert expected[stretch.decision] == pytest.approx(min(expected))
    for name in prices.never:
        column = costs[:, prices.decisions.index(name)]
        others = [other for d, other in enumerate(costs.T) if prices.decisions[d] not in prices.never]
        grid = generator.dirichlet(np.ones(k), 100)
        assert all(min(row @ other for other in others) <= row @ column + 1e-12 for row in grid)


@given(st.integers(0, 10_000))
def test_net_benefit_is_its_definition(seed: int) -> None:
    logits, labels = two_classes(60, seed)
    p = logits.softmax(1)[:, 1]
    curve = decide(logits, labels, from_logits=True, false_alarm=1, miss=3, method="temperature").curve
    assert curve is not None and curve.chosen == 0.25 and set(THRESHOLDS) <= set(curve.thresholds)
    for i in (0, 49, 50, 120, 198):
        t = curve.thresholds[i]
        acts = p > t
        benefit = float(((acts & (labels == 1)).double() - t / (1 - t) * (acts & (labels == 0)).double()).mean())
        assert curve.net_benefit["these probabilities"][i] == pytest.approx(benefit)
        cost = float(((acts & (labels == 0)).double() + 3 * (~acts & (labels == 1)).double()).mean())
        assert curve.cost["these probabilities"][i] == pytest.approx(cost)
        assert curve.net_benefit["act on none"][i] == 0


def test_parts_add_up_and_intervals_hold_the_value() -> None:
    logits, labels = random_predictions(800, 4)
    costs = np.random.default_rng(0).uniform(0, 5, (4, 5))
    found = decide(logits, labels, from_logits=True, costs=costs, method="temperature")
    assert found.costs.decisions == ("0", "1", "2", "3", "decision 4") and found.curve is None
    assert len(found.policies) == 4 and found.saving is not None and found.calibrated is not None
    for policy in found.policies:
        whole = sum(s * m for s, m in zip(policy.shares, policy.means, strict=True) if s)
        assert policy.cost == pytest.approx(whole) and policy.low <= policy.cost <= policy.high
    assert found.saving.value == pytest.approx(found.given.cost - found.calibrated.cost)
    assert found.saving.low <= found.saving.value <= found.saving.high
    assert (found.saving.p_value < 0.05) == (found.saving.saves or found.saving.loses)


def test_the_unit_of_costs_does_not_matter() -> None:
    logits, labels = two_classes(400, 0, sharpness=3)
    small, large = (
        decide(logits, labels, from_logits=True, false_alarm=u, miss=7 * u, method="temperature").saving
        for u in (1e-8, 1e6)
    )
    assert small is not None and large is not None and small.p_value == pytest.approx(large.p_value)
    assert small.low * 1e14 == pytest.approx(large.low) and small.changed == large.changed


# --------------------------------------------------------------------------------------------------------------- claims


def test_a_saving_is_seldom_claimed_for_calibrated_predictions() -> None:
    claims, differences = 0, []
    for seed in range(200):
        logits, labels = two_classes(300, seed)
        found = decide(logits, labels, from_logits=True, false_alarm=1, miss=5, method="temperature").saving
        assert found is not None
        claims += found.saves
        differences.append(found.value)
    assert claims <= 10
    # Probabilities that are right cannot be improved on average.
    assert np.mean(differences) <= 2 * np.std(differences) / np.sqrt(len(differences))


def test_few_samples_claim_nothing() -> None:
    logits, labels = two_classes(9, 0, sharpness=50)
    found = decide(logits, labels, from_logits=True, false_alarm=1, miss=10, method="temperature")
    assert found.saving is not None and found.saving.p_value == 1 and found.saving.low < 0 < found.saving.high
    assert found.verdict.startswith("At these costs, nothing shows that the probabilities help.")


def test_what_is_said_of_a_saving() -> None:
    found = decide(*two_classes(4000, 0, sharpness=6), from_logits=True, false_alarm=1, miss=10, method="temperature")
    assert found.saving is not None and found.calibrated is not None
    share = round(100 * found.saving.value / found.given.cost)
    assert found.verdict == (
        "Calibrate before you decide. "
        f"Deciding by these probabilities costs {found.given.cost:.2f} per sample. With probabilities calibrated by "
        f"temperature it costs {found.calibrated.cost:.2f}: calibration saves {found.saving.value:.2f} (95 % interval "
        f"{found.saving.low:.2f} to {found.saving.high:.2f}), {share} %. {found.saving.changed:,} of 4,000 samples are "
        f"decided differently. The best single decision for all samples, act, costs {found.constant.cost:.2f}. Act if "
        "the calibrated probability of class 1 is above 9.09 %, else do not act."
    )


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("false_alarm", "miss", "abstain"),
    [
        (1, 2, None),
        (1, 5, None),
        (1, 6, None),
        (6, 1, None),
        (1, 2000, None),
        (1, 6, 0.7),
        (1e-9, 1, None),
        (1, 1e-9, None),
    ],
)
def test_the_thresholds_in_words_give_the_decisions(
    false_alarm: float, miss: float, abstain: float | None, kind: type
) -> None:
    """Probabilities of three digits lie exactly at a threshold that is rounded to three: 0.167 is above 1 / 6."""
    scores = np.array([*range(1001), *[1 / 6, 999.9999], *np.linspace(0, 3, 300)], kind) / kind(1000)
    labels = np.arange(len(scores)) % 2
    costs: dict[str, Any] = {"false_alarm": false_alarm, "miss": miss, "abstain": abstain}
    found = decide(scores, labels, positive=1, **costs, method="temperature")
    told = [Decimal(text) / 100 for text in re.findall(r"above ([\d.]+) %", found.verdict)]
    assert len(told) == len(found.thresholds) == (1 if abstain is None else 2)
    exact = [Decimal(str(score)) for score in scores]  # as a file has them
    steps = [sum(score > threshold for threshold in told) for score in exact]
    names = [found.costs.decisions[part.decision] for part in found.costs.rule]
    shares = dict(zip(found.costs.decisions, found.given.shares, strict=True))
    for i, name in enumerate(names):
        assert shares[name] == pytest.approx(steps.count(i) / len(steps), abs=1e-12)


def test_what_is_said_otherwise() -> None:
    logits, labels = two_classes(2000, 0)
    how: dict[str, Any] = {"from_logits": True, "false_alarm": 1}
    same = decide(logits, labels, miss=1, method="temperature", **how)
    assert (
        same.verdict.startswith("Calibration changes no decision. Deciding")
        and "every decision is the same" in same.verdict
    )
    unsure = decide(logits, labels, miss=4, method="temperature", **how)
    assert unsure.verdict.startswith("2,000 samples cannot tell whether calibration saves anything.")
    assert "which could be chance (95 % interval" in unsure.verdict and "%." not in unsure.verdict.split("interval")[0]
    harmful = Temperature().fit(*two_classes(2000, 1, sharpness=0.1))
    worse = decide(logits, labels, miss=10, calibrator=harmful, **how)
    assert worse.verdict.startswith("Decide by the probabilities as they are.") and " more (95 %" in worse.verdict
    useless = decide(logits, labels, miss=10_000, method="temperature", **how)
    assert useless.verdict.startswith("At these costs, nothing shows that the probabilities help.")
    noise = decide(logits, labels[torch.randperm(2000, generator=torch.Generator().manual_seed(0))], miss=1, **how)
    assert noise.verdict.startswith("At these costs, nothing shows")
    always = decide(logits, labels, costs=[[0, 1], [0, 1]], from_logits=True, method="temperature")
    assert "Whatever the probability of class 1, choose class 0." in always.verdict


def test_gains_have_no_percentage() -> None:
    found = decide(*two_classes(4000, 0, sharpness=6), from_logits=True, costs=[[0, 1], [9, -1]], method="temperature")
    assert found.saving is not None and found.saving.saves and "), " not in found.verdict.partition(". 1,")[0]


# ------------------------------------------------------------------------------------------------- how it is calibrated


def test_a_file_with_two_parts_is_fitted_on_one(tmp_path: Path) -> None:
    val, test = two_classes(600, 0, sharpness=3), two_classes(500, 1, sharpness=3)
    path = tmp_path / "both.npz"
    np.savez(path, val_logits=val[0], val_labels=val[1], test_logits=test[0], test_labels=test[1])
    found = decide(path, false_alarm=1, miss=5, method="temperature")
    other = decide(*test, from_logits=True, false_alarm=1, miss=5, calibrator=Temperature().fit(*val))
    assert found.n == 500 and found.saving == other.saving
    assert [policy.cost for policy in found.policies] == [policy.cost for policy in other.policies]
    assert found.how == "calibrated by temperature, fitted on its 600 val samples, measured on its 500 test samples"


def test_calibrated_predictions_are_not_calibrated_again(tmp_path: Path) -> None:
    data = Predictions.of(*two_classes(600, 0, sharpness=3), from_logits=True)
    calibrator = Temperature().fit(data.scores, data.labels)
    done = data.calibrated(calibrator.probs_of, by="temperature")
    found = decide(done, false_alarm=1, miss=5)
    assert found.calibrated is None and found.saving is None and len(found.policies) == 3
    assert found.notes == ("These probabilities were calibrated by temperature, so they are not calibrated again.",)
    assert found.verdict.startswith("Deciding by these probabilities costs")
    write_predictions(tmp_path / "done.npz", done)
    calibrator.save(tmp_path / "cal.safetensors")
    said = run(
        "decide",
        tmp_path / "done.npz",
        "--false-alarm",
        "1",
        "--miss",
        "5",
        "--calibrator",
        tmp_path / "cal.safetensors",
    )
    assert said.code == 2 and "are calibrated already, by temperature; leave out" in said.err


def test_answers_are_used_or_not() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.2, 1, 3000)
    correct = generator.random(3000) < confidence**2
    found = decide(confidence, correct, answers=True, false_alarm=5, abstain=1, method="temperature")
    used = confidence > 0.8
    assert found.given.cost == pytest.approx(float(np.where(used, 5.0 * ~correct, 1.0).mean()))
    assert found.most_probable is None
    assert found.verdict.endswith("confidence is above 80 %, else abstain.") and "Use the answer if" in found.verdict
    with pytest.raises(InputError, match="leave out miss"):
        decide(confidence, correct, answers=True, false_alarm=5, abstain=1, miss=2)


def test_one_sample_and_one_class() -> None:
    one = decide([[0.2, 0.8]], [1], false_alarm=1, miss=2)
    assert one.n == 1 and one.verdict.startswith("At these costs, nothing shows")
    assert one.calibrated is None and one.how == ""
    assert one.notes == ("There is one label in all of these samples, so nothing can be fitted to them.",)
    single = decide(two_classes(100, 0)[0], torch.zeros(100, dtype=torch.long), from_logits=True, false_alarm=1, miss=2)
    assert single.constant.cost == 0 and single.constant.low == 0 and single.constant.name == "never act"


def test_small_costs_are_not_nothing() -> None:
    logits, labels = two_classes(2000, 0, sharpness=3)
    found = decide(logits, labels, from_logits=True, false_alarm=1, miss=100_000, method="temperature")
    shown = [found.money(value) for value in (0.766, 0.0234, -0.766, 750, 0, 1e-9)]
    assert shown == ["0.8", "0.02", "-0.8", "750", "0", "0"]
    assert f"costs {found.constant.cost:.1f}." in found.verdict


def test_what_calibration_saves_is_the_difference_of_the_costs_as_shown() -> None:
    for sharpness in (1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5):
        logits, labels = two_classes(2000, 0, sharpness=sharpness)
        found = decide(logits, labels, from_logits=True, false_alarm=1, miss=10, method="temperature")
        assert found.calibrated is not None and found.saving is not None
        before, after, saves = (
            Decimal(found.money(cost)) for cost in (found.given.cost, found.calibrated.cost, found.saving.value)
        )
        assert before - after == saves, found.verdict


def test_pixels_are_said_to_be_alike() -> None:
    dense = Predictions.of(np.full((2, 2, 8, 8), 0.5), np.arange(128).reshape(2, 8, 8) % 2)
    found = decide(dense, false_alarm=1, miss=2, method="temperature")
    assert "Every pixel counts as a sample" in found.notes[0]
    assert found.how == "calibrated by temperature, each image by a fit on others"
    one = decide(dense.select(torch.arange(64)), false_alarm=1, miss=2, method="temperature")
    assert one.calibrated is None and one.notes[1].startswith("One image has no others to fit on")


def test_no_pixel_is_fitted_on_its_own_image() -> None:
    logits, labels = two_classes(400, 0, sharpness=3)
    images = torch.arange(400) // 100
    found = cross_fitted("temperature", logits, labels, images=images, folds=5, seed=0)
    for image in range(4):
        own = images == image
        others = Temperature().fit(logits[~own], labels[~own]).predict_proba(logits[own])
        torch.testing.assert_close(found[own], others)
