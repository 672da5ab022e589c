"""Every sentence of a comparison, read against data made to be its case."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance.calibrators import Temperature
from temperance.jobs import advice
from temperance.jobs.comparison import Comparison, compare
from temperance.jobs.evaluation import evaluate
from temperance.jobs.outcomes import Method, Outcome
from temperance.metrics.evidence import Evidence
from temperance.metrics.gain import Gains
from temperance.metrics.significance import Draws, Interval
from temperance.predictions import Predictions
from temperance.report.pages.comparison import comparison_page

METHODS = ["temperature", "structured-vector", "isotonic"]


def predictions(n: int, sharpness: float, seed: int = 0, k: int = 4) -> Predictions:
    """Logits that are `sharpness` times those of a calibrated model: above 1 is over-confident."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return Predictions.of(sharpness * logits, labels, from_logits=True)


def compared(data: Predictions, methods: list[str] = METHODS) -> Comparison:
    return compare(data, methods=methods, bootstrap=100)


# ----------------------------------------------------------------------------------------------------- real comparisons


@pytest.mark.parametrize("sharpness", [3.0, 0.3])
def test_over_and_under_confident(sharpness: float) -> None:
    found = compared(predictions(2000, sharpness))
    assert found.recommended.label in ("temperature", "structured-vector")
    assert found.verdict.startswith(
        f"Use {found.recommended.label}: it is significantly better than no calibration (p ≤ 0.001, "
        "corrected for the number of methods). The probability that it does harm, "
        "a higher NLL on new data like these, is less "
        "than 0.1 %. NLL goes from "
    )
    nll = found.verdict.split("NLL goes from")[1].split(", ECE")[0]
    assert "chance" not in nll


def test_a_gain_that_may_be_luck_is_said_to_be_smaller_on_new_data(base: Comparison) -> None:
    sentence = "On new data the gain may be smaller: the method was chosen because it looks good on these samples."
    several = [made_up("temperature", 0.9, noise=noise) for noise in (0.001, 0.015, 0.035)]
    assert [outcome.minus(NONE, "nll").high < -0.05 for outcome in several] == [True, True, False]
    for outcome, said in zip(several, (False, False, True), strict=True):
        found = judged(base, outcome, NONE)
        assert found.recommends and (sentence in found.verdict) == said
    few = made_up("temperature", 0.9, accuracy=0.99)  # ten mistakes, so resampling cannot tell
    assert sentence in judged(base, few, made_up("identity", 1.0, accuracy=0.99)).verdict
    assert sentence not in judged(base, NONE, made_up("temperature", 1.1)).verdict


def test_one_method_needs_no_correction() -> None:
    assert "than no calibration (p ≤ 0.001). The" in compared(predictions(2000, 3.0), ["temperature"]).verdict


def test_calibrated() -> None:
    found = compared(predictions(2000, 1.0))
    assert found.recommended is found.baseline
    said = found.verdict
    if any(outcome.gains and outcome.gains.mean > 0 for outcome in found.ranked if outcome is not found.baseline):
        assert said.startswith("Leave it as it is: 1,000 test samples cannot tell whether a calibrator helps.")
        assert "which could be chance" in said and " test samples would tell." in said
    else:
        assert said == "Leave it as it is: no calibrator has a lower NLL on 1,000 test samples."


@pytest.mark.parametrize("n", [2, 3, 5, 9, 18])
@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_with_a_handful_of_samples_nothing_is_significant(n: int, sharpness: float) -> None:
    for seed in range(5):
        found = compared(predictions(n, sharpness, seed))
        assert found.recommended is found.baseline
        assert "significant" not in found.verdict
        remarks = " ".join(map(found.remark, found.ranked))
        assert "worse than no calibration" not in remarks and "behind" not in remarks.replace(
            "not clearly behind the best", ""
        )


