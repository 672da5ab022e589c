"""Calibrating a file loses nothing: not its input, not another column or key, not the fact that it was calibrated."""

import csv
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from commands import applied, run
from conftest import random_predictions
from temperance.calibrators import Calibrator, Temperature, load_calibrator, make_calibrator
from temperance.errors import FileError, InputError
from temperance.jobs.application import apply
from temperance.jobs.blocks import statistics
from temperance.jobs.comparison import compare
from temperance.predictions import Predictions, read_predictions, write_predictions

N, K = 40, 3
SUFFIXES = (".npz", ".safetensors", ".parquet", ".csv")
LOGITS, LABELS = (tensor.numpy() for tensor in random_predictions(N, K))
NAMES = ["cat", "dog", "größte"]


@pytest.fixture(scope="module")
def calibrator() -> Calibrator:
    return Temperature().fit(*random_predictions(300, K, seed=1))


@pytest.fixture
def saved(calibrator: Calibrator, tmp_path: Path) -> Path:
    calibrator.save(tmp_path / "cal.safetensors")
    return tmp_path / "cal.safetensors"


def plain(folder: Path, suffix: str) -> Path:
    path = folder / f"in{suffix}"
    write_predictions(path, Predictions.of(LOGITS, LABELS, from_logits=True, class_names=NAMES))
    return path


# -------------------------------------------------------------------------------------------------- what stays as it is


def expected_probs(calibrator: Calibrator) -> Any:
    return calibrator.predict_proba(LOGITS)


def test_every_key_of_an_npz_in_its_place(saved: Path, calibrator: Calibrator, tmp_path: Path) -> None:
    arrays = {
        "id": np.array([f"s{i}" for i in range(N)]),
        "logits": LOGITS,
        "file": np.arange(N, dtype=np.int8),
        "labels": np.array(NAMES)[LABELS],
        "features": np.random.default_rng(0).random((N, 2, 5)).astype(np.float16),
        "when": np.arange(N).astype("datetime64[s]"),
        "spectrum": np.ones((2, 2), dtype=complex),
        "version": np.array(3),
        "nothing": np.zeros((0, 4)),
        "groups": np.arange(N) % 2,
        "class_names": np.array(NAMES),
        "notes": np.array([{"a": 1}, None], dtype=object),
    }
    np.savez_compressed(tmp_path / "in.npz", **{name: array for name, array in arrays.items() if name != "file"})
    with zipfile.ZipFile(tmp_path / "in.npz", "a") as archive, archive.open("file.npy", "w") as stream:
        np.lib.format.write_array(stream, arrays["file"])
    out = applied(saved, tmp_path / "in.npz", tmp_path / "out.npz")
    with zipfile.ZipFile(tmp_path / "in.npz") as before, zipfile.ZipFile(out) as after:
        renamed = [name.replace("logits", "probs") for name in before.namelist()]
        assert after.namelist() == [*renamed, "calibrated_by.npy"]
        for name in before.namelist():
            if name != "logits.npy":
                # Byte for byte, even what cannot be read without unpickling.
                assert after.read(name) == before.read(name)
    found = read_predictions(out)
    assert np.allclose(found.scores.numpy(), expected_probs(calibrator), atol=1e-12)
    assert found.labels.tolist() == LABELS.tolist() and found.class_names == tuple(NAMES)
    assert found.calibrated_by == "temperature" and not found.from_logits


