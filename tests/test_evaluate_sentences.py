"""Every sentence of `evaluate` is true: its numbers are computed again by other means, from data made for each case."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from temperance import Predictions, combine, compare, evaluate, read_predictions, statistics
from temperance.calibrators import Identity, Temperature
from temperance.errors import TemperanceWarning
from temperance.jobs.application import fit
from temperance.jobs.verdict import ERROR_RATE, Findings
from temperance.metrics.batch import batches
from temperance.metrics.tally import Tally, tallied
from temperance.showing import percents
from verdicts import Data, Facts, always, checked, made, mostly_over, off_by, one_class_off, opposite, rare, steep

TOO_FEW = r"samples are too few to tell whether the average confidence is off\."
CASES: dict[str, tuple[Data, list[str], list[str]]] = {
    # name: data, what must be said, what must not be said
    "over, many": (
        off_by(10_000, 0.1),
        [r"^Over-confident\. ", "All 5 classes are off", "`temperance compare`"],
        ["nder-c"],
    ),
    "over, some": (off_by(400, 0.15), [r"^Over-confident\. "], ["nder-c", "too few"]),
    "over, few": (off_by(40, 0.1), [f"^40 {TOO_FEW}"], ["confident", "class", "To correct"]),
    "under, many": (off_by(10_000, -0.08), [r"^Under-confident\. ", "`temperance compare`"], ["ver-c"]),
    "under, few": (off_by(40, -0.05), [f"^40 {TOO_FEW}"], ["confident", "class", "To correct"]),
    "over by a little": (
        off_by(400_000, 0.004),
        [r"^Over-confident, but only by a little\. ", "seldom needs correcting"],
        ["temperance compare"],
    ),
    "over by little, but fifty times the mistakes": (
        always(100_000, 0.9999, 0.995),
        [r"^Over-confident\. .* is 99\.99 % sure on average and right 99\.50 % "],
        ["little"],
    ),
    "all in one range of confidence": (
        always(5000, 0.95, 0.8),
        [r"^Over-confident\. .* is 95\.0 % sure on average and right 80\.0 % "],
        ["Predictions with"],
    ),
    "as sure as it is right, to the third decimal": (
        made(torch.tensor([0.95, 0.55] * 5000), torch.tensor([0.85, 0.6501] * 5000)),
        [r"some places .* the model is 75\.0 % sure on average and right 75\.0 % of the time"],
        [],
    ),
    "steep": (
        steep(10_000),
        [r"^Over-confident in some places and under-confident in others\. ", "to 100.0 % account for .* of 20.0 % to"],
        ["No miscalibration"],
    ),
    "one class off": (
        one_class_off(20_000),
        [r"One class is off .*: when it predicts class 2, it is "],
        ["classes are"],
    ),
    "over, but not of every class": (
        mostly_over(20_000),
        [r"^Over-confident on average, but not for every class\. ", "when it predicts class 2, .*; class 0|\\(class 0"],
        ["everywhere"],
    ),
    "opposite classes": (
        opposite(6000),
        [r"^Not calibrated for every class\. .* Both classes are off .* The mean probability of class 1 is "],
        ["-confident"],
    ),
    "a rare class": (
        rare(20_000),
        [r"^Under-confident\. .* The mean probability of class 1 is 1\.67 %, but only 0\.39 % of the samples"],
        ["when it predicts"],
    ),
    "calibrated, many": (
        off_by(20_000, 0.0),
        [r"^No miscalibration found in 20,000 samples\. .* is within 0\.9 points of that mean confidence "],
        ["To correct", "few"],
    ),
    "calibrated, a thousand": (
        off_by(1000, 0.0),
        [r"^No miscalibration found in 1,000 ", "It takes about"],
        ["To correct"],
    ),
    "errors that cancel, too few to show": (
        steep(800, share=0.45, low=0.5, high=0.95),
        [r"^No miscalibration found in 800 .* error in 15 bins is 5\.\d+ %\. Chance alone gives up to [5-9]\."],
        ["Calibrated", " calibrated"],
    ),
    "calibrated, some": (off_by(200, 0.0), [f"^200 {TOO_FEW}"], ["No miscalibration", "To correct", "-confident"]),
    "calibrated, two": (off_by(2, 0.0), [f"^2 {TOO_FEW}"], ["No miscalibration", "To correct", "-confident"]),
    "calibrated, two classes": (off_by(20_000, 0.0, k=2), [r"^No miscalibration found "], ["mean probability"]),
    "calibrated, 200 classes": (off_by(20_000, 0.0, k=200), [r"^No miscalibration found "], ["class "]),
    "one sample, right": (
        always(1, 0.7, 1.0),
        [r"^One sample cannot tell\. The model is 70\.0 % sure, and right\. "],
        [],
    ),
    "one sample, wrong": (
        always(1, 0.7, 0.0),
        [r"^One sample cannot tell\. The model is 70\.0 % sure, and wrong\. "],
        [],
    ),
    "one sample, surely wrong": (always(1, 1.0, 0.0), [r"^One sample cannot tell\. .* and wrong\. "], ["confident"]),
    "sure and right, few": (always(40, 1.0, 1.0), [f"^40 {TOO_FEW}"], ["No miscalibration", "temperance compare"]),
    "sure and right, enough": (always(300, 1.0, 1.0), [r" within 1\.8 points "], ["It takes about"]),
    "sure and right, many": (
        always(5000, 1.0, 1.0),
        [r"^No miscalibration .* 100\.0 % sure .* right 100\.0 % .* within 0\.2 points "],
        ["To correct", "up to", "temperance compare"],
    ),
    "sure and wrong": (
        always(5, 1.0, 0.0),
        [r"^Over-confident\. .* right 0\.0 % of the time"],
        ["No miscalibration", "nder-c"],
    ),
    "all right": (off_by(200, -1.0), [r"^Under-confident\. .* right 100\.0 % of the time"], ["ver-c"]),
    "all wrong": (off_by(200, 1.0), [r"^Over-confident\. .* right 0\.0 % of the time"], ["nder-c"]),
}
# What no one should be told of few samples.
ALWAYS_FORBIDDEN = ["Nothing needs correct", "furthest off", "nan", "1 samples"]


@pytest.mark.parametrize("name", CASES)
def test_what_evaluate_says(name: str) -> None:
    (probs, labels), required, forbidden = CASES[name]
    verdict = evaluate(probs, labels, bootstrap=0, metrics=["ece"]).verdict
    checked(verdict, Facts.of(probs, labels))
    assert [pattern for pattern in required if not re.search(pattern, verdict)] == [], verdict
    assert [text for text in (*forbidden, *ALWAYS_FORBIDDEN) if text in verdict] == [], verdict


@pytest.mark.parametrize(("n_bins", "used"), [(1, 1), (30, 30), (100, 100), (1_000_000, 100)])
@pytest.mark.parametrize("data", [steep(10_000), off_by(2000, 0.0)], ids=["off", "calibrated"])
def test_the_verdict_has_the_bins_that_were_asked_for_up_to_a_hundred(data: Data, n_bins: int, used: int) -> None:
    found = evaluate(*data, bootstrap=0, metrics=["ece"], n_bins=n_bins)
    checked(found.verdict, Facts.of(*data, n_bins=used))
    assert f"in {used} bin{'s' if used > 1 else ''}" in found.verdict


def test_class_names_are_used() -> None:
    probs, labels = one_class_off(20_000)
    names = ["ant", "bee", "cat", "dog", "eel"]
    verdict = evaluate(Predictions.of(probs, labels, class_names=names), bootstrap=0, metrics=["ece"]).verdict
    assert "when it predicts cat, it is " in verdict
    checked(verdict, Facts.of(probs, labels, names))
    numbered = Predictions.of(probs, labels, class_names=["-3", "-2", "-1", "0", "1"])
    assert "when it predicts class -1, it is " in evaluate(numbered, bootstrap=0, metrics=["ece"]).verdict


@given(
    st.integers(1, 300),
    st.integers(2, 6),
    st.floats(0.1, 20),
    st.floats(0, 4),
    st.floats(0.3, 1.5),
    st.integers(0, 2**31),
)
def test_whatever_evaluate_says_is_true(n: int, k: int, sharp: float, lean: float, skill: float, seed: int) -> None:
    """Random predictions: from guesses to certainty, from much too sure to not sure enough, with a rare class."""
    draw = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(n, k, generator=draw, dtype=torch.float64)
    logits[:, 0] += lean
    labels = torch.multinomial((skill * logits).softmax(1), 1, generator=draw).squeeze(1)
    probs = logits.softmax(1)
    checked(evaluate(probs, labels, bootstrap=0, metrics=["ece"]).verdict, Facts.of(probs, labels))


def test_calibrated_models_are_seldom_called_anything_else() -> None:
    """At most one in twenty, whatever n and k: more than 37 of 400 then have a chance below 1e-3."""
    draw = torch.Generator().manual_seed(0)
    found = 0
    for n, k, sharp in ((3, 2, 2.0), (30, 5, 6.0), (300, 3, 1.5), (1500, 10, 8.0)):
        for _ in range(100):
            probs = (sharp * torch.randn(n, k, generator=draw, dtype=torch.float64)).softmax(1)
            into: list[Tally] = []
            for _ in tallied(batches(probs, torch.multinomial(probs, 1, generator=draw).squeeze(1)), into):
                pass
            found += Findings.of(into[0], into[1]).anything
    assert found <= 37 and ERROR_RATE == 0.05


@pytest.mark.parametrize(
    ("values", "digits", "said"),
    [
        ((0.5, 0.25), 1, ["50.0 %", "25.0 %"]),
        ((0.9999, 0.995), 1, ["99.99 %", "99.50 %"]),
        ((0.9999,), 1, ["99.99 %"]),
        ((0.9242, 0.9238), 1, ["92.42 %", "92.38 %"]),
        ((1.0, 1.0), 1, ["100.0 %", "100.0 %"]),
        ((0.5, 0.5 + 1e-9), 1, ["50.0 %", "50.0 %"]),
        ((0.0167, 0.0039), 2, ["1.67 %", "0.39 %"]),
    ],
)
def test_shares_have_the_digits_that_tell_them_apart(values: tuple[float, ...], digits: int, said: list[str]) -> None:
    assert percents(values, digits=digits) == said


@pytest.mark.shared
def test_a_real_network_by_class(shared_data: Path) -> None:
    """DenseNet-40 is over-confident where it predicts cat, and was called under-confident of it."""
    verdict = evaluate(shared_data / "logits" / "c10_densenet40.npz", bootstrap=0, metrics=["ece"]).verdict
    assert (
        "when it predicts class 3, it is 96.0 % sure on average and right 86.7 % of the time "
        "(class 5: 96.9 % and 88.8 %; class 2: 96.9 % and 89.5 %)"
    ) in verdict
    assert "nder-confident" not in verdict


@pytest.mark.shared
@pytest.mark.parametrize(
    "pattern", ["logits/c10_*", "logits/c100_*", "llm/*", "more/binary/*", "more/longtail/*", "more/tabular/a*"]
)
def test_what_evaluate_says_of_real_predictions(pattern: str, shared_data: Path) -> None:
    files = sorted(shared_data.glob(f"{pattern}.npz"))[:8]
    assert files
    for path in files:
        data = read_predictions(path)
        probs = data.scores.double().softmax(1) if data.from_logits else data.scores
        names = [f"class {name}" if name.isdigit() else name for name in data.class_names or map(str, range(data.k))]
        checked(evaluate(data, bootstrap=0, metrics=["ece"]).verdict, Facts.of(probs, data.labels, names))


@pytest.mark.parametrize(("n", "said"), [(400, f"^400 {TOO_FEW}"), (4000, "^No miscalibration found")])
def test_what_evaluate_cannot_tell_compare_may(n: int, said: str) -> None:
    """The confidence is right, but half of the other probability goes to a class that never occurs."""
    draw = torch.Generator().manual_seed(0)
    says = 0.4 + 0.35 * torch.rand(n, generator=draw, dtype=torch.float64)
    rest = 1 - says[:, None]
    probs = torch.cat([says[:, None], rest / 4, rest / 4, rest / 2], 1)
    shuffled = torch.rand(n, 3, generator=draw).argsort(1)  # any of the first three classes may be predicted
    places = torch.cat([shuffled, torch.full((n, 1), 3)], 1)
    true = torch.multinomial(torch.cat([says[:, None], rest / 2, rest / 2], 1), 1, generator=draw)
    labels = places.gather(1, true).squeeze(1)
    probs = torch.empty_like(probs).scatter_(1, places, probs)
    verdict = evaluate(probs, labels, bootstrap=0, metrics=["ece"]).verdict
    assert re.search(said, verdict) and "`temperance compare` tests each prediction" in verdict, verdict
    checked(verdict, Facts.of(probs, labels))
    assert "significantly better than no calibration" in compare(probs, labels, methods=["vector"]).verdict


def test_many_bins_are_those_of_the_metrics_alone() -> None:
    many, few = (evaluate(*off_by(500, 0.1), n_bins=n_bins, bootstrap=0) for n_bins in (1000, 100))
    assert " in 100 bins" in many.verdict and many.row("ece").params["metric"]["n_bins"] == 1000
    assert many.notes == (
        "The metrics use 1,000 bins. The verdict and the calibration error in it use 100: with more, few "
        "bins would have enough samples for a test.",
    )
    assert few.notes == ()


def test_labels_of_one_class_are_noted() -> None:
    probs, labels = off_by(60, 0.1)
    names = ["cat", "dog", "eel", "fox", "gnu"]
    found = evaluate(Predictions.of(probs, torch.full_like(labels, 3), class_names=names), bootstrap=0)
    assert found.notes[0].startswith("Every label is fox, so nothing shows how often the other classes occur.")
    assert evaluate(probs, labels, bootstrap=0).notes == ()
    assert evaluate(probs[:3], [0, 0, 0], bootstrap=0).notes == ()  # by chance


def test_one_class_against_all_others_is_noted_by_its_name() -> None:
    scores, labels = np.linspace(0.1, 0.9, 60), np.array(["no", "yes"] * 30)
    first, *others = evaluate(scores, labels, from_logits=False, positive="maybe", bootstrap=0).notes
    assert first.startswith("No label is maybe, so nothing shows how often the other classes occur.")
    assert not any("maybe" in note for note in others)


def test_classes_that_labels_and_scores_have_in_another_order_are_noted() -> None:
    probs, labels = off_by(5000, 0.1)
    names = ["cat", "dog", "eel", "fox", "gnu"]
    exchanged = torch.tensor([1, 0, 2, 3, 4])[labels]  # most predictions are still right
    found = evaluate(Predictions.of(probs, exchanged, class_names=names), bootstrap=0)
    predicted = probs.argmax(1)
    [note] = found.notes
    shares = [float(share) / 100 for share in re.findall(r"([\d.]+) %", note)]
    for column, label in ((0, "dog"), (1, "cat")):
        if f"of the predictions of {names[column]} are labelled {label}" in note:
            both = (predicted == column) & (exchanged == 1 - column)
            of_each = (predicted == column, exchanged == 1 - column)
            assert shares == pytest.approx([float(both.sum() / each.sum()) for each in of_each], abs=1e-3)
            break
    else:
        pytest.fail(note)
    assert "So is another class." in note and found.verdict.endswith("Check the labels before you correct anything.")
    shifted = evaluate(probs, (labels + 1) % 5, bootstrap=0).notes  # numbered from another one
    assert len(shifted) == 1 and "So are 4 other classes." in shifted[0]
    few = evaluate(probs[:60], exchanged[:60], bootstrap=0).notes  # could be mistakes
    assert not any("exchanged" in note for note in few)
    with pytest.warns(TemperanceWarning, match="they seem to be exchanged"):
        fit(Temperature(), Predictions.of(probs, exchanged))
    assert any("seem to be exchanged" in note for note in compare(probs, exchanged, methods=["temperature"]).notes)


def test_classes_that_are_never_the_label_are_noted() -> None:
    probs, labels = off_by(500, 0.1)
    kept = (labels != 1) & (labels != 3)
    [note] = evaluate(probs[kept], labels[kept], bootstrap=0).notes
    n = int(((probs.argmax(1) == 1) | (probs.argmax(1) == 3))[kept].sum())
    assert note == f"No label is class 1 or class 3, so the {n} predictions of them cannot be right."
    assert evaluate(probs[kept][:49], labels[kept][:49], bootstrap=0).notes == ()  # too few for every class


def test_probabilities_of_one_class_that_are_read_as_logits_are_noted() -> None:
    probs = np.linspace(0, 1, 400)
    labels = (np.arange(400) * 7 % 400 < 400 * probs).astype(int)
    said = (
        "Every prediction is class 1, and none is more than 73.3 % sure, as when probabilities are read as logits. If "
        "they are probabilities, read them as probs."
    )
    assert said in evaluate(probs, labels, from_logits=True, positive=1, bootstrap=0).notes
    for rightly in (
        evaluate(probs, labels, positive=1, bootstrap=0),
        evaluate(probs - 0.1, labels, from_logits=True, positive=1, bootstrap=0),
        evaluate(2 * probs, labels, from_logits=True, positive=1, bootstrap=0),
        evaluate(probs[:90], labels[:90], from_logits=True, positive=1, bootstrap=0),
    ):
        assert said not in rightly.notes


def test_predictions_without_a_mistake_are_noted() -> None:
    probs, _ = off_by(500, 0.1)
    [note] = evaluate(probs, probs.argmax(1), bootstrap=0).notes
    assert note.startswith("Every prediction is right. If you expected mistakes")
    assert evaluate(probs[:90], probs[:90].argmax(1), bootstrap=0).notes == ()


def test_a_place_that_holds_nearly_all_samples_is_not_named() -> None:
    probs, labels = off_by(5000, 0.2)
    probs[0] = torch.tensor([0.3, 0.2, 0.2, 0.15, 0.15])  # one sample elsewhere
    verdict = evaluate(probs, labels, bootstrap=0).verdict
    assert verdict.startswith("Over-confident. ") and "Predictions with a confidence of" not in verdict


def test_labels_that_have_nothing_to_do_with_the_predictions_are_noted() -> None:
    probs, labels = off_by(500, 0.1)
    shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    [note] = evaluate(probs, shuffled, bootstrap=0).notes
    right, chance = (float(share) / 100 for share in re.findall(r"([\d.]+) %", note))
    predicted = probs.argmax(1)
    by_chance = sum(float((predicted == j).double().mean() * (labels == j).double().mean()) for j in range(5))
    assert right == pytest.approx(float((predicted == shuffled).double().mean()), abs=1e-3)
    assert chance == pytest.approx(by_chance, abs=1e-3) and "the same order" in note
    assert evaluate(probs, labels, bootstrap=0).notes == ()
    assert evaluate(probs[:50], shuffled[:50], bootstrap=0).notes == ()  # too few to tell
    half = torch.arange(2000) % 2  # 149 of 2,000 are right: 7.45 %, which float32 rounds up and float64 down
    wrong = torch.eye(2)[torch.where(torch.arange(2000) < 149, half, 1 - half)]
    found = evaluate(0.8 * wrong + 0.1, half, bootstrap=0)
    assert "right 7.4 % of the time, with" in found.verdict and "right 7.4 % of the time, worse" in found.notes[0]
    constant = torch.tensor([[0.6, 0.4]]).expand(200, 2)
    assert evaluate(constant, torch.arange(200) % 2, metrics="ece", bootstrap=0).notes == ()


def test_groups_are_tested_and_corrected_for_their_number() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.6, 0.9, 4000)
    off = np.repeat([0.0, 0.3, -0.1, 0.0], 1000)
    labels = (generator.random(4000) < confidence - off).astype(int)
    groups = np.repeat(["a", "b", "c", "d"], 1000)
    data = Predictions.of(confidence, labels, answers=True, groups=groups)
    said = next(note for note in evaluate(data, by_group=True, bootstrap=0).notes if "groups" in note)
    mine = groups == "b"
    assert said == (
        "1 of 4 groups is over-confident and 1 of 4 groups is under-confident on average by more than chance. The "
        f"group b is off the most: {100 * confidence[mine].mean():.1f} % sure on average and right "
        f"{100 * labels[mine].mean():.1f} % of the time. `temperance compare --by group` also tries a correction of "
        "its own for each group."
    )
    fitted = Identity().fit([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    after = evaluate(data, calibrator=fitted, by_group=True, bootstrap=0)
    assert not any("temperance compare" in note for note in after.notes)
    halves = [data.select(np.arange(4000) % 2 == i) for i in (0, 1)]
    together = combine([statistics(half, by_group=True) for half in halves], bootstrap=0)
    assert said in together.notes
    assert not any("groups" in note for note in evaluate(data, bootstrap=0).notes)


def test_labels_that_look_wrong_are_to_be_checked_first() -> None:
    data = Predictions.of(*off_by(2000, 0.2))
    shuffled = Predictions.of(
        data.scores, data.labels[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    )
    alike = Predictions.of(data.scores, torch.zeros(2000, dtype=torch.int64))
    for wrong in (shuffled, alike):
        found = evaluate(wrong, bootstrap=0, metrics=["ece"])
        assert found.verdict.endswith("Check the labels before you correct anything.") and "check" in found.notes[0]
        assert "compare" not in found.verdict
    marked = evaluate([0.9, 0.6] * 30, [1] * 60, answers=True, bootstrap=0)
    assert marked.verdict.endswith("Check how the answers were marked before you correct anything.")


def test_a_class_that_is_seldom_predicted_is_counted() -> None:
    probs, labels = made(torch.full((400,), 0.9), torch.full((400,), 0.9))
    one_wrong = torch.full((4, 5), 0.01).double()
    one_wrong[:, 2] = 0.96
    few = torch.cat([probs[probs.argmax(1) != 2], one_wrong]), torch.cat([labels[probs.argmax(1) != 2], torch.zeros(4)])
    said = evaluate(few[0], few[1].long(), bootstrap=0, metrics=["ece"]).verdict
    assert "when it predicts class 2 (4 samples), it is 96.0 % sure on average and right 0.0 % of the time." in said
    checked(said, Facts.of(few[0], few[1].long()))


def test_nothing_is_less_than_certain() -> None:
    """Rounding made the NLL of certain and right predictions -0.0000."""
    probs = torch.eye(3).double()[torch.arange(2000) % 3]
    labels = torch.where(torch.arange(2000) < 1199, torch.arange(2000) % 3, (torch.arange(2000) + 1) % 3)
    (note, *_) = evaluate(probs, labels, bootstrap=0, metrics=["nll"]).notes
    assert note.endswith("on the other 1,199 samples it is 0.0000.")


def test_groups_of_similar_names_are_counted_one_by_one() -> None:
    data = Predictions.of([0.9, 0.6] * 30, [1, 0] * 30, answers=True, groups=["a", "", "(no name)"] * 20)
    assert any(note.startswith("None of 3 groups") for note in evaluate(data, by_group=True, bootstrap=0).notes)


def test_groups_of_a_calibrated_model_are_seldom_called_off() -> None:
    called = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        confidence = generator.uniform(0.5, 1, 600)
        labels = generator.random(600) < confidence
        groups = generator.integers(0, 30, 600)
        data = Predictions.of(confidence, labels, answers=True, groups=groups)
        (said,) = (
            note for note in evaluate(data, by_group=True, bootstrap=0, metrics=["ece"]).notes if "groups" in note
        )
        called += not said.startswith("None of 30 groups is over- or under-confident")
    assert called <= 8  # at most one in twenty is expected; more than 8 of 60 has a chance below 1 %


def test_calibrated_predictions_are_not_to_be_calibrated_again() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 9 * torch.randn(2000, 3, generator=generator)
    labels = torch.where(torch.arange(2000) % 5 < 2, torch.randint(3, (2000,), generator=generator), logits.argmax(1))
    plain = evaluate(logits, labels, from_logits=True, bootstrap=0)
    assert "run `temperance compare`" in plain.verdict
    fitted = Identity().fit(logits, labels)
    after = evaluate(logits, labels, from_logits=True, calibrator=fitted, bootstrap=0)
    assert "run `temperance compare`" not in after.verdict
    some = evaluate(logits[:30] / 90, torch.arange(30) % 3, from_logits=True, calibrator=fitted, bootstrap=0)
    assert "too few" in some.verdict and "temperance compare" not in some.verdict
    assert after.verdict.endswith("fit one to the model's own predictions on samples like these.")
    assert "These predictions were calibrated by identity." in after.notes
