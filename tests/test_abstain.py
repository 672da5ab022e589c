"""The confidence below which to abstain: the promise holds, and the sentences say no more than it does."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from commands import run
from conftest import random_predictions
from temperance import abstain
from temperance.calibrators import Temperature
from temperance.errors import InputError
from temperance.jobs.thresholds import STARTS, THRESHOLDS, counts, fewest
from temperance.predictions import Predictions


def drawn(n: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Over-confident answers: right with a probability of the squared confidence, or less if it is near 1."""
    generator = np.random.default_rng(seed)
    confidence = generator.beta(4, 1, n)
    return confidence, generator.random(n) < np.where(confidence > 0.98, 0.85, confidence**2)


@pytest.mark.parametrize("risk", [0.22, 0.3])
def test_the_promise_is_kept(risk: float) -> None:
    kept, wrong = counts(*map(torch.from_numpy, drawn(2_000_000, seed=1)))
    truth = wrong / kept
    broken = found = 0
    for seed in range(200):
        rule = abstain(*drawn(500, seed=2 + seed), answers=True, risk=risk, level=0.9).rules[0]
        if rule.found:
            found += 1
            broken += bool(truth[rule.threshold == THRESHOLDS] >= risk)
    assert found > 100
    assert binom.cdf(200 - broken, 200, 0.9) > 0.001  # no more often broken than one in ten


def test_against_a_slow_reference() -> None:
    confidence, correct = drawn(3000, seed=0)
    for risk in (0.1, 0.2, 0.35):
        rule = abstain(confidence, correct, answers=True, risk=risk).rules[0]
        share, lowest = 0.0, math.nan
        for i, threshold in enumerate(THRESHOLDS.tolist()):
            share += 0.05 / len(STARTS) if i in STARTS else 0
            outcomes = [right for sure, right in zip(confidence, correct, strict=True) if sure >= threshold]
            p_value = binom.cdf(len(outcomes) - sum(outcomes), len(outcomes), risk)
            lowest, share = (threshold, share) if p_value <= share else (lowest, 0.0)
        assert rule.threshold == pytest.approx(lowest, nan_ok=True)
        if rule.found:
            used = confidence >= rule.threshold
            assert rule.kept == used.sum() and rule.coverage == pytest.approx(used.mean())
            assert rule.error == pytest.approx((~correct[used]).mean()) and rule.error < risk


def test_more_risk_uses_more() -> None:
    rules = abstain(*drawn(5000, seed=0), answers=True, risk=[0.15, 0.2, 0.3, 0.5]).rules
    shares = [rule.coverage for rule in rules]
    assert shares == sorted(shares) and rules[-1].threshold == 0 and rules[-1].coverage == 1


