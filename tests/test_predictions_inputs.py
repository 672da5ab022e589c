"""Inputs beside the four main formats: .tsv, .gz, .json, .jsonl, .npy, .pt, and tables in memory."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import temperance
from commands import run
from temperance.calibrators import Temperature
from temperance.errors import FileError, InputError
from temperance.predictions import Predictions, read_predictions, write_predictions
from temperance.predictions.given import as_predictions

pandas = pytest.importorskip("pandas")

N, K = 120, 3
LABELS = np.arange(N) % K
LOGITS = np.random.default_rng(0).normal(size=(N, K)) + np.eye(K)[LABELS]
TEXTS = [".tsv", ".csv.gz", ".tsv.gz", ".jsonl", ".json"]


def whole(**options: Any) -> Predictions:
    return Predictions.of(LOGITS, LABELS, from_logits=True, **options)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Temperature().fit(LOGITS, LABELS).save(tmp_path / "cal.safetensors")
    return tmp_path / "cal.safetensors"


@pytest.mark.parametrize("suffix", TEXTS)
@pytest.mark.parametrize("options", [{}, {"class_names": ["a", "b,c", "größte"], "groups": ["x\ty"] * N}])
def test_round_trips_are_exact(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    write_predictions(tmp_path / f"in{suffix}", whole(**options))
    found = read_predictions(tmp_path / f"in{suffix}")
    assert found.fingerprint == whole(**options).fingerprint
    assert found.class_names == whole(**options).class_names
    assert max(len(chunk.labels) for chunk in found.chunks(7)) == 7


def test_what_others_write(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("logits_0\tlogits_1\tlabel\n1.5\t0.5\t1\n0.25\t2\t0\n")
    with gzip.open(tmp_path / "in.csv.gz", "wt") as handle:
        handle.write("logits_0,logits_1,label\n1.5,0.5,1\n0.25,2,0\n")
    rows = [{"logits": [1.5, 0.5], "label": 1}, {"logits": [0.25, 2], "label": 0}]
    (tmp_path / "in.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    (tmp_path / "records.json").write_text(json.dumps(rows))
    (tmp_path / "columns.json").write_text(json.dumps({"logits": [[1.5, 0.5], [0.25, 2]], "label": [1, 0]}))
    (tmp_path / "wide.json").write_text(json.dumps({"logits_0": [1.5, 0.25], "logits_1": [0.5, 2], "label": [1, 0]}))
    np.save(tmp_path / "logits.npy", np.array([[1.5, 0.5], [0.25, 2]], np.float16))
    np.save(tmp_path / "y.npy", np.array([1, 0], np.uint8))
    torch.save({"logits": torch.tensor([[1.5, 0.5], [0.25, 2]]), "labels": [1, 0], "epoch": 3}, tmp_path / "in.pt")
    expected = Predictions.of([[1.5, 0.5], [0.25, 2]], [1, 0], from_logits=True).fingerprint
    for name in ("in.tsv", "in.csv.gz", "in.jsonl", "records.json", "columns.json", "wide.json", "in.pt"):
        assert read_predictions(tmp_path / name).fingerprint == expected
    own = {"label": str(tmp_path / "y.npy")}
    assert read_predictions(tmp_path / "logits.npy", columns=own).fingerprint == expected
    (tmp_path / "logits.npy").rename(tmp_path / "scores.npy")
    with pytest.raises(FileError, match=r"call it logits.npy or probs.npy, or say which it is: columns="):
        read_predictions(tmp_path / "scores.npy", columns=own)
    assert read_predictions(tmp_path / "scores.npy", columns=own | {"logits": "scores"}).fingerprint == expected
    command: list[str | Path] = [
        "evaluate",
        tmp_path / "scores.npy",
        "--logits",
        "scores",
        "--labels",
        tmp_path / "y.npy",
    ]
    assert run(*command, "--bootstrap", "0").code == 0
    assert "name it: --label labels.npy" in run(*command[:4]).err


@pytest.mark.parametrize("suffix", TEXTS)
def test_apply_keeps_everything_else(saved: Path, tmp_path: Path, suffix: str) -> None:
    path, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    write_predictions(tmp_path / "in.csv", whole())
    lines = (tmp_path / "in.csv").read_text().splitlines()
    (tmp_path / "in.csv").write_text(
        "\n".join([f"{lines[0]},id", *(f"{line},s{i}" for i, line in enumerate(lines[1:]))])
    )
    write_predictions(path, read_predictions(tmp_path / "in.csv"))
    for source in (path, tmp_path / "in.csv"):
        said = run("apply", saved, source, "-o", out)
        assert said.code == 0, said.err
        found = read_predictions(out)
        assert np.allclose(found.scores, Temperature().fit(LOGITS, LABELS).predict_proba(LOGITS), atol=1e-12)
        assert found.calibrated_by == "temperature" and found.labels.tolist() == LABELS.tolist()
        text = gzip.decompress(out.read_bytes()).decode() if suffix.endswith(".gz") else out.read_text()
        assert "s0" in text and f"s{N - 1}" in text


def test_pt_and_npy_are_calibrated_into_another_format(saved: Path, tmp_path: Path) -> None:
    others = {
        "id": torch.arange(N),
        "embedding": torch.ones(N, 2, dtype=torch.bfloat16),
        "bias": torch.zeros(3, requires_grad=True),
        "network": "resnet18",
    }
    torch.save({"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS), **others}, tmp_path / "in.pt")
    np.save(tmp_path / "logits.npy", LOGITS)
    assert run("apply", saved, tmp_path / "in.pt", "-o", tmp_path / "out.npz").code == 0
    with np.load(tmp_path / "out.npz") as found:
        assert found["id"].tolist() == list(range(N)) and found["probs"].shape == (N, K)
        assert found["embedding"].tolist() == [[1, 1]] * N and found["bias"].tolist() == [0, 0, 0]
        assert str(found["network"]) == "resnet18"
    assert run("apply", saved, tmp_path / "logits.npy", "-o", tmp_path / "new.npz").code == 0
    assert "read but not written" in run("apply", saved, tmp_path / "in.pt", "-o", tmp_path / "out.pt").err


def test_pt_never_runs_code(tmp_path: Path) -> None:
    torch.save({"logits": torch.tensor(LOGITS), "labels": LABELS.tolist(), "path": tmp_path}, tmp_path / "in.pt")
    with pytest.raises(FileError, match="could run any code; save tensors"):
        read_predictions(tmp_path / "in.pt")
    torch.save(torch.tensor(LOGITS), tmp_path / "one.pt")
    with pytest.raises(FileError, match="expected a dictionary of tensors"):
        read_predictions(tmp_path / "one.pt")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '{"logits": [1, 2], "label": 0}\n{"logits": [1], "label": 0}',
            "must be 2 numbers in each record; row 1 .*has",
        ),
        ('{"logits": [1, 2], "label": 0}\n{"logits": [1, "x"], "label": 0}', "must be 2 numbers .* row 1"),
        ('{"logits": [1, 2], "label": 0}\n{"label": 0}', "row 1 .*has nothing"),
        ('{"logits": [1, 2], "label": 0}\n[1, 2]', r"must be a record, .* row 1 \(counting from 0\) is \[1, 2\]"),
        (
            '{"logits": [1, 2], "label": 0}\n{"logits": [1',
            r"row 1 \(counting from 0\) is damaged or cut short",
        ),
        ('{"probs": {"A": 0.9, "B": 0.1}, "label": "A"}', r"of their own: {\"probs_A\": …, \"probs_B\": …, …}"),
        ('{"logits": [1, NaN], "label": 0}', "must be finite; row 0 .*class 1 is nan"),
        ('{"logits": 1, "label": 0}', "must be a list of numbers"),
        ('{"scores": [1, 2], "label": 0}', "expected the columns logits_0"),
        ('{"logits": [1, 2]', "a record in JSON; row 0 is damaged"),
    ],
)
def test_records_that_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "in.jsonl").write_text(text)
    with pytest.raises(FileError, match=sentence):
        temperance.evaluate(tmp_path / "in.jsonl", bootstrap=0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "there is no record"),
        ("3", "expected a list of records, or columns"),
        ('{"logits": [[1, 2], [3, 4]], "label": [0]}', "columns must have the same length; got logits: 2, label: 1"),
    ],
)
def test_json_that_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "in.json").write_text(text)
    with pytest.raises(FileError, match=sentence):
        read_predictions(tmp_path / "in.json")


def test_other_entries_of_records_are_kept_in_other_formats(tmp_path: Path) -> None:
    rows = [{"logits": [1.5, 0.5], "label": 1, "id": "a", "n": 3}, {"logits": [0.25, 2], "label": 0, "id": "b", "n": 4}]
    (tmp_path / "in.json").write_text(json.dumps(rows))
    write_predictions(tmp_path / "out.npz", read_predictions(tmp_path / "in.json"))
    with np.load(tmp_path / "out.npz") as found:
        assert found["id"].tolist() == ["a", "b"] and found["n"].tolist() == [3, 4]
    rows[1]["n"] = "four"
    (tmp_path / "in.json").write_text(json.dumps(rows))
    with pytest.raises(FileError, match="n has values of several kinds, which only"):
        write_predictions(tmp_path / "out.npz", read_predictions(tmp_path / "in.json"))


def test_records_of_another_length_are_refused_in_any_chunk(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"logits": [1, 2], "label": 0}\n{"logits": [1, 2, 3], "label": 0}\n')
    with pytest.raises(FileError, match="must be 2 numbers in each record; row 1 "):
        list(read_predictions(tmp_path / "in.jsonl").chunks(rows=1))


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_folders_of_them(tmp_path: Path, suffix: str) -> None:
    for i, rows in enumerate(np.array_split(np.arange(N), 3)):
        write_predictions(tmp_path / f"{i}{suffix}", Predictions.of(LOGITS[rows], LABELS[rows], from_logits=True))
    assert read_predictions(tmp_path).fingerprint == whole().fingerprint


# --------------------------------------------------------------------------------------------------- tables in memory


class Dataset:
    """As much of a Hugging Face data set as is used: names of columns, and columns that are lists."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]


