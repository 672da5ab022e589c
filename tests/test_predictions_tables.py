"""Tables of predictions: .csv and .parquet."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from conftest import refusal
from temperance.errors import FileError, InputError, MissingExtraError
from temperance.predictions import Predictions, read_pair, read_predictions, write_predictions

Save = Callable[[Path, dict[str, list[Any]]], Path]


def save_csv(folder: Path, columns: dict[str, list[Any]]) -> Path:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "p.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "p.csv"


def save_parquet(folder: Path, columns: dict[str, list[Any]]) -> Path:
    pq.write_table(pa.table(columns), folder / "p.parquet")
    return folder / "p.parquet"


every_format = pytest.mark.parametrize("save", [save_csv, save_parquet])


@pytest.fixture(params=["with pyarrow", "without pyarrow"])
def either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to read a .csv."""
    if request.param == "without pyarrow":
        hide_pyarrow(monkeypatch)


def hide_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)


# ------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.usefixtures("either_parser")
def test_an_underscore_makes_text_of_digits(tmp_path: Path) -> None:
    """Python takes 1_0 for ten; other programs do not."""
    path = save_csv(tmp_path, {"probs_1_0": [0.8, 0.7], "probs_2_0": [0.2, 0.3], "label": ["2_0", "1_0"]})
    found = read_predictions(path)
    assert found.class_names == ("1_0", "2_0") and found.labels.tolist() == [1, 0]
    path = save_csv(tmp_path, {"probs_0": [0.8, 0.7], "probs_1": [0.2, 0.3], "label": ["0", "0_1"]})
    assert "0_1" in refusal(path)


@every_format
def test_numbered_columns_in_any_order(tmp_path: Path, save: Save) -> None:
    path = save(tmp_path, {"id": ["x", "y"], "probs_1": [0.2, 0.3], "label": [1, 0], "probs_0": [0.8, 0.7]})
    found = read_predictions(path)
    assert (found.n, found.k, found.from_logits, found.class_names, found.split) == (2, 2, False, None, None)
    assert found.scores.tolist() == [[0.8, 0.2], [0.7, 0.3]]
    assert found.labels.tolist() == [1, 0]
    assert not found.has_groups


@every_format
def test_more_than_ten_numbered_columns_are_in_the_order_of_numbers(tmp_path: Path, save: Save) -> None:
    columns: dict[str, list[Any]] = {f"logits_{i}": [float(i)] for i in sorted(range(12), key=str)}
    assert read_predictions(save(tmp_path, columns | {"labels": [11]})).scores.tolist() == [list(map(float, range(12)))]


@every_format
@pytest.mark.parametrize("labels", [[1, 0, 1], ["dog", "cat", "dog"]])
def test_named_columns(tmp_path: Path, save: Save, labels: list[Any]) -> None:
    columns = {"logits_cat": [1.0, 2.0, 3.0], "logits_dog": [4.5, 5.5, 6.5], "label": labels, "group": ["a", "b", "a"]}
    found = read_predictions(save(tmp_path, columns))
    assert found.class_names == ("cat", "dog")
    assert found.scores.tolist() == [[1.0, 4.5], [2.0, 5.5], [3.0, 6.5]]
    assert found.labels.tolist() == [1, 0, 1]
    assert found.groups is not None
    assert found.groups.tolist() == ["a", "b", "a"]


@every_format
@pytest.mark.parametrize("labels", [[1.0, 0.0, 1.0], [True, False, True]])
def test_labels_that_are_whole_numbers_of_another_type(tmp_path: Path, save: Save, labels: list[Any]) -> None:
    columns = {"logits_0": [1.0, 2.0, 3.0], "logits_1": [4.5, 5.5, 6.5], "label": labels}
    assert read_predictions(save(tmp_path, columns)).labels.tolist() == [1, 0, 1]