def test_right_answers_alone_need_enough_of_them() -> None:
    needed = fewest(0.05, 0.05)
    assert not abstain([0.99] * (needed // 20), [1] * (needed // 20), answers=True, risk=0.05).rules[0].found
    found = abstain([0.999999] * needed, [1] * needed, answers=True, risk=0.05)
    assert found.rules[0].threshold == 0
    assert found.verdict == (
        "Use every prediction. On new answers like these, their error is below 5 % with a probability of 95 %. "
        "Here 0.0 % of them are wrong."
    )
    few = abstain([0.9] * 20, [1] * 20, answers=True, risk=0.05)
    assert few.verdict == (
        f"On these answers, no threshold can promise an error below 5 %; 5 % takes at least {needed} answers. "
        "More answers may give one, and so may a confidence that tells right from wrong better."
    )


def test_groups_share_the_probability() -> None:
    confidence, correct = drawn(6000, seed=0)
    names = np.array(["", "(no name)", "few"])[np.minimum(np.arange(6000) % 100 // 49, 2)]
    data = Predictions.of(confidence, correct, answers=True, groups=names)
    found = abstain(data, risk=[0.1, 0.2, 0.3], by_group=True)
    assert [rule.group for rule in found.rules] == ["(no name)"] * 6 + ["few"] * 3
    for name, rules in zip(("", "(no name)", "few"), found.groups, strict=True):
        mine = names == name
        alone = abstain(confidence[mine], correct[mine], answers=True, risk=[0.1, 0.2, 0.3], level=1 - 0.05 / 3)
        assert [replace(rule, group="") for rule in rules] == pytest.approx(alone.rules, nan_ok=True)
    assert "For each limit, this holds for all groups at once with a probability of 95 %" in found.verdict
    assert "needs at least" not in found.verdict  # each group has enough answers
    few = abstain(data.select((names == "few").nonzero()[0][:80]), risk=0.05, by_group=True, level=0.9)
    assert few.verdict == (
        f"1 of 1 group lacks a threshold for this limit. Even without a mistake, a group needs at least "
        f"{fewest(0.05, 0.1)} answers for an error below 5 %. More answers may give one, and so may a confidence that "
        "tells right from wrong better."
    )


def test_the_promise_is_kept_in_all_groups_at_once() -> None:
    """Three groups whose error is the risk at every confidence: any threshold breaks the promise."""
    generator = np.random.default_rng(0)
    broken = 0
    for _ in range(200):
        confidence = torch.from_numpy(generator.uniform(-4, 12, 900)).sigmoid()
        correct, groups = generator.random(900) >= 0.3, generator.integers(0, 3, 900)
        data = Predictions.of(confidence, correct, answers=True, groups=groups)
        broken += any(rule.found for rule in abstain(data, risk=0.3, level=0.9, by_group=True).rules)
    assert binom.cdf(200 - broken, 200, 0.9) > 0.001


def test_the_limit_of_chance() -> None:
    """If the error is the risk at every confidence, a threshold is found no more often than one in ten."""
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(300):
        confidence = torch.from_numpy(generator.uniform(-4, 12, 300)).sigmoid()
        found += abstain(confidence, generator.random(300) >= 0.3, answers=True, risk=0.3, level=0.9).rules[0].found
    assert binom.cdf(300 - found, 300, 0.9) > 0.001


def test_a_confidence_at_a_threshold_reaches_it() -> None:
    at = THRESHOLDS[[0, 100, 240, -1]].repeat_interleave(2)  # with 0.5, which single precision has too
    correct = torch.tensor([True, False] * 4)
    kept, wrong = counts(at, correct)
    for threshold, n, n_wrong in zip(THRESHOLDS, kept, wrong, strict=True):
        reaches = at >= threshold
        assert n == reaches.sum() and n_wrong == (reaches & ~correct).sum()
    assert float(THRESHOLDS[240]) == 0.5 and counts(torch.tensor([0.5, 0.49]), correct[:2])[0, 240] == 1


def test_samples_are_counted_as_they_are_read() -> None:
    confidence, correct = drawn(300_000, seed=0)
    whole = counts(torch.from_numpy(confidence), torch.from_numpy(correct))
    rule = abstain(confidence, correct, answers=True, risk=0.3).rules[0]
    place = THRESHOLDS.tolist().index(rule.threshold)
    assert rule.kept == whole[0, place] and rule.error == pytest.approx(float(whole[1, place] / whole[0, place]))


def test_a_risk_that_is_named_twice_is_one() -> None:
    assert len(abstain(*drawn(500, seed=0), answers=True, risk=[0.1, 0.2, 0.1]).rules) == 2


@pytest.mark.parametrize("risk", [np.float32(0.3), np.array([0.3]), torch.tensor(0.3), (0.3,)])
def test_a_risk_may_be_any_number(risk: Any) -> None:
    assert abstain(*drawn(500, seed=0), answers=True, risk=risk).rules[0].risk == pytest.approx(0.3)


def test_classes_a_calibrator_and_pixels() -> None:
    logits, labels = random_predictions(4000, 5)
    calibrator = Temperature().fit(*random_predictions(2000, 5, seed=1))
    found = abstain(logits, labels, from_logits=True, calibrator=calibrator, risk=0.3)
    probs = calibrator.predict_proba(logits)
    assert found.rules == abstain(probs, labels, risk=0.3).rules
    dense = Predictions.of(probs[:3999].reshape(3, 1333, 5).movedim(2, 1), labels[:3999].reshape(3, 1333))
    assert "Every pixel counts as a sample" in abstain(dense, risk=0.3).notes[0]


def test_the_command(tmp_path: Path) -> None:
    confidence, correct = drawn(2000, seed=0)
    path = tmp_path / "answers.npz"
    np.savez(path, confidence=confidence, correct=correct)
    said = run("abstain", path, "--answers", "--risk", "0.2,0.3", "--json")
    rules = json.loads(said.out)["rules"]
    assert [rule["risk"] for rule in rules] == [0.2, 0.3]
    assert said.code == 0 and rules[1]["coverage"] > rules[0]["coverage"]
    np.savez(path, confidence=confidence, correct=correct, site=np.repeat(["north", "[x]"], [1990, 10]))
    said = run("abstain", path, "--answers", "--risk", "0.3", "--by", "group", "--group", "site")
    assert said.code == 0 and "north" in said.out and f"takes at least {fewest(0.3, 0.05 / 2)}" in said.out
    said = run("abstain", path, "--answers", "--risk", "0.01,0.05,0.3,0.5")
    assert "each with a probability of 95 %." in " ".join(said.out.split())
    assert "On these answers, no threshold can promise an error below 1 % or 5 %." in " ".join(said.out.split())
    page = tmp_path / "page.html"
    assert run("abstain", path, "--answers", "--report", page).code == 0 and "When to abstain" in page.read_text()
    assert run("abstain", path, "--answers", "--csv", tmp_path / "rules.csv").code == 0
    assert (tmp_path / "rules.csv").read_text().startswith("group,risk,threshold,coverage,error,kept,n,needed\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"risk": 1.0}, "risk must be a number above 0 and below 1; got 1.0"),
        ({"risk": []}, "risk must be at least one number"),
        ({"level": 1}, "level must be"),
        ({"risk": "much"}, "risk must be a number above 0 and below 1; got 'much'"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        abstain([0.9, 0.8], [1, 0], answers=True, **options)


def test_wrong_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="have weights, and the promise is for samples that count equally"):
        abstain(Predictions.of([0.9, 0.8], [1, 0], answers=True, weights=[1, 2]))
    with pytest.raises(InputError, match="have no groups"):
        abstain(Predictions.of([0.9, 0.8], [1, 0], answers=True), by_group=True)
    (tmp_path / "new.csv").write_text("confidence\n0.9\n")
    assert "expected the column correct" in run("abstain", tmp_path / "new.csv", "--answers").err
    (tmp_path / "answers.csv").write_text("confidence,correct\n0.9,1\n")
    assert "got 'half'" in run("abstain", tmp_path / "answers.csv", "--answers", "--risk", "half").err