WIDE = {"logits_0": LOGITS[:, 0], "logits_1": LOGITS[:, 1], "logits_2": LOGITS[:, 2], "label": LABELS}
LISTS = {"logits": LOGITS.tolist(), "label": LABELS.tolist()}


@pytest.mark.parametrize(
    "table",
    [
        pandas.DataFrame(WIDE),
        pandas.DataFrame(LISTS),
        pa.table(WIDE),
        pa.table(LISTS),
        Dataset({name: column.tolist() for name, column in WIDE.items()}),
        Dataset(LISTS),
    ],
    ids=["pandas-wide", "pandas-lists", "arrow-wide", "arrow-lists", "dataset-wide", "dataset-lists"],
)
def test_tables_in_memory(table: Any) -> None:
    assert as_predictions(table).fingerprint == whole().fingerprint
    assert temperance.evaluate(table, bootstrap=0).row("nll") is not None


def test_rows_of_a_table_without_a_label_are_left_out() -> None:
    labels = np.where(LABELS == 2, 255, LABELS)
    found = as_predictions({"logits": LOGITS, "label": labels}, ignore_index=255)
    assert found.fingerprint == whole().select(LABELS != 2).fingerprint


def test_a_frame_with_labels_beside_it_is_an_array() -> None:
    names = [f"class {j}" for j in range(LOGITS.shape[1])][::-1]
    frame, truth = pandas.DataFrame(LOGITS, columns=names), pandas.Series([names[j] for j in LABELS])
    named = as_predictions(frame, truth, from_logits=True)
    assert named.class_names == tuple(names) and named.labels.tolist() == list(LABELS)
    assert as_predictions(frame, LABELS, from_logits=True).class_names is None
    with pytest.raises(InputError, match="labels are text, but there are no class names"):
        as_predictions(pandas.DataFrame(LOGITS), truth, from_logits=True)
    found = as_predictions(pandas.DataFrame(LOGITS), LABELS, from_logits=True)
    assert found.fingerprint == whole().fingerprint


