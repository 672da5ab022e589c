"""Columns and keys by the names that the caller gives them."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from commands import run
from temperance import evaluate
from temperance.calibrators import Temperature
from temperance.errors import FileError, InputError
from temperance.predictions import read_predictions, write_predictions
from temperance.predictions.given import as_predictions

N = 300
TRUTH = np.arange(N) % 3
SCORES = np.random.default_rng(0).normal(size=(N, 3)) + np.eye(3)[TRUTH]
OWN = {"logits": "logit_*", "label": "y", "group": "site"}
TABLE = {f"logit_{j}": SCORES[:, j] for j in (2, 0, 1)} | {
    "y": TRUTH,
    "site": [f"s{i % 2}" for i in range(N)],
    "id": TRUTH,
}


def save(path: Path, table: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {name: np.asarray(values) for name, values in table.items()}
        np.savez(path, **arrays)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(table), path)
    else:
        cells = [
            [repr(cell) if isinstance(cell, float) else str(cell) for cell in np.asarray(column).tolist()]
            for column in table.values()
        ]
        rows = zip(*cells, strict=True)
        path.write_text("\n".join([",".join(table), *map(",".join, rows)]) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_pattern_names_the_columns_of_scores(tmp_path: Path, suffix: str) -> None:
    found = read_predictions(save(tmp_path / f"in{suffix}", TABLE), columns=OWN)
    assert found.from_logits and np.array_equal(found.scores, SCORES) and found.class_names is None
    assert found.labels.tolist() == TRUTH.tolist() and found.groups is not None and found.groups[1] == "s1"
    again = evaluate(tmp_path / f"in{suffix}", columns=OWN, bootstrap=0)
    assert again.row("accuracy").value == float((SCORES.argmax(1) == TRUTH).mean())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_list_names_columns_and_classes_in_order(tmp_path: Path, suffix: str) -> None:
    probs = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
    table = {"yes": probs[:, 2], "no": probs[:, 0], "maybe": probs[:, 1], "truth": TRUTH}
    path = save(tmp_path / f"in{suffix}", table)
    found = read_predictions(path, columns={"probs": "no,maybe,yes", "label": "truth"})
    assert not found.from_logits and found.class_names == ("no", "maybe", "yes") and np.array_equal(found.scores, probs)


def test_what_the_star_stands_for_is_the_class(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", {"score_cat_raw": SCORES[:, 0], "score_dog_raw": SCORES[:, 1], "label": TRUTH % 2})
    assert read_predictions(path, columns={"logits": "score_*_raw"}).class_names == ("cat", "dog")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_list_of_columns_whose_names_only_begin_alike_is_told_of_the_pattern(tmp_path: Path, suffix: str) -> None:
    table = {"p cat": [0.5, 0.5], "p cow": [0.5, 0.5], "label": ["cow", "cat"]}
    path = save(tmp_path / f"in{suffix}", table)
    with pytest.raises(FileError, match=r"Name the columns by a pattern, 'p \*', and the classes are cat, cow"):
        _ = read_predictions(path, columns={"probs": "p cat,p cow"}).labels
    assert read_predictions(path, columns={"probs": "p *"}).class_names == ("cat", "cow")


def test_a_column_of_lists_and_an_array_have_one_name(tmp_path: Path) -> None:
    own = {"logits": "scores", "label": "y"}
    table = save(tmp_path / "in.parquet", {"scores": list(SCORES), "y": TRUTH})
    arrays = save(tmp_path / "in.npz", {"scores": SCORES, "y": TRUTH})
    assert read_predictions(table, columns=own).fingerprint == read_predictions(arrays, columns=own).fingerprint


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"logits": "nothing_*"}, "no column matches logits 'nothing_\\*'; found "),
        ({"logits": "logit"}, "A pattern has a star: logit\\*"),
        ({"logits": "logit_0,logit_9"}, "no column 'logit_9' for logits"),
        (OWN | {"logits": "logit_0", "label": "truth"}, "no column 'truth' for label"),
        (OWN | {"logits": "logit_0", "group": "place"}, "no column 'place' for group"),
    ],
)
def test_names_that_are_not_there(tmp_path: Path, suffix: str, columns: dict[str, str], sentence: str) -> None:
    path = save(tmp_path / f"in{suffix}", TABLE)
    with pytest.raises(FileError, match=sentence):
        read_predictions(path, columns=columns)


def test_a_binary_classifier_without_its_column(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", {"score": [0.2, 0.7], "label": [0, 1]})
    with pytest.raises(FileError, match=r"the column logits \(or probs\), the score of the positive class, and label;"):
        read_predictions(path, positive=1)


def test_odd_numbers_of_columns(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", TABLE)
    with pytest.raises(FileError, match=r"'logit_1\*' matches one column, logit_1; .* pass positive=1"):
        read_predictions(path, columns=OWN | {"logits": "logit_1*"})
    gap = save(tmp_path / "gap.csv", {name: column for name, column in TABLE.items() if name != "logit_1"})
    with pytest.raises(FileError, match="numbered 0 … 1; found logit_0, logit_2"):
        read_predictions(gap, columns=OWN)
    with pytest.raises(FileError, match="must be one array"):
        read_predictions(save(tmp_path / "in.npz", TABLE), columns=OWN)
    found = read_predictions(path, columns=OWN | {"logits": "logit_1"}, positive=2, labels="ignored")
    assert found.k == 2 and np.array_equal(found.scores[:, 1], SCORES[:, 1])


@pytest.mark.parametrize("columns", [{"logits": "a", "probs": "b"}, {"labels": "y"}, {"label": 3}])
def test_wrong_names_of_columns(columns: Any) -> None:
    with pytest.raises(InputError, match="columns"):
        read_predictions("in.csv", columns=columns)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_commands_take_names_of_columns(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"in{suffix}", TABLE)
    flags = ["--logits", "logit_*", "--label", "y"]
    assert run("evaluate", path, *flags, "--group", "site", "--by", "group", "--bootstrap", "0").code == 0
    assert "no column matches --logits 'x*'" in run("evaluate", path, "--logits", "x*").err
    assert run("fit", "temperature", path, "-o", tmp_path / "cal.safetensors", *flags).code == 0
    out = tmp_path / f"out{suffix}"
    assert run("apply", tmp_path / "cal.safetensors", path, "-o", out, *flags, "--group", "site").code == 0
    found = read_predictions(out, columns={"label": "y", "group": "site"})
    expected = Temperature().fit(SCORES, TRUTH).predict_proba(SCORES)
    assert np.allclose(found.scores, expected, atol=1e-12) and found.calibrated_by == "temperature"


def test_a_column_is_not_overwritten_by_the_new_one(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", TABLE | {"probs_1": SCORES[:, 0]})
    Temperature().fit(SCORES, TRUTH).save(tmp_path / "cal.safetensors")
    said = run("apply", tmp_path / "cal.safetensors", path, "-o", tmp_path / "out.csv", "--logits", "logit_*")
    assert said.code == 2 and "probs_1 collides with a new one" in said.err and not (tmp_path / "out.csv").exists()


SEX, AGE = np.array(["f", "m", ""])[np.arange(N) % 3], np.arange(N) % 2
PEOPLE = {f"probs_{j}": np.full(N, 0.5) for j in range(2)} | {"label": AGE, "sex": SEX, "age": AGE}
COMBINED = ["f & 0", "m & 1", "(no name) & 0", "f & 1"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json", ".jsonl"])
def test_several_columns_of_groups_make_a_group_of_each_combination(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    if suffix.startswith(".json"):
        records = [{name: PEOPLE[name][i].item() for name in PEOPLE} for i in range(N)]
        path.write_text(json.dumps(records) if suffix == ".json" else "\n".join(map(json.dumps, records)))
    else:
        save(path, PEOPLE)
    found = read_predictions(path, columns={"group": "sex, age"})
    assert found.groups is not None and found.groups[:4].tolist() == COMBINED and len(set(found.groups)) == 6
    # Another format has the combinations, and the columns themselves are not lost.
    write_predictions(tmp_path / "out.npz", found)
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["groups"][:4].tolist() == COMBINED and arrays["sex"].tolist() == SEX.tolist()
        assert np.array_equal(arrays["age"], AGE)
    with pytest.raises(FileError, match="there is no column 'town' for group; found"):
        read_predictions(path, columns={"group": "sex,town"})


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_labels_can_be_groups_and_a_column_that_is_named_twice_counts_once(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({name: PEOPLE[name][i].item() for name in PEOPLE}) for i in range(N)))
    else:
        save(path, PEOPLE)
    for named, expected in (("sex,label", ["f & 0", "m & 1"]), ("label", ["0", "1"]), ("sex,sex", ["f", "m"])):
        found = read_predictions(path, columns={"group": named})
        assert found.groups is not None and found.groups[:2].tolist() == expected
        assert torch.equal(found.labels, torch.from_numpy(AGE))
    write_predictions(tmp_path / "out.npz", read_predictions(path, columns={"group": "sex,label"}))
    with np.load(tmp_path / "out.npz") as arrays:
        assert sorted(arrays) == ["age", "groups", "labels", "probs", "sex"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_may_be_two_things_at_once(tmp_path: Path, suffix: str) -> None:
    table = {"confidence": [0.5, 0.25, 0.75], "correct": [1, 0, 1]}
    path = save(tmp_path / f"in{suffix}", table)
    for name, values in table.items():
        found = read_predictions(path, columns={"weight": name}, answers=True)
        assert found.weights is not None and found.weights.tolist() == values and found.labels.tolist() == [1, 0, 1]
    with pytest.raises(FileError, match=r"correct must be .*0\.5|labels must be class numbers"):
        read_predictions(path, columns={"label": "confidence"}, answers=True).labels  # noqa: B018


def test_a_record_without_a_group_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    for row in (0, 1):
        records = [{"probs": [0.5, 0.5], "label": 0, "sex": None if i == row else "f"} for i in range(3)]
        path.write_text("\n".join(map(json.dumps, records)))
        with pytest.raises(FileError, match=rf"sex must .*; row {row} \(counting from 0\) has nothing"):
            read_predictions(path, columns={"group": "sex"}).chunks().__next__()


def test_a_csv_without_pyarrow_has_the_same_combinations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = read_predictions(save(tmp_path / "in.csv", PEOPLE), columns={"group": "sex,age"})
    assert found.groups is not None and found.groups[:4].tolist() == COMBINED


def test_arrays_of_groups_are_combined(tmp_path: Path) -> None:
    one = {"probs": np.full((N, 2), 0.5), "labels": AGE, "sex": SEX, "age": AGE}
    both = {f"{part}_{name}": values for part in ("val", "test") for name, values in one.items()}
    for table in (one, both):
        found = read_predictions(save(tmp_path / "in.npz", table), columns={"group": "sex,age"})
        assert found.groups is not None and found.groups[:4].tolist() == COMBINED
    for name, values in one.items():
        np.save(tmp_path / f"{name}.npy", values)
    files = [str(tmp_path / f"{name}.npy") for name in ("sex", "age")]
    columns = {"label": str(tmp_path / "labels.npy"), "group": ",".join(files)}
    found = read_predictions(tmp_path / "probs.npy", columns=columns)
    assert found.groups is not None and found.groups[:4].tolist() == COMBINED and found.grouped_by == ("sex", "age")
    save(tmp_path / "in.npz", one | {"age": AGE[1:]})
    with pytest.raises(FileError, match=r"groups must have shape \(300,\), one for each row of probs; got \(299,\)"):
        read_predictions(tmp_path / "in.npz", columns={"group": "sex,age"})


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".safetensors"])
def test_groups_may_be_true_or_false(tmp_path: Path, suffix: str) -> None:
    keyed = suffix in (".npz", ".safetensors")
    scores = {"probs": np.full((N, 2), 0.5)} if keyed else {f"probs_{j}": np.full(N, 0.5) for j in range(2)}
    table = {**scores, "labels" if keyed else "label": AGE, "doctor": AGE == 1, "woman": np.arange(N) % 3 == 0}
    path = tmp_path / f"in{suffix}"
    if suffix == ".safetensors":
        save_file({name: torch.from_numpy(values) for name, values in table.items()}, path)
    else:
        save(path, table)
    found = read_predictions(path, columns={"group": "doctor,woman"})
    assert found.grouped_by == ("doctor", "woman")
    assert found.groups is not None and found.groups[:2].tolist() == ["False & True", "True & False"]
    assert read_predictions(path, columns={"group": "woman"}).grouped_by == ("woman",)


def test_the_names_of_groups_are_not_those_of_another_tensor(tmp_path: Path) -> None:
    people = PEOPLE | {"sex": SEX[[0, 1] * (N // 2)]}
    whole = read_predictions(save(tmp_path / "in.csv", people), columns={"group": "sex"})
    write_predictions(tmp_path / "in.safetensors", whole)  # groups with the names f and m, and age
    for group, expected in (("groups", ["f", "m"]), ("age", ["0", "1"]), ("groups,age", ["f & 0", "m & 1"])):
        found = read_predictions(tmp_path / "in.safetensors", columns={"group": group})
        assert found.groups is not None and found.groups[:2].tolist() == expected
    own = {"probs": whole.scores, "labels": whole.labels, "site": whole.labels.clone()}
    save_file(own, tmp_path / "own.safetensors", {"group_names": json.dumps(["north", "south"])})
    found = read_predictions(tmp_path / "own.safetensors", columns={"group": "site"})
    assert found.groups is not None and found.groups[:2].tolist() == ["north", "south"]


def test_the_columns_of_a_table_in_memory_are_combined() -> None:
    found = as_predictions(PEOPLE, columns={"group": "sex,age"})
    assert found.groups is not None and found.groups[:4].tolist() == COMBINED
    with pytest.raises(InputError, match="groups must be text or integers; got float64"):
        as_predictions(PEOPLE | {"age": AGE / 2}, columns={"group": "sex,age"})


def test_an_option_that_is_given_twice_is_not_dropped(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", PEOPLE)
    said = run("evaluate", path, "--by", "group", "--group", "sex", "--groups", "age")
    assert said.code == 2 and "--group is given twice; a list of several has commas: --group sex,age" in said.err
    for command, option, one, other in (
        ("evaluate", "--metrics", "ece", "nll"),
        ("compare", "--methods", "vector", "auto"),
        ("abstain", "--risk", "0.1", "0.2"),
        ("ood", "--scores", "msp", "margin"),
    ):
        said = run(command, path, option, one, option, other)
        assert (
            said.code == 2
            and f"{option} is given twice; a list of several has commas: {option} {one},{other}" in said.err
        )


def test_commands_combine_groups(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", PEOPLE)
    result = run("evaluate", path, "--by", "group", "--group", "sex,age", "--bootstrap", "0", "--metrics", "accuracy")
    assert re.findall(r"│ (\S* & \S*|all) +│ +(\d+) │", result.out.replace("(no name)", "unknown")) == [
        ("all", "300"),
        *((f"{sex} & {age}", "50") for sex in ("unknown", "f", "m") for age in "01"),
    ]