def test_every_tensor_and_all_metadata_of_safetensors(saved: Path, tmp_path: Path) -> None:
    tensors = {
        "logits": torch.tensor(LOGITS).float(),
        "labels": torch.tensor(LABELS).to(torch.int16),
        "features": torch.rand(N, 2, 3).to(torch.bfloat16),
        "mask": torch.rand(7) > 0.5,
    }
    metadata = {"class_names": json.dumps(NAMES), "made by": "hand", "format": "pt"}
    save_file(tensors, tmp_path / "in.safetensors", metadata=metadata)
    out = applied(saved, tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {**metadata, "calibrated_by": "temperature"}
        assert set(file.keys()) == {"probs", "labels", "features", "mask"}
        for name in ("labels", "features", "mask"):
            kept = file.get_tensor(name)
            assert kept.dtype == tensors[name].dtype and torch.equal(kept, tensors[name])


@pytest.mark.parametrize("wide", [True, False])
def test_every_column_of_a_parquet_in_its_place(
    saved: Path, calibrator: Calibrator, tmp_path: Path, wide: bool
) -> None:
    scores: dict[str, Any] = (
        {f"logits_{name}": LOGITS[:, j] for j, name in reversed(list(enumerate(NAMES)))}
        if wide
        else {"logits": pa.array(list(LOGITS), pa.list_(pa.float32()))}
    )
    rest = {
        "label": pa.array([NAMES[y] for y in LABELS]).dictionary_encode(),
        "score": pa.array([None if i % 3 else i for i in range(N)], pa.int8()),
        "tags": pa.array([["a"] * (i % 3) for i in range(N)]),
        "at": pa.array(np.arange(N).astype("datetime64[ms]")),
        "who": pa.array([{"name": str(i), "age": i} for i in range(N)]),
    }
    table = pa.table({"id": [f"{i:03}" for i in range(N)], **scores, **rest})
    metadata = {"class_names": json.dumps(NAMES[::-1] if wide else NAMES), "pandas": '{"index_columns": []}'}
    table = table.replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=7)
    found = pq.read_table(applied(saved, tmp_path / "in.parquet", tmp_path / "out.parquet"))
    assert found.column_names == [name.replace("logits", "probs") for name in table.column_names] + ["calibrated_by"]
    for name in ("id", *rest):
        assert found.schema.field(name) == table.schema.field(name)
        assert found.column(name).to_pylist() == table.column(name).to_pylist()
    assert found.schema.metadata == {key.encode(): value.encode() for key, value in metadata.items()}
    order = NAMES[::-1] if wide else NAMES
    probs = expected_probs(calibrator)[:, ::-1] if wide else expected_probs(calibrator)
    assert np.allclose(read_predictions(tmp_path / "out.parquet").scores.numpy(), probs, atol=1e-6)
    assert read_predictions(tmp_path / "out.parquet").class_names == tuple(order)