def test_few_samples_say_how_many_would_do() -> None:
    found = compared(predictions(120, 1.5, seed=1), ["temperature"])
    assert found.recommended is found.baseline
    said = re.fullmatch(
        "Leave it as it is: 60 test samples cannot tell whether a calibrator helps. temperature has a lower NLL, which "
        r"could be chance\. The probability that temperature does harm, "
        r"a higher NLL on new data like these, is \d+\.\d %\. If "
        r"the gain of temperature is as large as it looks here, about (\d+) test samples would tell\.",
        found.verdict,
    )
    assert said
    count = int(said[1])
    assert 60 < count < 2000
    # With about as many it is found.
    many = compare(predictions(120, 1.5, seed=1).halves(0)[0], predictions(4 * count, 1.5, 2), methods=["temperature"])
    assert many.recommended.label == "temperature"


def test_a_gain_that_looks_sure_and_is_not_recommended_says_why() -> None:
    """Harm is judged by the samples at hand, the test also by mistakes that they do not show."""
    logits, labels = random_predictions(100, 3, sharpness=2.2)
    found = compared(Predictions.of(logits / 4, labels, from_logits=True), ["temperature"])
    assert found.recommended is found.baseline and found.ranked[0].harm < 0.05
    assert "The test is stricter: it also allows for mistakes that these samples do not show." in found.verdict


def test_a_test_part_without_mistakes() -> None:
    logits, _ = random_predictions(60, 3, sharpness=2.0)
    labels = logits.argmax(1)
    found = compared(Predictions.of(logits, labels, from_logits=True), ["temperature"])
    assert found.ranked[0].label == "temperature"  # whatever is surer looks better
    assert found.recommended is found.baseline
    assert found.verdict == (
        "Leave it as it is: 30 test samples cannot tell whether a calibrator helps. "
        "temperature has a lower NLL, which could be chance. No test prediction is wrong, and only mistakes show "
        "when a model is too sure: collect test samples until 10 are wrong."
    )


def test_what_cannot_be_tested_is_not_called_chance() -> None:
    logits, _ = random_predictions(800, 4)
    found = compared(Predictions.of(logits, logits.argmax(1), from_logits=True), ["temperature"])
    assert found.recommended.label == "temperature" and not found.tells_apart
    assert "(not tested), accuracy stays at 100.00 %." in found.verdict and "chance" not in found.verdict


def test_labels_that_number_the_classes_otherwise_are_noted() -> None:
    """A method may learn to undo that, and its accuracy then looks like a success."""
    data = predictions(1000, 1.0)
    found = compared(Predictions.of(data.scores, (data.labels + 1) % 4, from_logits=True), ["temperature"])
    assert found.notes == evaluate(found.test, metrics="accuracy", bootstrap=0).notes
    (note,) = found.notes
    assert "check that labels and predictions have the same order" in note
    assert "worse than chance" in note and "could be chance" not in note  # they are far below it
    assert not compared(data, ["temperature"]).notes


def test_logits_that_no_temperature_suits_are_noted() -> None:
    found = compared(predictions(2000, 1e-3), ["temperature"])
    assert found.notes == (
        "For temperature, the best temperature is below 0.01, the smallest allowed. The logits are tiny: multiply them "
        "all by the same number.",
    )
    assert not compared(predictions(2000, 1e4), ["temperature"]).notes[1:]  # the first is about labels of probability 0


def test_few_mistakes_do_not_say_how_many_samples_would_do() -> None:
    found = compared(predictions(40, 4.0, seed=1), ["temperature"])
    assert found.verdict == (
        "Leave it as it is: 20 test samples cannot tell whether a calibrator helps. "
        "temperature has a lower NLL, which could be chance. Only 2 test predictions are wrong, and only mistakes "
        "show when a model is too sure: collect test samples until 10 are wrong."
    )


def test_a_loss_that_is_only_rounding_is_none() -> None:
    found = compare(predictions(2000, 1e-9), methods=["temperature"], bootstrap=20)
    assert found.chance_worse["temperature"] < 0.05
    assert sorted(map(found.remark, found.ranked))[1] == "the same as no calibration"


