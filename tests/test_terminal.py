"""What a terminal, a pipe or a full disk gets: every character of a table, plain letters, or a sentence."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

from commands import refused, run
from conftest import random_predictions
from temperance.cli import main
from temperance.cli.list_methods import KINDS, described
from temperance.cli.terminal import show
from temperance.predictions import Predictions, write_predictions
from temperance.training.recipe import PAPERS, RECIPES

NAMES = ["größte", "naïve", "猫"]
HUGE = "99999999999999999999"  # more than 64 bits hold
FIT = ["fit", "temperature", "PATH", "-o", "c.safetensors"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    logits, labels = random_predictions(200, 3, sharpness=4.0)
    found = Predictions.of(logits, labels, from_logits=True, class_names=NAMES)
    write_predictions(tmp_path / "p.npz", found)
    return tmp_path / "p.npz"


class Stream:
    """Standard output as a file of some encoding."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
        self.raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(self.raw, encoding=encoding))

    def text(self, encoding: str = "ascii") -> str:
        sys.stdout.flush()
        return self.raw.getvalue().decode(encoding)


# ---------------------------------------------------------------------------------------------------------- not Unicode


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "PATH", "--bootstrap", "5", "--metrics", "ece,nll"],
        ["compare", "PATH", "--methods", "temperature", "--bootstrap", "20"],
        ["fit", "vector", "PATH", "-o", "CAL"],
        ["ood", "PATH", "PATH", "--bootstrap", "2", "--scores", "msp"],
        *(["list", kind] for kind in KINDS),
        ["--help"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_terminal_without_unicode_gets_plain_letters(
    arguments: list[str], encoding: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(monkeypatch, encoding)
    places = {"PATH": str(path), "CAL": str(tmp_path / "cal.safetensors")}
    try:
        assert main([places.get(argument, argument) for argument in arguments]) == 0
    except SystemExit as end:
        assert end.code == 0
    assert len(stream.text(encoding)) > 50


def test_columns_stay_straight_in_plain_letters(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, "ascii")
    assert main(["evaluate", str(path), "--bootstrap", "5", "--metrics", "ece,accuracy"]) == 0
    lines = [line for line in stream.text().splitlines() if line.startswith(("+", "|"))]
    assert len({len(line) for line in lines}) == 1 and any(" ... " in line for line in lines)


def test_a_sentence_in_plain_letters(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    np.savez(path, logits=np.ones((2, 3)), labels=[0, 7])
    assert main(["evaluate", str(path)]) == 2
    sys.stderr.flush()
    assert "labels must lie in 0 ... 2 for 3 classes" in raw.getvalue().decode("ascii")


@pytest.mark.parametrize("kind", ["--json", "--csv"])
def test_text_for_programs_is_utf8_everywhere(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = path.with_name("größe.npz")
    path.rename(named)
    stream = Stream(monkeypatch, "ascii")
    assert main(["evaluate", str(named), kind, "--bootstrap", "0", "--metrics", "ece"]) == 0
    assert "größe.npz" in stream.text("utf-8")
    if kind == "--json":
        assert json.loads(stream.text("utf-8"))["rows"][0]["source"] == str(named)


def test_a_file_name_that_is_not_unicode(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "\udcff.safetensors"
    stream = Stream(monkeypatch, "utf-8")
    assert main(["fit", "temperature", str(path), "-o", str(odd)]) == 0
    assert odd.exists() and "\\udcff.safetensors" in stream.text("utf-8")


# ----------------------------------------------------------------------------------------------------- nowhere to write

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@full
@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "metrics"],
        ["evaluate", "PATH", "--json", "--bootstrap", "0"],
        ["--help"],
        ["fit", "--help"],
        ["--version"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_full_disk_is_a_sentence(
    arguments: list[str],
    unbuffered: bool,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # As Python opens standard output with and without PYTHONUNBUFFERED.
    with (
        Path("/dev/full").open("wb", buffering=0 if unbuffered else -1) as binary,
        io.TextIOWrapper(binary, encoding="utf-8", write_through=unbuffered) as nowhere,
    ):
        monkeypatch.setattr(sys, "stdout", nowhere)
        assert main([str(path) if argument == "PATH" else argument for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said == "temperance: standard output cannot be written: No space left on device\n"


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "temperance", *arguments]


@full
def test_a_full_disk_ends_the_process_quietly_too() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as nowhere:
        ended = subprocess.run(program("list", "heads"), stdout=nowhere, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and "No space left" in ended.stderr


def test_a_table_into_a_closed_pipe_is_quiet() -> None:
    with subprocess.Popen(program("list", "metrics"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ended:
        assert ended.stdout and ended.stderr
        ended.stdout.close()
        assert ended.stderr.read() == b"" and ended.wait() == 0


def test_no_standard_output_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["list", "heads"]) == 0
    assert main(["evaluate", str(path), "--json", "--bootstrap", "0", "--metrics", "ece"]) == 0


def test_an_error_of_the_system_names_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(kind: str) -> Any:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("temperance.cli.list_methods.described", fails)
    assert main(["list", "heads"]) == 2
    assert capsys.readouterr().err == "temperance: /some/file: Permission denied\n"
    with pytest.raises(PermissionError):
        main(["--debug", "list", "heads"])


# ---------------------------------------------------------------------------------------------------------- nothing cut


@pytest.mark.parametrize("columns", [20, 40, 80, None])
def test_no_cell_is_cut_at_any_width(
    columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    else:
        monkeypatch.delenv("COLUMNS", raising=False)
    table = Table()
    table.add_column("name", no_wrap=True)
    table.add_column("interval", no_wrap=True, justify="right")
    table.add_column("what it is")
    name, text = "class-temperature:objective=class-scaled", "a sentence with some words of ordinary length in it"
    table.add_row(Text(name), "12.34 % … 56.78 %", text)
    show(table)
    out = capsys.readouterr().out
    assert name in out and "12.34 % … 56.78 %" in out
    assert all(word in out for word in text.split())
    assert len({len(line) for line in out.splitlines()}) == 1


@pytest.mark.parametrize("columns", range(20, 60, 3))
def test_no_line_begins_with_a_percent_sign(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    sentence = "It is 84.4 % sure on average, 75.2 % right, and 9.3 % off; 53.3 % to 100.0 % of this is 87.4 % of it."
    table = Table()
    table.add_column("what it is")
    table.add_column("more")
    table.add_row(sentence, Text(sentence))
    for part in (Text(sentence), table):
        show(part)
        out = capsys.readouterr().out
        words = out.replace("│", " ").split()
        assert "\ue000" not in out and words.count("%") == sentence.count("%") * (1 if isinstance(part, Text) else 2)
        for line in out.splitlines():
            assert not any(cell.strip().startswith("%") for cell in line.split("│")), out


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_whole_at_80_columns(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", kind]) == 0
    out = "".join(capsys.readouterr().out.split())
    for entry in described(kind):
        assert entry["name"] in out
        assert all(f"{name}=" in out for name in entry["settings"])


def test_a_pipe_is_wide_enough_for_every_column(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    said = run("compare", path, "--methods", "temperature:objective=class-scaled", "--bootstrap", "20")
    assert "parameters" in said.out and "temperature:objective=class-scaled" in said.out


# ------------------------------------------------------------------------------------------------------------- in words


def test_every_recipe_names_its_paper() -> None:
    assert set(PAPERS) == set(RECIPES)
    for entry in described("recipes"):
        assert any(year in entry["summary"] for year in ("2020", "2023", "2024", "2025")), entry["name"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evaluate", "PATH", "--n-bins", "0"], "--n-bins must be"),
        (["compare", "PATH", "--n-bins", "0"], "--n-bins must be"),
        (["compare", "PATH", "--jobs", "0"], "--jobs must be"),
        (["evaluate", "PATH", "--bootstrap", "1"], "--bootstrap must be 0 or a whole number from 2 to 2^20; got 1"),
        (["evaluate", "PATH", "--bootstrap", HUGE], "--bootstrap must be 0 or a whole number from 2 to 2^20; got 9"),
        (["evaluate", "PATH", "--ignore-index", HUGE], "--ignore-index must be a label, which is less than 2^63"),
        (["compare", "PATH", "--bootstrap", HUGE], "--bootstrap must be a whole number from 20 to 2^20; got 9"),
        (["ood", "PATH", "PATH", "--bootstrap", "0"], "--bootstrap must be a whole number from 2 to 2^20; got 0"),
        (["ood", "PATH", "PATH", "--bootstrap", HUGE], "--bootstrap must be"),
        (["ood", "PATH", "PATH", "--features", "two.txt"], "two.txt: features are read from .npz or .safetensors"),
        (["retrain", "two.txt", "-o", "out", "--bootstrap", "1"], "--bootstrap must be 0 or a whole number from 2"),
        (["retrain", "two.txt", "-o", "out", "--copies", "-1"], "--copies must be"),
        (["retrain", "two.txt", "-o", "out", "--seed", "-1"], "--seed must be"),
        ([*FIT, "--prior", "two.txt"], "two.txt must have a number for each of the 3 classes; it has 2 numbers"),
        ([*FIT, "--prior", "less.txt"], "less.txt: prior must be above 0"),
        ([*FIT, "--prior", ""], "--prior must be uniform, same or a file"),
        (["analyse", "PATH", "-o", "x.html", "--steps", "0"], "--steps must be"),
        (["train", "digits", "-o", "run", "--batch-size", "0"], "--batch-size must be"),
        (["train", "digits", "-o", "run", "--bootstrap", "-1"], "--bootstrap must be"),
        (
            ["train", "digits", "-o", "run", "--keep-from", "100"],
            "--keep-from must be less than the 100 epochs",
        ),
        (["train", "digits", "-o", "run", "--crop", HUGE], "--crop must be"),
        (["train", "digits", "-o", "run", "--warmup", "100"], "--warmup must be less than the 100 epochs"),
        (["train", "digits", "-o", "run", "--mix", "mixup:alpha=0"], "mixup: alpha must be a number above 0; got 0"),
        (["train", "digits", "-o", "run", "--size", HUGE], "--size must be"),
        (["train", "digits", "-o", "run", "--batch-size", "9000"], "--batch-size 9000 exceeds the"),
        (["train", "digits", "-o", "run", "--preset", "x"], "--preset must be"),
        (["shift", "run", "--limit", "0"], "--limit must be"),
        (["gradients", "focal", "-o", "x.html", "--classes", "1"], "--classes must be"),
        (["gradients", "focal", "-o", "x.html", "--classes", HUGE], "--classes must be"),
        (["analyse", "PATH", "-o", "x.pdf"], "a page is saved as .html; call it x.html"),
        (["evaluate", "PATH", "--report", "x.pdf"], "a page is saved as .html; call it x.html"),
        # What is a setting of a method is called what it was called.
        (["fit", "histogram", "PATH", "-o", "c.safetensors", "--set", "n_bins=0"], "histogram: n_bins must be"),
        (["train", "digits", "-o", "run", "--loss", "focal:gamma=-1"], "focal: gamma must be"),
    ],
)
def test_errors_speak_of_flags(
    arguments: list[str], sentence: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.txt").write_text("0.5 0.5")
    Path("less.txt").write_text("0.5, -0.5, 1")
    said = run(*(path if argument == "PATH" else argument for argument in arguments))
    assert said.code == 2 and said.err.startswith(f"temperance: {sentence}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evaluate", "p.npz", "--n-bins", "many"], "--n-bins must be a whole number; got 'many'"),
        (["train", "digits", "-o", "run", "--lr", "high"], "--lr must be a number; got 'high'"),
        (
            ["train", "digits", "-o", "run", "--drops", "a"],
            "--drops must be numbers with commas, such as 150,250;",
        ),
        (["evaluate", "p.npz", "--split", "vall"], "--split must be one of val, test; got 'vall'"),
        (["train", "digits", "-o", "run", "--keep", "all"], "--keep must be one of last, best, refined; got 'all'"),
        (["evaluat", "p.npz"], "there is no command named 'evaluat'; did you mean evaluate?"),
        (["list", "metric"], "there is no kind named 'metric'; did you mean metrics?"),
        (["evaluate"], "the following arguments are required: PRED; see temperance evaluate --help"),
        (["evaluate", "p.npz", "--n-bins"], "--n-bins: expected one argument"),
        (["reproduce", "--table", "1", "--figure", "2"], "--figure: not allowed with argument --table"),
    ],
)
def test_what_cannot_be_parsed_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(arguments, capsys).startswith(f"temperance: {sentence}")
