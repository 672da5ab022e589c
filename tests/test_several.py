"""Several sets by one command: each as by a command of its own, one table, and what is wrong with a file."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commands import run
from conftest import random_predictions
from temperance import compare, compare_each, evaluate, evaluate_each
from temperance.calibrators import load_calibrator
from temperance.errors import FileError, InputError
from temperance.jobs.comparison import Comparison
from temperance.jobs.kept import Finding, reduced
from temperance.jobs.results import Provenance, Row
from temperance.jobs.several import Comparisons, set_names
from temperance.jobs.standings import standings
from temperance.predictions import each_file, read_predictions, write_predictions
from temperance.report.pages.several import evaluations_page, standings_section

QUICK: dict[str, Any] = {"methods": ["temperature", "vector"], "bootstrap": 20}


def write(path: Path, seed: int, n: int = 200, k: int = 3) -> Path:
    logits, labels = random_predictions(n, k, seed, sharpness=3.0)
    path.parent.mkdir(exist_ok=True)
    np.savez(path, logits=logits.numpy(), labels=labels.numpy())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate("abc"):
        write(tmp_path / "sets" / f"{name}.npz", seed, n=200 + 20 * seed, k=3 + seed)
    return tmp_path / "sets"


def without_seconds(rows: tuple[Row, ...]) -> list[str]:
    """Rows as text, in which NaN is equal to NaN."""
    return [str(vars(row) | {"seconds": 0.0}) for row in rows]


# ------------------------------------------------------------------------------------------------------- the sentences


@pytest.mark.parametrize(
    ("nlls", "said"),
    [
        # of no calibration, temperature and vector, on each set
        (
            [(0.5, 0.3, 0.4), (0.5, 0.3, 0.4), (0.2, 0.3, 0.4)],
            "By NLL, temperature ranks first over 3 sets: its mean rank among 3 methods is 1.3. It has a higher NLL "
            "than no calibration on 1 of them.",
        ),
        (
            [(0.5, 0.3, 0.4)] * 12,
            "By NLL, temperature ranks first over 12 sets: its mean rank among 3 methods is 1.0. It has a higher NLL "
            "than no calibration on none of them.",
        ),
        (
            [(0.5, 0.3, 0.4)] * 9 + [(0.5, 0.4, 0.3)] * 3,
            "By NLL, temperature ranks first over 12 sets: its mean rank among 3 methods is 1.2 (95 % interval 1.0 to "
            "1.5). It has a higher NLL than no calibration on none of them.",
        ),
        (
            [(0.5, 0.3, 0.4), (0.5, 0.4, 0.3)],
            "By NLL, temperature and vector rank first over 2 sets: their mean rank among 3 methods is 1.5.",
        ),
        (
            [(0.2, 0.3, 0.4)],
            "By NLL, identity (no calibration) ranks first over 1 set: its mean rank among 3 methods is 1.0.",
        ),
    ],
)
def test_what_is_said_of_several_comparisons(nlls: list[tuple[float, ...]], said: str) -> None:
    names = ("identity", "temperature", "vector")
    findings = {
        f"set {i}": Finding("", "", "", 3, {name: {"nll": nll} for name, nll in zip(names, each, strict=True)})
        for i, each in enumerate(nlls)
    }
    found = Comparisons((), Provenance.of({}, {}, 0), {}, findings)
    assert found.verdict == f"{said} The recommendation for a set rests on the tests of that set alone."


def test_where_nothing_could_be_fitted_nothing_is_ranked() -> None:
    findings = {"set": Finding("", "", "", 2, {"identity": {"nll": 0.5}})}
    found = Comparisons((), Provenance.of({}, {}, 0), {}, findings)
    assert found.verdict == "Nothing to rank: no calibrator could be fitted."


def test_sets_that_tie_are_all_called_the_best(tmp_path: Path) -> None:
    paths = [write(tmp_path / "sets" / f"{name}.npz", 0) for name in "ab"]
    page = evaluations_page(evaluate_each(paths, metrics=["accuracy", "nll"], bootstrap=0))
    assert "The best of 2 sets: a.npz and b.npz by accuracy and NLL." in page


# ----------------------------------------------------------------------------------------------------------- each alone


def test_every_set_is_measured_as_if_alone(folder: Path) -> None:
    paths = each_file([folder])
    found = evaluate_each(paths, bootstrap=20)
    assert found.names == ("a.npz", "b.npz", "c.npz")
    alone = [evaluate(path, bootstrap=20) for path in paths]
    assert without_seconds(found.rows) == [row for each in alone for row in without_seconds(each.rows)]
    assert [each.verdict for each in found.each.values()] == [each.verdict for each in alone]
    assert len(found.provenance.inputs) == 3 and "k" not in found.provenance.settings


def test_every_set_is_compared_as_if_alone(folder: Path) -> None:
    paths = each_file([folder])
    found = compare_each(paths, **QUICK)
    alone = {path.name: compare(path, **QUICK) for path in paths}
    assert without_seconds(found.rows) == [row for each in alone.values() for row in without_seconds(each.rows)]
    for name, each in alone.items():
        finding = found.findings[name]
        assert (finding.recommended, finding.verdict) == (each.recommended.label, each.verdict)
        assert finding.measured["vector"]["nll"] == each.row("nll", method="vector").value


def test_ranks_are_places_by_the_metric(folder: Path) -> None:
    found = evaluate_each(each_file([folder]), metrics=["nll", "accuracy", "confidence-gap"], bootstrap=0)
    for metric, best in (("nll", min), ("accuracy", max)):
        values = {name: each.row(metric).value for name, each in found.each.items()}
        first = next(name for name, rank in found.ranks(metric).items() if rank == 1)
        assert values[first] == best(values.values())
        assert sorted(found.ranks(metric).values())[0] == 1 and max(found.ranks(metric).values()) <= 3
    assert found.ranks("confidence-gap") == {}  # neither high nor low is good


def test_a_set_with_wrong_labels_is_named_as_such(folder: Path, tmp_path: Path) -> None:
    logits, labels = random_predictions(2000, 3, 0, sharpness=3.0)
    np.savez(folder / "b.npz", logits=logits.numpy(), labels=labels.flip(0).numpy())
    said = " ".join(run("evaluate", "--each", folder, "--bootstrap", "0", "--report", tmp_path / "p.html").out.split())
    wrong = "The labels look wrong; evaluate this set alone to see why."
    assert said.count(wrong) == 1 and f"b.npz: Over-confident. {wrong}" in said
    assert (tmp_path / "p.html").read_text().count(wrong) == 1


# --------------------------------------------------------------------------------------------------- what is one set


def test_several_arguments_are_several_sets_and_a_folder_is_one(folder: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    for seed in range(2):
        write(shards / f"part-{seed}.npz", seed)
    said = run("evaluate", shards, "--bootstrap", "0", "--json")
    assert json.loads(said.out)["provenance"]["settings"]["n"] == 400
    said = run("evaluate", shards, folder / "a.npz", "--bootstrap", "0", "--json")
    assert said.code == 0 and set(json.loads(said.out)["verdicts"]) == {"shards", "sets/a.npz"}
    said = run("evaluate", shards, folder / "a.npz", "--each", "--bootstrap", "0", "--json")
    assert set(json.loads(said.out)["verdicts"]) == {"shards/part-0.npz", "shards/part-1.npz", "sets/a.npz"}


def test_each_file_takes_any_formats_and_of_a_training_its_predictions(folder: Path) -> None:
    (folder / "d.csv").write_text("logits_0,logits_1,label\n1,0,0\n0,1,1\n")
    write(folder / "run" / "predictions.npz", 7)
    (folder / "run" / "run.json").write_text("{}")
    (folder / "_notes.csv").touch()
    names = ["a.npz", "b.npz", "c.npz", "d.csv", "run/predictions.npz"]
    assert [path.relative_to(folder).as_posix() for path in each_file([folder])] == names
    assert each_file([folder / "run", folder / "*.csv"]) == [
        folder / "run" / "predictions.npz",
        folder / "_notes.csv",
        folder / "d.csv",
    ]


def test_sets_of_one_name_can_be_told_apart(tmp_path: Path) -> None:
    assert set_names([tmp_path / "a" / "x.npz", tmp_path / "b" / "x.npz"]) == ["a/x.npz", "b/x.npz"]
    assert set_names([tmp_path / "x.npz", tmp_path / "x.npz"]) == ["x.npz", "x.npz (2)"]
    assert set_names([Path("/one/x.npz"), Path("/two/x.npz")]) == ["/one/x.npz", "/two/x.npz"]


def test_files_that_are_not_alike_are_for_each(tmp_path: Path) -> None:
    for k in (2, 3):
        np.savez(tmp_path / f"{k}.npz", logits=np.eye(k), labels=np.arange(k))
    said = run("evaluate", tmp_path).err
    assert "2 classes" in said and "correct it, or take each file by itself with --each" in said
    run("fit", "temperature", tmp_path / "2.npz", "-o", tmp_path / "cal.safetensors")
    assert "--each" not in run("apply", tmp_path / "cal.safetensors", tmp_path / "*.npz", "-o", tmp_path / "out").err


def test_three_files_without_each_are_refused(folder: Path) -> None:
    said = run("compare", *each_file([folder])).err
    assert "one FIT and one TEST; got 3 files" in said and "--each" in said


# -------------------------------------------------------------------------------------------------- kept in a folder


def quickly(folder: Path, kept: Path, *more: str) -> Any:
    return run("compare", "--each", folder, "-o", kept, "--methods", "temperature,vector", "--bootstrap", "20", *more)


def test_every_set_has_its_calibrator_and_its_numbers_in_the_folder(folder: Path, tmp_path: Path) -> None:
    said = quickly(folder, tmp_path / "kept")
    assert said.code == 0 and "are in" in said.err and "before" not in said.err
    names = {f"{name}.{kind}" for name in "abc" for kind in ("json", "safetensors")}
    assert {path.name for path in (tmp_path / "kept").iterdir()} == names
    alone = compare(folder / "b.npz", **QUICK)
    found = load_calibrator(tmp_path / "kept" / "b.safetensors")
    assert found.name == alone.recommended.method.name and found.info == alone.calibrator().info
    assert json.loads((tmp_path / "kept" / "b.json").read_text())["finding"]["verdict"] == alone.verdict


def test_where_no_set_can_be_read_no_folder_is_left(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_text("no archive")
    said = quickly(tmp_path / "bad.npz", tmp_path / "kept")
    assert said.code == 2 and "bad.npz cannot be read" in said.err and not (tmp_path / "kept").exists()


def test_an_interrupted_comparison_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is not compared again, and the result is that of a comparison without an interruption."""
    kept = tmp_path / "kept"

    def interrupted(found: Comparison) -> Any:
        if found.test.source.endswith("b.npz"):
            raise KeyboardInterrupt
        return reduced(found)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("temperance.jobs.kept.reduced", interrupted)
        compare_each(each_file([folder]), folder=kept, **QUICK)
    assert {path.name for path in kept.iterdir()} == {"a.json", "a.safetensors"}
    found = compare_each(each_file([folder]), folder=kept, **QUICK)
    assert found.kept == ("a.npz",)
    whole = compare_each(each_file([folder]), **QUICK)
    assert without_seconds(found.rows) == without_seconds(whole.rows) and found.names == whole.names
    assert found.findings["a.npz"].verdict == whole.findings["a.npz"].verdict
    assert [standing.method for standing in found.standings] == [standing.method for standing in whole.standings]
    said = quickly(folder, kept)
    assert said.code == 0 and "3 sets had been compared before" in said.err