def test_methods_that_change_nothing() -> None:
    found = compared(predictions(60, 3.0), ["identity"])
    assert found.verdict == "Nothing to recommend: no calibrator is among the methods."
    twice = compare(predictions(4000, 3.0), methods=["temperature", "temperature:objective=nll"], bootstrap=100)
    assert twice.verdict.endswith("Not clearly worse: temperature:objective=nll.")


def test_an_imbalanced_fit_part_is_noted_with_the_command_to_use() -> None:
    data, rest = predictions(3000, 3.0), predictions(1000, 3.0, seed=1)
    tail, test = map(with_a_rare_class, (data, rest))
    counts = torch.bincount(tail.labels).tolist()
    most = max(range(4), key=lambda j: counts[j])
    found = compare(tail, test, methods=["temperature"], bootstrap=100)
    (note,) = found.notes
    assert f"imbalanced ({counts[most]:,} of class {most}, {counts[0]:,} of class 0)" in note
    assert note.endswith("for example temperance fit temperature FIT -o CAL --prior uniform.")
    assert compare(tail, test, methods=["temperature:prior=uniform"], bootstrap=100).notes == ()
    named = dataclasses.replace(tail, class_names=("cat", "dog", "elk", "fox"))
    (note,) = compare(
        named, dataclasses.replace(test, class_names=named.class_names), methods=["temperature"], bootstrap=100
    ).notes
    assert f"{counts[0]:,} of cat)" in note
    assert compare(data, rest, methods=["temperature"], bootstrap=100).notes == ()


def with_a_rare_class(data: Predictions) -> Predictions:
    """All samples but most of class 0."""
    return data.select((data.labels > 0) | (torch.arange(data.n) % 20 == 0))


def test_parts_with_other_class_frequencies_are_noted_with_the_command_to_use() -> None:
    """Not if chance explains them, nor small differences, however many the samples."""

    def note(fit: Predictions, test: Predictions, method: str = "temperature") -> str:
        return " ".join(compare(fit, test, methods=[method], bootstrap=100).notes)

    data, test = predictions(3000, 3.0), predictions(1000, 3.0, seed=1)
    tail, few = with_a_rare_class(data), test.select(torch.arange(40))
    fit, share = (float((part.labels == 0).double().mean()) for part in (tail, test))
    said = f"parts: class 0 is {100 * fit:.1f} % of the fit part and {100 * share:.1f} % of the test part. If those"
    assert said in note(tail, test) and note(tail, test).endswith("temperance fit auto FIT -o CAL --prior uniform.")
    assert not any(word in note(tail, test) for word in ("imbalanced", "others differ"))
    assert note(tail, test, "temperature:prior=uniform") == ""
    said = note(data, test.select(test.labels < 2))
    assert "and 3 others differ, too. If" in said and said.endswith("--prior FILE.")
    assert "frequencies" not in note(tail, few).partition("imbalanced")[0]  # by chance alone
    fewer = data.select((data.labels > 0) | (torch.arange(data.n) % 4 > 0))
    fewer, many = (part.select(torch.arange(part.n).repeat(10)) for part in (fewer, data))
    assert note(fewer, many) == ""


def test_all_failing() -> None:
    one_label = Predictions.of(random_predictions(20, 3)[0], [1] * 20, from_logits=True)
    found = compare(one_label, methods=METHODS, bootstrap=20)
    assert found.verdict == "Nothing to recommend: no calibrator could be fitted."
    assert found.remark(found.baseline) == "no calibration"
    (failure,) = found.failures
    assert failure[0] == f"{METHODS[0]} and {len(METHODS) - 1} others" and failure[1].startswith(f"{METHODS[0]} needs")


# -------------------------------------------------------------------------------------------------- made-up comparisons


N = 1000