def test_tables_have_names_of_their_own() -> None:
    table = pandas.DataFrame({"p_cat": [0.5, 0.25], "p_dog": [0.5, 0.75], "truth": ["cat", "dog"], "site": ["a", "b"]})
    found = as_predictions(table, columns={"probs": "p_*", "label": "truth", "group": "site"})
    assert found.class_names == ("cat", "dog") and found.labels.tolist() == [0, 1] and found.groups is not None
    binary = as_predictions(table, columns={"probs": "p_dog", "label": "truth"}, positive="dog")
    assert binary.scores[:, 1].tolist() == [0.5, 0.75]


def test_a_dictionary_has_the_class_names_of_a_file(tmp_path: Path) -> None:
    names = ["ant", "bee", "cat"]
    given: dict[str, Any] = {"logits": LOGITS, "labels": np.array(names)[LABELS], "class_names": names}
    np.savez(tmp_path / "in.npz", **given)
    with np.load(tmp_path / "in.npz") as file:
        for table in (given, file):
            found = as_predictions(table)
            assert found.class_names == tuple(names) and found.labels.tolist() == LABELS.tolist()
    with pytest.raises(InputError, match="class_names must have 3 names"):
        as_predictions(given | {"class_names": names[:2]})


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        (pandas.DataFrame({"x": [1.0], "label": [0]}), {}, "expected the columns logits_0"),
        (pandas.DataFrame({"logits": [[1.0, 2.0], [1.0]], "label": [0, 1]}), {}, "a list of 2 numbers.*row 1 has 1"),
        (pandas.DataFrame({"logits": [[1.0, 2.0], None], "label": [0, 1]}), {}, "has no value in row 1"),
        (pandas.DataFrame({"logits": [1.0, 2.0], "label": [0, 1]}), {}, "must hold a list of numbers"),
        (pandas.DataFrame({"logits": [], "label": []}, dtype=object), {}, "the table has no rows"),
        (pandas.DataFrame(WIDE), {"from_logits": True}, "a table brings its own labels"),
        (LOGITS, {"labels": LABELS, "columns": {"logits": "x"}}, "arrays have none"),
    ],
)
def test_tables_that_are_refused(table: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        as_predictions(table, **options)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, K)])
def test_list_columns_as_arrow_writes_them(tmp_path: Path, kind: Any, lists: Any) -> None:
    column = pa.array([list(row) for row in LOGITS.astype(kind.to_pandas_dtype())], lists(kind))
    pq.write_table(pa.table({"logits": column, "label": LABELS}), tmp_path / "in.parquet")
    expected = Predictions.of(LOGITS.astype(kind.to_pandas_dtype()), LABELS, from_logits=True)
    assert read_predictions(tmp_path / "in.parquet").fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": "y"}, 'columns must be a dictionary, such as {"label": "y"}; got \'y\''),
        ({"columns": ["y"]}, "columns must be a dictionary, .*; got \\['y'\\]"),
        ({"ignore_index": "255"}, "ignore_index must be a whole number or none; got '255'"),
        ({"ignore_index": 1.5}, "ignore_index must be a whole number or none; got 1.5"),
        ({"metrics": 5}, r"a list of names, such as \['ece', 'nll'\], was expected; got 5"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_in_a_sentence(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    write_predictions(tmp_path / "in.npz", whole())
    with pytest.raises(InputError, match=sentence):
        temperance.evaluate(tmp_path / "in.npz", **options)


def test_the_label_to_ignore_is_a_whole_number_of_any_type() -> None:
    assert temperance.evaluate(whole(), ignore_index=np.int64(2), bootstrap=0).n_counted == N - N // K  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ignore_index must be a whole number; got 1\.5"):
        temperance.evaluate(whole(), ignore_index=1.5)  # type: ignore[arg-type]