@every_format
@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"a": [1.0], "b": [2.0], "label": [0]}, "expected the columns logits_0, logits_1, …"),
        (
            {"logits_a": [1.0], "logits_b": [2.0], "y": [0]},
            "expected the column label beside logits_a, logits_b; found",
        ),
        ({"logits_0": [1.0], "logits_1": [2.0], "target": [0]}, "the column label beside logits_0, logits_1; found"),
        ({"logits_0": [1.0], "probs_0": [1.0], "label": [0]}, "both logits_0 and probs_0"),
        ({"logits_0": [1.0], "label": [0], "labels": [0]}, "both label and labels"),
        ({"logits_0": [1.0], "label": [0], "group": [0], "groups": [0]}, "both group and groups"),
        ({"logits_1": [1.0], "logits_2": [2.0], "label": [0]}, "classes must be numbered 0 … 1"),
        ({"logits_0": [1.0], "logits_cat": [2.0], "label": [0]}, "numbers or names, not both"),
        ({"logits_": [1.0], "logits_cat": [2.0], "label": [0]}, "non-empty strings"),
        ({"logits_0": [1.0], "logits_1": ["x"], "label": [0]}, "must be"),
        ({"logits_0": [1.0], "logits_1": [2.0], "label": [0.5]}, "labels must be class numbers"),
        ({"logits_0": [1.0], "logits_1": [2.0], "label": ["cat"]}, "labels"),
        ({"logits_cat": [1.0], "logits_dog": [2.0], "label": ["cow"]}, "class names cat, dog"),
        ({"val_logits_0": [1.0], "val_label": [0]}, "expected the columns"),
    ],
)
def test_columns_that_are_refused(tmp_path: Path, save: Save, columns: dict[str, list[Any]], sentence: str) -> None:
    assert sentence in refusal(save(tmp_path, columns))


@every_format
def test_a_table_is_one_set(tmp_path: Path, save: Save) -> None:
    path = save(tmp_path, {"logits_0": [1.0], "logits_1": [2.0], "label": [0]})
    assert "a table holds one set" in refusal(path, "test")
    with pytest.raises(FileError, match="a table holds one set"):
        read_pair(path)


@every_format
def test_many_columns_make_a_short_sentence(tmp_path: Path, save: Save) -> None:
    said = refusal(save(tmp_path, {f"column_with_a_long_name_{i}": [1.0] for i in range(1000)}))
    assert "(1000 in all)" in said
    assert len(said) < 700


# ----------------------------------------------------------------------------------------------------------------- csv


def csv_file(folder: Path, text: str) -> Path:
    (folder / "p.csv").write_bytes(text.encode())
    return folder / "p.csv"


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize(
    "text",
    [
        "logits_0,logits_1,label,group\n0.5,-1e-300,1,a\n3,inf,0,01\n",
        "logits_0,logits_1,label,group\r\n0.5,-1e-300,1,a\r\n3,inf,0,01\r\n",
        "\ufefflogits_0,logits_1,label,group\n0.5,-1e-300,1,a\n3,inf,0,01",
        "logits_0,logits_1,label,group\n\n0.5,-1e-300,1,a\n\n3,inf,0,01\n\n",
        '"logits_0","logits_1","label","group"\n"0.5",-1e-300,"1","a"\n"3",inf,0,"01"\n',
        "logits_0,logits_1,label,group\n 0.5, -1e-300,1,a\n3 ,inf,0,01\n",
    ],
)
def test_csv_dialects(tmp_path: Path, text: str) -> None:
    found = read_predictions(csv_file(tmp_path, text))
    assert found.scores.tolist() == [[0.5, -1e-300], [3.0, float("inf")]]
    assert found.labels.tolist() == [1, 0]
    assert found.groups is not None
    assert found.groups.tolist() == ["a", "01"]