def made_up(
    name: str,
    nll: float,
    *,
    ece: float = 0.1,
    accuracy: float = 0.7,
    noise: float = 0.001,
    parameters: int = 1,
    worst: float = 1.0,
) -> Outcome:
    """An outcome of which all N samples have about this NLL, where no calibration has 1."""
    seed = sum(map(ord, name))
    generator = torch.Generator().manual_seed(seed)
    values = {"nll": nll, "ece": ece, "accuracy": accuracy}
    draws = {k: Draws(v + noise * torch.randn(99, generator=generator).double(), 1.0) for k, v in values.items()}
    measured = {k: Interval(v, v - noise, v + noise, 0.95) for k, v in values.items()}
    spread = noise * N**0.5 * torch.randn(N, generator=generator).double()
    bound = max(worst, 5 * noise * N**0.5)
    gains = Gains(1 - nll + spread - spread.mean(), -bound, bound)
    fitted = Temperature()
    fitted._keep("numbers", torch.zeros(parameters))
    wrong = round((1 - accuracy) * N)
    evidence = Evidence.counted(N - wrong, N)
    return Outcome(Method(name, {}), fitted, "", 0.1, measured, draws, gains, 0.125, wrong, evidence)


NONE = made_up("identity", 1.0)


@pytest.fixture(scope="module")
def base() -> Comparison:
    return compare(predictions(2 * N, 3.0), methods=["temperature"], bootstrap=20)


def judged(base: Comparison, *outcomes: Outcome) -> Comparison:
    return dataclasses.replace(base, outcomes=outcomes, recommended=advice.recommended(outcomes, NONE))


@pytest.mark.parametrize(
    ("outcome", "drawbacks", "passes"),
    [
        (made_up("better", 0.9, ece=0.05), (), True),
        (made_up("only in nll", 0.9), (), True),
        (made_up("less accurate", 0.9, accuracy=0.65), ("a lower accuracy",), False),
        (made_up("more accurate", 0.9, accuracy=0.75), (), True),
        (made_up("higher ece", 0.9, ece=0.2), ("a higher ECE",), False),
        (made_up("more accurate at a price", 0.9, ece=0.2, accuracy=0.75), ("a higher ECE",), True),
        (made_up("perhaps better at a price", 0.99, ece=0.2, accuracy=0.75, noise=0.1), (), False),
        (made_up("all worse", 1.1, ece=0.2, accuracy=0.6), ("a higher ECE", "a lower accuracy"), False),
        (made_up("perhaps better", 0.99, noise=0.1), (), False),
        (made_up("the same", 1.0), (), False),
    ],
)
def test_what_is_recommended(base: Comparison, outcome: Outcome, drawbacks: tuple[str, ...], passes: bool) -> None:
    assert outcome.drawbacks(NONE) == drawbacks
    assert judged(base, outcome, NONE).recommended is (outcome if passes else NONE)


def test_the_verdict_says_which_were_passed_over_and_why(base: Comparison) -> None:
    bad, lucky = made_up("less accurate", 0.8, accuracy=0.65), made_up("lucky", 0.85, noise=0.2)
    best, close = made_up("better", 0.9, ece=0.05), made_up("nearly as good", 0.9005)
    worst = made_up("all worse", 1.1, ece=0.2)
    found = judged(base, bad, lucky, best, close, NONE, worst)
    assert found.verdict == (
        "Use better: it is significantly better than no calibration (p ≤ 0.001, "
        "corrected for the number of methods). The probability that it does harm, "
        "a higher NLL on new data like these, is "
        "12.5 %. NLL goes from 1.0000 to 0.9000, ECE from 10.00 % to "
        "5.00 %, accuracy stays at 70.00 %. less accurate has a lower NLL, but a lower accuracy than no calibration. "
        "lucky has a lower NLL, which could be chance. Not clearly worse: nearly as good."
    )
    assert [found.remark(outcome) for outcome in found.ranked] == [
        "a lower accuracy than no calibration",
        "gain could be chance, not clearly behind the best",
        "recommended, the lowest NLL that passes",
        "",
        "no calibration",
        "worse than no calibration",
    ]