def test_a_parquet_that_pandas_wrote_is_still_one_that_pandas_reads(saved: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({f"logits_{j}": LOGITS[:, j] for j in range(K)})
    frame["id"] = [f"s{i}" for i in range(N)]
    frame = frame.set_index("id")
    frame.to_parquet(tmp_path / "in.parquet")
    again = pandas.read_parquet(applied(saved, tmp_path / "in.parquet", tmp_path / "out.parquet"))
    assert again.index.tolist() == frame.index.tolist() and again.index.name == "id"
    assert again.columns.tolist() == ["probs_0", "probs_1", "probs_2", "calibrated_by"]
    # The mark outlives pandas, which drops the metadata of a schema.
    again.to_parquet(tmp_path / "again.parquet")
    assert read_predictions(tmp_path / "again.parquet", labels="optional").calibrated_by == "temperature"


ODD_CELLS = ["007", "1e3", "", " padded ", 'a "quoted", cell', "two\nlines", "with\rreturn", "größte", "-0", "NA"]


@pytest.mark.parametrize("has_pyarrow", [True, False])
def test_every_cell_of_a_csv_in_its_place(
    saved: Path, calibrator: Calibrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_pyarrow: bool
) -> None:
    header = ["id", "logits_2", "note", "logits_0", "label", "logits_1", "weight"]
    rows = [
        [f"{i:03}", LOGITS[i, 2], ODD_CELLS[i % len(ODD_CELLS)], LOGITS[i, 0], LABELS[i], LOGITS[i, 1], "0.10"]
        for i in range(N)
    ]
    with (tmp_path / "in.csv").open("w", newline="", encoding="utf-8-sig") as handle:
        csv.writer(handle, quoting=csv.QUOTE_ALL).writerows([header, *rows])
    if not has_pyarrow:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    out = applied(saved, tmp_path / "in.csv", tmp_path / "out.csv")
    with out.open(newline="", encoding="utf-8") as handle:
        first, *found = csv.reader(handle, strict=True)
    assert first == ["id", "probs_2", "note", "probs_0", "label", "probs_1", "weight", "calibrated_by"]
    probs = expected_probs(calibrator)
    for i, (cells, old) in enumerate(zip(found, rows, strict=True)):
        assert [cells[j] for j in (0, 2, 4, 6)] == [str(old[j]) for j in (0, 2, 4, 6)]
        assert [float(cells[j]) for j in (3, 5, 1)] == pytest.approx(probs[i].tolist(), abs=1e-12)
        assert cells[7] == "temperature"
    assert read_predictions(out).fingerprint == apply(calibrator, tmp_path / "in.csv").fingerprint


def test_labels_stay_as_they_are_written(saved: Path, tmp_path: Path) -> None:
    lines = ["logits_cat,logits_dog,logits_cow,label", "1,2,3,dog", "3,1,2,cat"]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    found = applied(saved, tmp_path / "in.csv", tmp_path / "out.csv").read_text().splitlines()
    assert [line.split(",")[3] for line in found] == ["label", "dog", "cat"]


# ------------------------------------------------------------------------------------------------------- a pair of sets


def test_of_a_pair_the_other_set_is_left_out_and_the_rest_kept(saved: Path, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        f"{part}_{name}": array for part in ("val", "test") for name, array in (("logits", LOGITS), ("labels", LABELS))
    }
    ids = np.arange(N)
    np.savez(tmp_path / "in.npz", **arrays, val_id=ids, test_id=ids + 1000, seed=np.array(7), test_seed=np.array(8))
    for split, first in (("test", 1000), ("val", 0)):
        out = applied(saved, tmp_path / "in.npz", tmp_path / f"{split}.npz", "--split", split)
        found = np.load(out)
        prefix = "test_" if split == "test" else ""
        # A name that would then be there twice keeps its prefix.
        expected = {"probs", "labels", "id", "seed", "calibrated_by"} | ({"test_seed"} if prefix else set())
        assert set(found.files) == expected
        assert found["id"][0] == first and found["seed"] == 7
    said = run("apply", saved, tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert "calibrated 40 samples of the test set with temperature" in said.out
    left_out = "the {0} set is left out; to calibrate it, too, add --split {0}, with another -o\n"
    assert said.out.endswith(left_out.format("val"))
    said = run("apply", saved, tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--split", "val")
    assert said.out.endswith(left_out.format("test"))


def test_where_there_is_no_other_set_none_is_left_out(saved: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "test.npz", test_logits=LOGITS, test_labels=LABELS)
    for path in (tmp_path / "test.npz", plain(tmp_path, ".npz")):
        said = run("apply", saved, path, "-o", tmp_path / "out.npz")
        assert said.code == 0 and "left out" not in said.out


def test_of_a_folder_of_pairs_the_other_sets_are_named_too(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        path = tmp_path / "in" / f"{name}.npz"
        np.savez(path, val_logits=LOGITS, val_labels=LABELS, test_logits=LOGITS, test_labels=LABELS)
    said = run("apply", saved, tmp_path / "in", "-o", tmp_path / "out")
    assert said.code == 0 and "the val set is left out" in said.out


# ---------------------------------------------------------------------------------------------- nothing is overwritten


def test_an_input_is_never_the_output(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plain(tmp_path, ".npz")
    folder = tmp_path / "run"
    folder.mkdir()
    inside = Path(shutil.copy(path, folder / "predictions.npz"))
    link, hard = tmp_path / "link.npz", tmp_path / "hard.npz"
    link.symlink_to(path)
    os.link(path, hard)
    monkeypatch.chdir(folder)
    before = path.read_bytes(), inside.read_bytes(), saved.read_bytes()
    calls: list[list[Any]] = [
        ["apply", saved, path, "-o", path],
        ["apply", saved, path, "-o", Path("..") / "in.npz"],
        ["apply", saved, path, "-o", link],
        ["apply", saved, link, "-o", path],
        ["apply", saved, path, "-o", hard],
        ["apply", saved, folder, "-o", inside],
        ["apply", saved, path, "-o", saved],
        ["fit", "temperature", path, "-o", path],
        ["compare", path, "-o", path],
        ["evaluate", path, "--json", path],
        ["evaluate", path, "--calibrator", saved, "--csv", saved],
        ["ood", path, hard, "--json", hard],
        ["analyse", path, "-o", path],
    ]
    for arguments in calls:
        said = run(*arguments)
        assert said.code == 2 and "is an input and would be overwritten" in said.err, arguments
    assert (path.read_bytes(), inside.read_bytes(), saved.read_bytes()) == before


# ------------------------------------------------------------------------------------------------------- never twice


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_calibrated_is_marked_and_not_calibrated_again(saved: Path, tmp_path: Path, suffix: str) -> None:
    once = applied(saved, plain(tmp_path, suffix), tmp_path / f"once{suffix}")
    assert read_predictions(once).calibrated_by == "temperature"
    twice = tmp_path / f"twice{suffix}"
    said = run("apply", saved, once, "-o", twice)
    assert said.code == 2 and "are calibrated already, by temperature; to do it a second time, add --again" in said.err
    assert not twice.exists()
    applied(saved, once, twice, "--again")
    assert read_predictions(twice).calibrated_by == "temperature, temperature"
    calls: list[list[Any]] = [["evaluate", once], ["abstain", once], ["ood", once, once]]
    for arguments in calls:
        said = run(*arguments, "--calibrator", saved)
        assert said.code == 2 and "by temperature; leave out --calibrator" in said.err


def test_measuring_and_fitting_what_is_calibrated_is_allowed_and_said(saved: Path, tmp_path: Path) -> None:
    fresh = plain(tmp_path, ".npz")
    once = applied(saved, fresh, tmp_path / "once.npz")
    note = "These predictions were calibrated by temperature."
    said = run("evaluate", once, "--bootstrap", "0", "--json")
    assert said.code == 0 and json.loads(said.out)["notes"] == [note]
    assert note in run("evaluate", once, "--bootstrap", "0").out
    assert note not in run("evaluate", fresh, "--bootstrap", "0").out
    warning = f"temperance: warning: the predictions in {once} were calibrated by temperature, so another calibrator"
    compare, fit = ["compare", "--methods", "temperature", "--bootstrap", "20"], ["fit", "temperature"]
    calls: list[list[Any]] = [[*fit, once], [*compare, once], [*compare, once, fresh], [*compare, fresh, once]]
    for arguments in calls:
        said = run(*arguments, *(("-o", tmp_path / "again.safetensors") if "fit" in arguments else ()))
        assert said.code == 0 and said.err.count(warning) == 1, arguments
    assert warning not in run(*compare, fresh).err


def test_statistics_of_calibrated_and_other_predictions_do_not_add(calibrator: Calibrator) -> None:
    data = Predictions.of(torch.tensor(LOGITS).softmax(1), LABELS)
    before, after = (statistics(each, metrics=["nll"]) for each in (data, apply(calibrator, data)))
    with pytest.raises(InputError, match="calibrated by nothing, another predictions calibrated by temperature"):
        before + after


def test_python_reads_a_file_as_the_command_does(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("score,kind\n" + "".join(f"{x / 10},{'spam' if x % 3 else 'ham'}\n" for x in range(-20, 20)))
    how: dict[str, Any] = {"positive": "spam", "columns": {"logits": "score", "label": "kind"}}
    data = read_predictions(path, **how)
    fitted = make_calibrator("platt").fit(data.logits(), data.labels)
    found = apply(fitted, path, **how)
    assert torch.equal(found.scores, apply(fitted, data).scores) and found.class_names == ("not spam", "spam")
    with pytest.raises(InputError, match="a Predictions knows what it holds"):
        apply(fitted, data, positive="spam")
    (tmp_path / "answers.csv").write_text("confidence\n0.9\n0.2\n")
    given = Predictions.of([0.9, 0.6, 0.3, 0.8] * 9, [1, 0, 1, 1] * 9, answers=True)
    calibrator = make_calibrator("platt").fit(given.logits(), given.labels)
    assert apply(calibrator, tmp_path / "answers.csv", answers=True).answers


def test_the_same_from_python(calibrator: Calibrator, tmp_path: Path) -> None:
    data = Predictions.of(LOGITS, LABELS, from_logits=True, groups=LABELS)
    found = apply(calibrator, data)
    assert np.allclose(found.scores.numpy(), expected_probs(calibrator)) and found.calibrated_by == "temperature"
    assert found.groups is not None and found.groups.tolist() == [str(y) for y in LABELS]
    with pytest.raises(InputError, match=r"the predictions are calibrated already, by temperature.*pass again=True"):
        apply(calibrator, found)
    first, _ = found.halves()
    with pytest.raises(InputError, match="calibrated already"):
        apply(calibrator, first)
    assert apply(calibrator, found, again=True).calibrated_by == "temperature, temperature"
    with pytest.raises(FileError, match="this calibrator was fitted on 3 classes; these logits have 2"):
        np.savez(tmp_path / "two.npz", logits=LOGITS[:, :2])
        apply(calibrator, tmp_path / "two.npz")


def test_classes_in_another_order_are_refused(tmp_path: Path) -> None:
    """Temperatures, shifts and priors belong to classes, and a table may have its columns in any order."""
    known, other = tmp_path / "known.csv", tmp_path / "other.csv"
    columns = {"logits_cat": LOGITS[:, 0], "logits_dog": LOGITS[:, 1], "logits_eel": LOGITS[:, 2], "label": LABELS}
    write_csv(known, columns)
    write_csv(other, {name: columns[name] for name in ("logits_dog", "logits_eel", "logits_cat", "label")})
    saved = tmp_path / "cal.safetensors"
    assert run("fit", "vector", known, "-o", saved).code == 0
    sentence = (
        f"the predictions in {other} have the classes in another order than the calibrator: dog is class 0 here and "
        "class 1 there. Put them in its order: cat, dog, eel"
    )
    for command in (
        ("apply", saved, other, "-o", tmp_path / "out.csv"),
        ("evaluate", other, "--calibrator", saved),
        ("ood", known, other, "--calibrator", saved),
    ):
        done = run(*command)
        assert done.code == 2 and sentence in done.err
    assert read_predictions(applied(saved, known, tmp_path / "same.csv")).class_names == ("cat", "dog", "eel")
    chosen = compare(known, methods=["vector"], bootstrap=20).calibrator()
    assert load_calibrator(saved).class_names == chosen.class_names == ("cat", "dog", "eel")


def write_csv(path: Path, columns: dict[str, Any]) -> None:
    with path.open("w", newline="") as handle:
        rows = csv.writer(handle)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))


def test_some_rows_marked_are_all_calibrated(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(
        "probs_0,probs_1,probs_2,calibrated_by\n.2,.2,.6,\n.2,.2,.6,vector\n.2,.2,.6,auto\n"
    )
    assert read_predictions(tmp_path / "in.csv", labels="optional").calibrated_by == "auto, vector"
    (tmp_path / "in.csv").write_text("probs_0,probs_1,probs_2,calibrated_by\n.2,.2,.6,\n")
    assert read_predictions(tmp_path / "in.csv", labels="optional").calibrated_by is None


def test_a_mark_that_is_not_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", logits=LOGITS, labels=LABELS, calibrated_by=np.arange(3))
    with pytest.raises(FileError, match=r"calibrated_by must be one text; got int64 of shape \(3,\)"):
        read_predictions(tmp_path / "in.npz")


# ------------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_a_source_that_is_damaged_where_it_was_not_read_yet(saved: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    np.savez(tmp_path / "in.npz", logits=LOGITS, labels=LABELS, other=np.arange(5000))
    if suffix == ".npz":
        damaged = bytearray(path.read_bytes())
        place = damaged.index(np.arange(5000)[4000:4100].tobytes())
        damaged[place : place + 8] = b"\xff" * 8
        path.write_bytes(damaged)
    else:
        rows = "\n".join(",".join(map(str, [*row, "x"])) for row in LOGITS.tolist())
        path.write_text(f"logits_0,logits_1,logits_2,note\n{rows},and a cell more\n")
    said = run("apply", saved, path, "-o", tmp_path / f"out{suffix}")
    assert said.code == 2 and str(path) in said.err and "Traceback" not in said.err
    assert not (tmp_path / f"out{suffix}").exists()


def test_a_table_that_changes_between_reading_and_writing(calibrator: Calibrator, tmp_path: Path) -> None:
    path = plain(tmp_path, ".csv")
    found = apply(calibrator, path)
    for lines in (path.read_text().splitlines()[:-1], [*path.read_text().splitlines(), "0,0,0,1"]):
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(FileError, match="rows instead of 40: the file has changed"):
            write_predictions(tmp_path / "out.csv", found)


def test_a_saved_calibrator_is_not_a_set_of_predictions(saved: Path, tmp_path: Path) -> None:
    said = run("apply", saved, saved, "-o", tmp_path / "out.npz")
    assert said.code == 2 and "this is a calibrator, not predictions" in said.err
    assert load_calibrator(saved).name == "temperature"


# ----------------------------------------------------------------------------------------------------------- the prior


def test_a_prior_on_the_command_line(saved: Path, calibrator: Calibrator, tmp_path: Path) -> None:
    path = plain(tmp_path, ".npz")
    (tmp_path / "frequencies.txt").write_text("3, 2\n1")
    numbers = applied(saved, path, tmp_path / "numbers.npz", "--prior", str(tmp_path / "frequencies.txt"))
    expected = calibrator.predict_proba(LOGITS) * np.array([3, 2, 1]) / calibrator.implied_prior.numpy()
    expected /= expected.sum(1, keepdims=True)
    assert np.allclose(np.load(numbers)["probs"], expected, atol=1e-6)
    said = run("apply", saved, path, "-o", tmp_path / "adapted.npz", "--prior", "adapt")
    assert said.code == 0 and f"{N} predictions" in said.out + said.err
    for wrong, says in (
        ("unifrom", "--prior must be uniform, same, adapt or a file"),
        (path, "a number for each class"),
    ):
        said = run("apply", saved, path, "-o", tmp_path / "out.npz", "--prior", wrong)
        assert said.code == 2 and says in said.err