def test_other_data_or_settings_are_compared_anew(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    compare_each(each_file([folder]), folder=kept, **QUICK)
    write(folder / "b.npz", seed=9)
    (kept / "c.safetensors").unlink()
    assert compare_each(each_file([folder]), folder=kept, **QUICK).kept == ("a.npz",)
    (kept / "c.safetensors").stat()
    write(folder / "b.npz", seed=10)
    assert compare_each(each_file([folder]), folder=kept, **QUICK).kept == ("a.npz", "c.npz")
    for other in ({"bootstrap": 30}, {"n_bins": 5}, {"seed": 1}, {"methods": ["vector"]}, {"refit": True}):
        assert compare_each(each_file([folder]), folder=kept, **QUICK | other).kept == (), other


def test_kept_calibrators_may_be_fitted_on_everything(folder: Path, tmp_path: Path) -> None:
    assert quickly(folder, tmp_path / "kept", "--refit").code == 0
    found = load_calibrator(tmp_path / "kept" / "a.safetensors")
    assert found.info == compare(folder / "a.npz", **QUICK).calibrator(refit=True).info


def test_where_no_calibrator_is_recommended_none_is_kept(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    write_predictions(folder / "few.npz", read_predictions(folder / "a.npz").select(range(12)))
    kept.mkdir()
    (kept / "few.safetensors").write_text("of an earlier comparison")
    for before in ("", "; 4 sets had been compared before"):
        said = quickly(folder, kept)
        assert said.code == 0 and f"are in {kept}; for 1 set none is recommended{before}\n" in said.err
        assert (kept / "few.json").exists() and not (kept / "few.safetensors").exists()


def test_where_no_calibrator_is_recommended_for_any_set_is_an_error(folder: Path, tmp_path: Path) -> None:
    kept, few = tmp_path / "kept", tmp_path / "few"
    few.mkdir()
    for name in ("a", "b"):
        write_predictions(few / f"{name}.npz", read_predictions(folder / f"{name}.npz").select(range(12)))
    for before in ("", "; 2 sets had been compared before"):
        said = quickly(few, kept)
        none = "no calibrator is recommended for any of the 2 sets"
        assert said == (2, said.out, f"temperance: {none}; the measurements are in {kept}{before}\n") and said.out
        assert {path.name for path in kept.iterdir()} == {"a.json", "b.json"}
    (few / "bad.csv").write_text("nothing\n1\n")
    said = quickly(few, kept)
    assert said.code == 2 and none in said.err and "1 of 3 sets could not be measured" in said.err
    (few / "bad.csv").unlink()
    (few / "b.npz").unlink()
    assert "no calibrator is recommended for the set; the measurements" in quickly(few, tmp_path / "one").err


def test_where_comparisons_cannot_be_kept_is_said(folder: Path, tmp_path: Path) -> None:
    assert "-o is a folder; got" in quickly(folder, tmp_path / "cal.safetensors").err
    for inside in (folder, folder / "kept"):
        assert "so the next run would read it too; choose another" in quickly(folder, inside).err
    assert "there is no folder" in quickly(folder, tmp_path / "no" / "kept").err
    assert "add -o CAL to save it" in run("compare", "--each", folder, "--refit").err
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.json").write_text("{")
    said = quickly(folder, tmp_path / "kept")
    assert said.code == 2 and "1 of 3 sets could not be measured" in said.err and "a.json cannot be read" in said.err
    same = {"a b": folder / "a.npz", "a_b": folder / "b.npz"}
    failures = compare_each(same, folder=tmp_path / "two", **QUICK).failures
    assert "a_b and a b would both be kept as a_b; rename one of them" in str(failures["a_b"])
    same = {"a.npz": folder / "a.npz", "a.csv": folder / "b.npz"}
    failures = compare_each(same, folder=tmp_path / "three", **QUICK).failures
    assert "a.csv and a.npz would both be kept as a; rename one of them" in str(failures["a.csv"])
    with pytest.raises(InputError, match="refit changes the calibrators that are kept: name a folder for them"):
        compare_each([folder / "a.npz"], refit=True, **QUICK)


# --------------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_a_bad_file_is_named_and_the_others_are_measured(folder: Path, tmp_path: Path, command: str) -> None:
    (folder / "bad.csv").write_text("nothing\n1\n")
    np.savez(folder / "b.npz", logits=np.full((4, 2), np.nan), labels=np.zeros(4, int))
    page = tmp_path / "page.html"
    methods = ["--methods", "temperature"] if command == "compare" else []
    said = run(command, "--each", folder, *methods, "--bootstrap", "20", "--report", page)
    assert said.code == 2
    assert "2 of 4 sets could not be measured" in said.err and "bad.csv" in said.err and "row " in said.err
    assert "--label NAME" in said.err and "columns=" not in said.err  # as the command line says it
    assert "a.npz" in said.out and "c.npz" in said.out and "2 others could not be measured" in said.out
    assert "bad.csv" in page.read_text()


def test_every_bad_file_has_a_line_in_the_words_of_the_command_line(folder: Path) -> None:
    for name in ("bad.csv", "worse.csv"):  # the same mistake twice
        (folder / name).write_text("nothing\n1\n")
    said = run("evaluate", "--each", folder, "--bootstrap", "0")
    head, bad, worse = said.err.strip().splitlines()
    assert head == "temperance: 2 of 5 sets could not be measured:"
    assert "bad.csv" in bad and "worse.csv" in worse
    assert all("--label NAME" in line and "columns=" not in line for line in (bad, worse))


def test_a_method_that_cannot_be_fitted_somewhere_has_no_means(folder: Path, tmp_path: Path) -> None:
    np.savez(folder / "d.npz", logits=3 * np.eye(2)[[0, 1] * 4], labels=np.array([0, 1] * 4))
    page = tmp_path / "page.html"
    said = run("compare", "--each", folder, "--methods", "temperature,meta-mis", "--bootstrap", "20", "--report", page)
    assert said.code == 0 and "failed on 1 set" in said.out and "nan" not in said.out
    assert "could not be fitted to 1 set" in page.read_text() and ">nan" not in page.read_text()


@pytest.mark.parametrize("each", [evaluate_each, compare_each])
def test_one_set_in_place_of_several_is_refused_in_a_sentence(each: Any, folder: Path) -> None:
    one = next(iter(each_file([folder])))
    not_several: list[Any] = [str(folder), folder, read_predictions(one), 5]
    for sets in not_several:
        with pytest.raises(InputError, match=r"must be a list of files or Predictions.*each_file\(\[FOLDER\]\)"):
            each(sets)
    for other in ([np.zeros((3, 2))], {"a": one, "b": 5}):
        with pytest.raises(InputError, match=r"each set must be a file or a Predictions; got (ndarray|int)"):
            each(other)


def test_if_no_set_can_be_measured_the_first_error_says_why(folder: Path) -> None:
    with pytest.raises(FileError, match=r"missing\.npz"):
        evaluate_each([folder / "missing.npz", folder / "gone.npz"])
    with pytest.raises(InputError, match="at least one set"):
        evaluate_each([])
    assert "no metric" in run("evaluate", "--each", folder, "--metrics", "eec").err
    assert "no calibrator" in run("compare", "--each", folder, "--methods", "temprature").err


# --------------------------------------------------------------------------------------------------------- standings


def values(**nll: float) -> dict[str, dict[str, float]]:
    return {method.replace("_", "-"): {"nll": value} for method, value in nll.items()}


def test_standings_by_hand() -> None:
    sets = {
        "one": values(identity=0.5, vector=0.4, platt=0.6),
        "two": values(identity=0.3, vector=0.3, platt=0.2),
        "three": values(identity=0.3, platt=0.1),  # vector could not be fitted
        "four": values(identity=0.9, vector=0.8, platt=0.7),
    }
    found = {standing.method: standing for standing in standings(sets)}
    assert [standing.method for standing in standings(sets)] == ["platt", "vector", "identity"]
    assert found["platt"].rank.value == (3 + 1 + 1 + 1) / 4
    assert found["vector"].rank.value == (1 + 2.5 + 3 + 2) / 4
    assert found["identity"].rank.value == (2 + 2.5 + 2 + 3) / 4
    assert found["platt"].wins.value == (0 + 2 + 2 + 2) / 8
    assert found["vector"].wins.value == (2 + 0.5 + 0 + 1) / 8
    assert [found[name].harm.value for name in ("identity", "platt", "vector")] == [0, 1 / 4, 0]
    assert found["vector"].failures == 1 and math.isnan(found["vector"].means["nll"])
    assert found["platt"].failures == 0 and found["platt"].means["nll"] == pytest.approx(0.4)
    assert math.isnan(found["platt"].rank.low)  # four sets are too few


@pytest.mark.parametrize(("n", "said"), [(6, "The lines are 95"), (4, "There are too few sets for intervals.")])
def test_the_page_of_a_method_that_always_wins_has_the_intervals_of_the_others(n: int, said: str) -> None:
    """The winner has the same rank on every set, hence no interval; the others change places."""
    sets = {f"set {i}": values(vector=0.1, identity=0.5, platt=(0.4, 0.6)[i % 2]) for i in range(n)}
    others = {"ece": 0.1, "accuracy": 0.9, "seconds": 1.0}
    ranked = [replace(each, means={**each.means, **others}) for each in standings(sets)]
    assert math.isnan(ranked[0].rank.low) and math.isnan(ranked[1].rank.low) == (n < 5)
    found: Any = SimpleNamespace(names=list(sets), standings=ranked)
    assert said in standings_section(found)


def test_intervals_are_of_the_mean_over_sets_drawn_again() -> None:
    generator = np.random.default_rng(0)
    better = generator.random(60) < 0.7
    sets = {f"{i}": values(identity=0.5, vector=0.4 if good else 0.6) for i, good in enumerate(better)}
    found = next(standing for standing in standings(sets) if standing.method == "vector")
    share = 1 - better.mean()
    error = 1.96 * math.sqrt(share * (1 - share) / 60)
    assert found.harm.value == pytest.approx(share)
    assert found.harm.low == pytest.approx(share - error, abs=0.03)
    assert found.harm.high == pytest.approx(share + error, abs=0.03)
    # Sets that are copies of one another say no more than one of them.
    copies = {f"{i}-{j}": found for i, found in sets.items() for j in range(4)}
    family = {name: name.partition("-")[0] for name in copies}
    together = next(s for s in standings(copies, families=family) if s.method == "vector")
    assert together.harm.high - together.harm.low == pytest.approx(found.harm.high - found.harm.low, abs=0.03)
    apart = next(s for s in standings(copies) if s.method == "vector")
    assert apart.harm.high - apart.harm.low < 0.7 * (together.harm.high - together.harm.low)


def test_solvers_of_one_method_are_equal() -> None:
    sets = {name: values(identity=0.5, vector=0.4, again=0.4000001, slightly_worse=0.500001) for name in "ab"}
    found = {standing.method: standing for standing in standings(sets)}
    assert [found[name].rank.value for name in ("vector", "again", "identity", "slightly-worse")] == [
        1.5,
        1.5,
        3.5,
        3.5,
    ]
    assert found["slightly-worse"].harm.value == 0
    assert found["vector"].wins.value == pytest.approx(2.5 / 3)


def test_standings_need_the_baseline() -> None:
    with pytest.raises(InputError, match="identity"):
        standings({"one": values(vector=0.4)})