def test_the_verdict_where_nothing_helps(base: Comparison) -> None:
    perhaps, maybe = made_up("perhaps", 0.99, noise=0.1), made_up("temperature", 0.995, noise=0.1)
    found = judged(base, perhaps, maybe, NONE)
    assert found.verdict.startswith(
        "Leave it as it is: 1,000 test samples cannot tell whether a calibrator helps. "
        "perhaps and temperature have a lower NLL, which could be chance. The probability that temperature does harm, "
        "a higher NLL on new data like these, is 12.5 %. If the gain of temperature is as large as it looks here, "
        "about "
    )
    assert found.verdict.endswith(" test samples would tell.")
    assert judged(base, NONE, made_up("worse", 1.2)).verdict == (
        "Leave it as it is: no calibrator has a lower NLL on 1,000 test samples."
    )
    assert judged(base, made_up("less accurate", 0.8, accuracy=0.65), NONE).verdict == (
        "Leave it as it is. less accurate has a lower NLL, but a lower accuracy than no calibration. With less "
        "accurate, NLL goes from 1.0000 to 0.8000, ECE stays at 10.00 %, accuracy goes from 70.00 % to 65.00 %. "
        "Compare other methods, or fit less accurate by itself if only NLL counts."
    )


def test_a_higher_ece_is_the_price_of_better_predictions_if_nothing_has_both(base: Comparison) -> None:
    sharp, vague = made_up("matrix", 0.7, ece=0.12, accuracy=0.8), made_up("vague", 0.65, ece=0.12)
    found = judged(base, vague, sharp, NONE)
    assert found.verdict == (
        "Use matrix: it is significantly better than no calibration (p ≤ 0.001, corrected for the number of methods). "
        "The probability that it does harm, "
        "a higher NLL on new data like these, is 12.5 %. NLL goes from 1.0000 to 0.7000, ECE "
        "from 10.00 % to 12.00 %, accuracy from 70.00 % to 80.00 %. So NLL falls and ECE rises: it is right more "
        "often, but its confidence is further from how often it is right. No method here gains significantly without "
        "that; if confidence matters more, leave it as it is. vague has a lower NLL, but a higher ECE than no "
        "calibration."
    )
    assert found.remark(sharp) == "recommended, the lowest NLL that passes, a higher ECE than no calibration"
    both = made_up("both", 0.9)
    assert judged(base, vague, sharp, both, NONE).recommended is both


def test_a_gain_that_no_number_of_samples_would_show(base: Comparison) -> None:
    tiny = made_up("tiny", 1 - 1e-7, worst=25.0)
    assert judged(base, tiny, NONE).verdict.endswith("More than 10,000,000 test samples would be needed to tell.")


@pytest.mark.parametrize(
    ("simple", "many", "rest"),
    [
        (1, 112, "(simpler: 1 parameter instead of 112)"),
        (56, 1112, "(simpler: 56 parameters instead of 1,112)"),
        (110, 112, ""),
        (1, 2, ""),
    ],
)
def test_simpler_is_said_of_a_real_difference(base: Comparison, simple: int, many: int, rest: str) -> None:
    best, other = made_up("best", 0.9, parameters=many), made_up("other", 0.9005, parameters=simple)
    said = judged(base, best, other, NONE).verdict
    assert said.endswith(f"Not clearly worse: {' '.join(filter(None, ['other', rest]))}.")


def test_rounding_is_no_gain(base: Comparison) -> None:
    same = made_up("the same", 1.0)
    measured = same.measured | {"nll": dataclasses.replace(same.measured["nll"], value=np.nextafter(1.0, 0.0))}
    found = judged(base, dataclasses.replace(same, measured=measured), NONE)
    assert found.verdict == "Leave it as it is: no calibrator has a lower NLL on 1,000 test samples."


def test_few_mistakes_put_nobody_behind(base: Comparison) -> None:
    best, other = (made_up(name, nll, accuracy=0.985) for name, nll in (("best", 0.8), ("other", 0.9)))
    assert judged(base, best, other, NONE).level_with_best(other)  # there are 15 mistakes
    assert not judged(base, best, other, NONE).level_with_best(NONE)  # which `best` is significantly better than
    best, other = (made_up(name, nll, accuracy=0.97) for name, nll in (("best", 0.8), ("other", 0.9)))
    assert not judged(base, best, other, NONE).level_with_best(other)