@pytest.mark.usefixtures("either_parser")
def test_csv_values_that_are_not_numbers_stay_what_they_are(tmp_path: Path) -> None:
    found = read_predictions(csv_file(tmp_path, "logits_0,logits_1,label,group\nnan,1,0,NA\n-inf,1,1,\n"))
    assert found.scores[0, 0].isnan()
    assert found.scores[1, 0] == -float("inf")
    assert found.groups is not None
    assert found.groups.tolist() == ["NA", ""]


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0.1,0.9,1\n0.2,0.8,0\n", "the first line is numbers; it must name the columns"),
        ("probs_0,probs_1,label\n0.1,0.9,1\n0.2,0.8\n", "must have 3 cells, as the header has; line 3 has 2"),
        ("probs_0,probs_1,label\n0.1,0.9,1\n0.2,0.8,0,7\n", "must have 3 cells, as the header has; line 3 has 4"),
        (
            "probs_0,probs_1,label\n\n0.1,0.9,1\n0.2,oops,0\n",
            "probs_1 must be a number in each line; line 4 has 'oops'",
        ),
        (
            "probs_0,probs_1,label\n0.1,0.9,1\n0.2,,0\n",
            "probs_1 must be a number in each line; line 3 has ''; fill it in, or",
        ),
        ("probs_0,probs_1,label\n0.1,NA,1\n", "line 2 has 'NA'; fill it in, or leave the row out"),
        ("probs_0|probs_1|label\n0.1|0.9|1\n", "Cells must be separated by commas"),
        ("probs_0,probs_1,label\n10%,90 %,1\n", "line 2 has '10%'; write 0.87 for 87 %"),
        ('probs_0,probs_1,label\n0.1,"0,9",1\n', "line 2 has '0,9'; decimals need a point"),
        ("probs_0,probs_1,label\n0.1,0.9,1\n0.2,0.8,1.5\n", "line 3 has '1.5'"),
        ("probs_0,probs_1,label\n0.1,0.9,1\n0.2,0.8,nan\n", "line 3 has 'nan'"),
        ("probs_0,probs_1,label\n0.1,0.9,1\n0.2,0.8,1e300\n", "line 3 has '1e300'"),
        ("probs_0,probs_1,label\n0.1,0.9,1\n0.2,0.8,\n", "line 3 has no label; fill it in, or leave the row out"),
        ("probs_0,probs_1,label\n0.1,0.9,99999999999999999999\n", "line 2 has '99999999999999999999'"),
        ("probs_0,probs_1,label\n0.1,0.9,cat\n", "classes have no names; line 2 has 'cat'"),
        ("probs_cat,probs_dog,label\n0.1,0.9,dog\n\n0.1,0.9,cow\n", "class names cat, dog; line 4 has 'cow'"),
        ("probs_0,probs_0,label\n0.1,0.9,1\n", "'probs_0' occurs more than once"),
        ("probs,label\n0.1,1\n", "a .csv has no lists"),
        ("probs_0,probs_1,label\n", "at least one row"),
        ("\n\n\n", "and label; found nothing"),
        ("probs_0;probs_1;label\n0.1;0.9;1\n", "found probs_0;probs_1;label. Cells must be separated by commas, and"),
        ("probs_0\tprobs_1\tlabel\n0.1\t0.9\t1\n", "Cells are separated by tabs: call the file .tsv"),
        ("probs_0, probs_1, label\n0.1,0.9,1\n", "Remove the spaces around names"),
        ("Probs_0,Probs_1,Label\n0.1,0.9,1\n", "Names must be in lower case"),
        ("probs_0,probs_1, Label\n0.1,0.9,1\n", "Names must be in lower case"),
        ("Id,no,yes,Truth\n7,0.1,0.9,1\n", "found Id, no, yes, Truth. Name yours with columns="),
        ("id , no, yes, truth\n7,0.1,0.9,1\n", "truth. Name yours with columns="),
        (
            "id,prob_no,prob_yes,y\n7,0.1,0.9,1\n",
            'columns={"logits": "prob_*", "label": NAME}, or "probs" for "logits"',
        ),
        ("p-no,p-yes,label\n0.1,0.9,yes\n", 'columns={"logits": "p-*"}, or "probs" for "logits"'),
        (",0,1,2\n0,0.1,0.9,1\n", "found '', 0, 1, 2. Name yours with columns={\"logits\": NAMES, "),
        ("probs_0,probs_1,label", "at least one row"),
        ("probs_0,probs_1,label\n0.1,0_0.9,1\n", "probs_1 must be a number in each line; line 2 has '0_0.9'"),
        ("probs_7,probs_9,label\n0.1,0.9,7\n", "classes must be numbered 0 … 1; found probs_7, probs_9. If these"),
        ("probs,label\n0.1,1\n", "pass positive=1"),
        ("probs_1,label\n0.1,1\n", "classes must be numbered 0 … 0"),
        ('probs_0,probs_1,label\n0.1,"0.9,1\n', "damaged"),
    ],
)
def test_csv_that_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(csv_file(tmp_path, text))


@pytest.mark.usefixtures("either_parser")
def test_csv_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes("probs_0,probs_1,label,group\n0.5,0.5,1,größte\n".encode("latin-1"))
    assert "expected text in UTF-8; line 2 is not" in refusal(tmp_path / "p.csv")
    (tmp_path / "p.csv").write_bytes("probs_0,probs_1,label\n0.5,0.5,1\n".encode("utf-16"))
    assert "expected text in UTF-8; line 1 is not. Save the file as UTF-8" in refusal(tmp_path / "p.csv")


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize("rows", [1, 7, 1000, 10_000])
def test_csv_over_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("temperance.predictions.csv_parsing.BLOCK_BYTES", 1000)
    generator = np.random.default_rng(0)
    expected = Predictions.of(generator.normal(size=(500, 3)), generator.integers(0, 3, 500), groups=np.arange(500))
    write_predictions(tmp_path / "p.csv", expected)
    found = read_predictions(tmp_path / "p.csv")
    chunks = list(found.chunks(rows))
    assert max(len(labels) for _, labels, *_ in chunks) <= rows
    assert torch.equal(torch.cat([scores for scores, *_ in chunks]), expected.scores)
    assert found.fingerprint == expected.fingerprint


@pytest.mark.usefixtures("either_parser")
def test_csv_error_in_a_later_block_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temperance.predictions.csv_parsing.BLOCK_BYTES", 1000)
    lines = ["probs_cat,probs_dog,label", *["0.25,0.75,1"] * 400]
    lines[350] = "0.25,0.75,cow"
    assert "line 351 has 'cow'" in refusal(csv_file(tmp_path, "\n".join(lines)))
    lines[350] = "0.25,x,1"
    assert "line 351 has 'x'" in refusal(csv_file(tmp_path, "\n".join(lines)))
    lines[350] = "0.25"
    assert "line 351 has 1" in refusal(csv_file(tmp_path, "\n".join(lines)))


@pytest.mark.usefixtures("either_parser")
def test_csv_with_very_long_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temperance.predictions.csv_parsing.BLOCK_BYTES", 1000)
    expected = Predictions.of(np.random.default_rng(0).normal(size=(5, 3000)), np.arange(5), from_logits=True)
    write_predictions(tmp_path / "p.csv", expected)
    assert read_predictions(tmp_path / "p.csv").fingerprint == expected.fingerprint


def test_csv_refuses_class_names_that_are_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="like '7', cannot be told from class numbers"):
        write_predictions(tmp_path / "p.csv", Predictions.of([[0.5, 0.5]], [0], class_names=["three", "7"]))
    assert list(tmp_path.iterdir()) == []
    # Names that only repeat the class numbers say nothing, and are left out.
    write_predictions(tmp_path / "p.csv", Predictions.of([[0.5, 0.5]], [0], class_names=["0", "1"]))
    assert read_predictions(tmp_path / "p.csv").class_names is None


def test_csv_is_readable_by_others(tmp_path: Path) -> None:
    write_predictions(tmp_path / "p.csv", Predictions.of([[0.1, 0.9]], [1], class_names=["a, b", "c"], groups=["x"]))
    assert (tmp_path / "p.csv").read_text() == '"probs_a, b","probs_c","label","group"\n0.1,0.9,1,"x"\n'


# ------------------------------------------------------------------------------------------------------------- parquet