def test_no_calibration_is_behind_if_any_method_is_significantly_better(base: Comparison) -> None:
    lucky, better = made_up("lucky", 0.85, noise=0.2), made_up("better", 0.9)
    found = judged(base, lucky, better, NONE)
    assert found.recommended is better and not found.level_with_best(NONE)
    assert found.remark(NONE) == "no calibration"
    assert judged(base, lucky, NONE).remark(NONE) == "recommended, no calibration"


def test_where_nothing_can_be_told_nothing_is_said_of_the_best() -> None:
    found = compared(predictions(40, 4.0, seed=1))
    assert not found.tells_apart and "behind" not in " ".join(map(found.remark, found.ranked))
    assert found.notes == (
        "There are no intervals, and methods cannot be told apart: both need 20 right and 20 "
        "wrong predictions, and 2 are wrong.",
    )
    for outcome in found.ranked:
        by = outcome.minus(found.baseline, "nll")
        assert np.isnan([by.low, by.high]).all() and by.p_value == 1
    page = comparison_page(found)
    assert "Perhaps level with the best" in page and "interval of the difference" not in page
    assert "nan" not in page.split("</style>")[1].split("<script")[0]


def test_a_method_that_changes_nothing_is_called_the_same(base: Comparison) -> None:
    same, better = made_up("auto", 1.0), made_up("better", 0.9)
    assert judged(base, better, same, NONE).remark(same) == "the same as no calibration"
    assert judged(base, NONE, same).remark(same) == "the same as no calibration"


def test_few_mistakes_name_no_alternative(base: Comparison) -> None:
    sure = made_up("identity", 1.0, accuracy=0.99)
    best, other = (made_up(name, nll, accuracy=0.99) for name, nll in (("best", 0.8), ("other", 0.81)))
    outcomes = (best, other, sure)
    found = dataclasses.replace(base, outcomes=outcomes, recommended=advice.recommended(outcomes, sure))
    assert found.recommended is best and "Not clearly worse" not in found.verdict
    assert "probability that it does harm" in found.verdict  # there are 10 mistakes


def test_fewer_than_ten_mistakes_state_no_probability_of_harm(base: Comparison) -> None:
    sure, best = made_up("identity", 1.0, accuracy=0.991), made_up("best", 0.8, accuracy=0.991)
    found = dataclasses.replace(base, outcomes=(best, sure), recommended=advice.recommended((best, sure), sure))
    assert found.verdict.startswith("Use best: ") and "does harm" not in found.verdict


def test_labels_of_one_class_are_noted() -> None:
    logits, labels = random_predictions(80, 3)
    data = Predictions.of(logits, labels, from_logits=True)
    others = Predictions.of(logits + 1e-3, torch.full_like(labels, 2), from_logits=True)
    (note, *_) = compare(data, others, methods=["temperature"], bootstrap=20).notes
    assert note.startswith("Every label of the part to measure on is class 2, so nothing shows how often the other ")
    assert compare(others, methods=["temperature"], bootstrap=20).notes[0].startswith("Every label is class 2, so ")


def test_few_mistakes_tell_nothing_of_ece() -> None:
    sure = made_up("identity", 1.0, accuracy=0.99)
    assert made_up("higher ece", 0.9, ece=0.2, accuracy=0.99).drawbacks(sure) == ()
    assert made_up("many mistakes", 0.9, accuracy=0.9).drawbacks(sure) == ("a lower accuracy",)


# ----------------------------------------------------------------------------------------------------------- the shares


def test_half_of_the_errors_belong_to_the_favourite() -> None:
    assert advice.shares(["vector"]) == {"vector": 1.0}
    assert advice.shares(["vector", "temperature"]) == {"vector": 0.5, "temperature": 0.5}
    assert advice.shares(["vector", "matrix", "isotonic", "platt"]) == dict.fromkeys(
        ("vector", "matrix", "isotonic", "platt"), 0.25
    )
    found = advice.shares(["vector", "temperature", "auto", "isotonic"])
    assert found["auto"] == 0.5 and found["temperature"] == found["vector"] == pytest.approx(1 / 6)
    assert sum(found.values()) == pytest.approx(1)