def parquet_file(folder: Path, **columns: Any) -> Path:
    return save_parquet(folder, columns)


ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float32()),
        pa.large_list(pa.float64()),
        pa.list_(pa.float16(), 2),
        pa.list_(pa.float64(), 2),
        pa.list_(pa.int32()),
    ],
)
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_parquet_lists(tmp_path: Path, kind: Any, rows: int) -> None:
    path = parquet_file(tmp_path, logits=pa.array(ROWS, kind), labels=[0, 1, 0], groups=[7, 8, 7])
    found = read_predictions(path)
    assert (found.n, found.k) == (3, 2)
    assert torch.cat([scores for scores, *_ in found.chunks(rows)]).tolist() == ROWS
    assert found.groups is not None
    assert found.groups.tolist() == ["7", "8", "7"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_parquet_text(tmp_path: Path, kind: Any) -> None:
    names = pa.array(["dog", "cat", "dog"], kind)
    path = parquet_file(tmp_path, probs_cat=[1.0, 2.0, 3.0], probs_dog=[4.0, 5.0, 6.0], label=names, group=names)
    found = read_predictions(path)
    assert found.labels.tolist() == [1, 0, 1]
    assert found.groups is not None
    assert found.groups.tolist() == ["dog", "cat", "dog"]


def test_parquet_names_with_dots(tmp_path: Path) -> None:
    found = read_predictions(parquet_file(tmp_path, **{"logits_a.b": [1.0], "logits_a": [2.0], "label": ["a.b"]}))
    assert found.class_names == ("a.b", "a")
    assert found.scores.tolist() == [[1.0, 2.0]]
    assert found.labels.tolist() == [0]


def test_parquet_over_row_groups(tmp_path: Path) -> None:
    scores = np.random.default_rng(0).normal(size=(1000, 4))
    table = pa.table({"logits": list(scores), "label": np.arange(1000) % 4})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=130)
    found = read_predictions(tmp_path / "p.parquet")
    chunks = list(found.chunks(100))
    assert max(len(labels) for _, labels, *_ in chunks) <= 100
    assert torch.equal(torch.cat([part for part, *_ in chunks]), torch.from_numpy(scores))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"logits": [1.0, 2.0, 3.0]}, "the column logits must hold a list of numbers in each row; got double"),
        ({"logits": [["a"], ["b"], ["c"]]}, "logits must be floating-point numbers; got string"),
        (
            {"logits": [[1.0, 2.0], [3.0], [4.0, 5.0]]},
            "a list of 2 numbers, as in the first; row 1 (counting from 0) has 1",
        ),
        (
            {"logits": [[1.0, 2.0], None, [4.0, 5.0]]},
            "a list of 2 numbers, as in the first; row 1 (counting from 0) has 0",
        ),
        ({"logits": [[1.0, 2.0], [3.0, None], [4.0, 5.0]]}, "the column logits has no value in row 1"),
        ({"logits": [None, [1.0, 2.0], [4.0, 5.0]]}, "the column logits has no value in row 0"),
        ({"logits": pa.array([[], [], []], pa.list_(pa.float32()))}, "at least one row and one column"),
        ({"logits": ROWS, "logits_0": [1.0, 2.0, 3.0]}, "both the column logits and logits_0"),
        ({"logits": ROWS, "label": [0, None, 1]}, "the column label has no value in row 1"),
        (
            {"logits": ROWS, "label": [0.0, 1.0, 0.5]},
            "labels must be class numbers, which are integers; row 2 (counting",
        ),
        ({"logits": ROWS, "label": [[0], [1], [0]]}, "labels must be class numbers; got list<"),
        ({"logits": ROWS, "label": ["a", "b", "a"]}, "no class names to match them"),
        ({"logits": ROWS, "group": [0.5, 1.5, 2.5]}, "groups must be text or integers; got double"),
        ({"logits": ROWS, "group": ["a", None, "b"]}, "the column group has no value in row 1"),
        ({"logits_0": [1.0, None, 3.0], "logits_1": [1.0, 2.0, 3.0]}, "the column logits_0 has no value in row 1"),
    ],
)
def test_parquet_that_is_refused(tmp_path: Path, columns: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(parquet_file(tmp_path, **({"label": [0, 1, 0]} | columns)))


def test_parquet_without_rows(tmp_path: Path) -> None:
    none, no_lists = pa.array([], pa.int64()), pa.array([], pa.list_(pa.float32()))
    for scores in ({"logits": no_lists}, {"logits_0": none, "logits_1": none}):
        assert "at least one row and one column" in refusal(parquet_file(tmp_path, label=none, **scores))


def test_parquet_nulls_after_the_first_chunk_name_their_row(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, logits=[[1.0, 2.0]] * 9 + [[None, 1.0]], label=[0] * 10)
    with pytest.raises(FileError, match="no value in row 9"):
        list(read_predictions(path).chunks(4))


@pytest.mark.parametrize("stored", [b"cat, dog", b"[1, 2]", b'{"cat": 1}', b"\xff"])
def test_parquet_names_that_are_not_a_list(tmp_path: Path, stored: bytes) -> None:
    table = pa.table({"logits": ROWS, "label": [0, 1, 0]}).replace_schema_metadata({"class_names": stored})
    pq.write_table(table, tmp_path / "p.parquet")
    assert "class_names in the metadata must be a JSON list of strings" in refusal(tmp_path / "p.parquet")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet_file(tmp_path, logits=ROWS, label=[0, 1, 0])
    hide_pyarrow(monkeypatch)
    with pytest.raises(MissingExtraError, match=r"pip install 'temperance\[parquet\]'"):
        read_predictions(path)
    with pytest.raises(MissingExtraError, match=r"pip install 'temperance\[parquet\]'"):
        write_predictions(tmp_path / "q.parquet", Predictions.of(ROWS, [0, 1, 0]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.parquet"]
