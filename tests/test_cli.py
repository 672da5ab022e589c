"""The command line as a user meets it: real files, wrong input on purpose, one sentence and exit code 2."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import temperance
from commands import refused
from conftest import random_predictions
from temperance.calibrators import Temperature
from temperance.cli import main, parser
from temperance.cli.list_methods import KINDS, described
from temperance.cli.manual import MANUAL
from temperance.errors import FileError
from temperance.metrics import METRICS, ece, gather
from temperance.objectives import OBJECTIVES
from temperance.predictions import Predictions, write_predictions

COMMAND_NAMES = list(parser()._subparsers._group_actions[0].choices)  # type: ignore[union-attr, arg-type]

# What takes long to import; a question about the command line itself needs none of it.
HEAVY = ("torch", "numpy", "scipy", "pyarrow", "matplotlib", "rich.progress")


# Asks a process one question after the other; what one of them imports would still be there after the next.
ASKED = f"""
import json, sys
from temperance.cli import main
for arguments in json.load(sys.stdin):
    try:
        main(arguments)
    except SystemExit:
        pass
    print("imported", [name for name in {HEAVY} if name in sys.modules], "by", arguments)
"""


def test_help_and_wrong_arguments_are_answered_at_once() -> None:
    asked = [["--help"], ["--version"], ["--wrong"], ["wrong"], ["list"], ["demo", "--report", "page.pdf"]]
    asked += [[command, option] for command in COMMAND_NAMES for option in ("--help", "--wrong")]
    done = subprocess.run([sys.executable, "-c", ASKED], input=json.dumps(asked), capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("imported")]
    assert found == [f"imported [] by {arguments}" for arguments in asked]


def test_every_public_name_is_there() -> None:
    assert set(temperance.__all__) <= set(dir(temperance))
    assert all(getattr(temperance, name) is not None for name in temperance.__all__)
    with pytest.raises(AttributeError, match="no attribute 'eavluate'"):
        temperance.eavluate  # type: ignore[attr-defined]  # noqa: B018


@pytest.fixture
def arrays() -> tuple[Any, Any]:
    logits, labels = random_predictions(400, 4, sharpness=4.0)
    return logits.numpy(), labels.numpy()


@pytest.fixture
def good(tmp_path: Path, arrays: tuple[Any, Any]) -> Path:
    path = tmp_path / "good.npz"
    np.savez(path, logits=arrays[0], labels=arrays[1], groups=np.array(["day", "night"] * 200))
    return path


def test_a_table_and_a_verdict(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(good), "--bootstrap", "20"]) == 0
    out = capsys.readouterr().out
    assert "ECE" in out and "accuracy" in out and "confident" in out


def test_json_has_everything(good: Path, arrays: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(good), "--json", "--bootstrap", "20", "--n-bins", "10", "--metrics", "all"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["metric"]: row for row in found["rows"]}
    assert set(rows) == set(METRICS.names)
    assert rows["ece"]["value"] == pytest.approx(ece(*arrays, from_logits=True, n_bins=10))
    assert rows["ece"]["low"] <= rows["ece"]["value"] <= rows["ece"]["high"]
    assert found["provenance"]["seed"] == 0 and found["provenance"]["inputs"][str(good)]
    assert "confident" in found["verdict"]


def test_csv_and_groups(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert (
        main(["evaluate", str(good), "--csv", str(out), "--bootstrap", "0", "--by", "group", "--metrics", "ece"]) == 0
    )
    assert "night" in capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [(row["group"], row["n"]) for row in rows] == [("", "400"), ("day", "200"), ("night", "200")]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_every_format_gives_the_same_numbers(
    suffix: str, tmp_path: Path, arrays: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"pred{suffix}"
    write_predictions(path, Predictions.of(*arrays, from_logits=True))
    assert main(["evaluate", str(path), "--json", "--bootstrap", "0", "--metrics", "ece,nll"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["value"] == pytest.approx(ece(*arrays, from_logits=True), abs=1e-12)


def test_the_report_is_written(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    assert main(["evaluate", str(good), "--report", str(path), "--bootstrap", "20"]) == 0
    assert path.read_text().lstrip().lower().startswith("<!doctype html>")
    assert f"the report is in {path}" in capsys.readouterr().err
    assert main(["evaluate", str(good), "--report", str(tmp_path / "report.pdf")]) == 2
    assert f"call it {path}" in capsys.readouterr().err


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--bootstrap", "20", "--methods", "temperature"]) == 0
    out = capsys.readouterr().out
    assert "10,000 samples" in out and "Use temperature" in out


@pytest.mark.parametrize("kind", ["metrics", "calibrators", "objectives"])
def test_list(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    assert main(["list", kind, "--json"]) == 0
    out = capsys.readouterr().out
    entries = json.loads(out[out.index("\n[") :])
    assert all({"name", "summary", "settings", "claims"} <= set(entry) for entry in entries)


def test_list_says_what_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["list"], capsys)
    assert all(kind in said for kind in KINDS)


def test_one_method_is_listed_with_what_its_settings_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "losses", "kde-xe"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "kde-xe: KDE-XE: adds the canonical calibration error" in shown
    assert "bandwidth 0.02 a number above 0 or loo of the kernels" in shown
    assert main(["list", "recipes", "plp", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["settings"]["freeze"] == 11
    assert entry["about"]["freeze"]["may be"] == "a whole number of at least 2 or none"
    assert "did you mean focal" in refused(["list", "losses", "fokal"], capsys)
    for asked in (["list", "calibrators"], ["list", "losses", "acls"], ["list", "calibrators", "temperature"]):
        assert main(asked) == 0
        assert not re.search("=(None|True|False)| (None|True|False) +│", capsys.readouterr().out)


def test_objectives_are_listed_with_their_settings() -> None:
    found = {entry["name"]: entry for entry in described("objectives")}
    assert list(found) == OBJECTIVES.names
    assert found["focal"]["settings"] == {"gamma": 3.0, "detach_weight": False}
    assert found["nll"]["settings"] == {} and found["nll"]["claims"] == {"convex": True}


# ----------------------------------------------------------------------------------------------------- wrong on purpose

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
LABELS = np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"probs": PROBS * 5 - 1, "labels": LABELS}, "store them under the name logits, or name them with --logits\n"),
        ({"probs": PROBS * 0.9, "labels": LABELS}, "sums to 0.9"),
        ({"logits": np.where(PROBS > 0.7, np.nan, PROBS), "labels": LABELS}, "row 1 (counting from 0), class 1 is nan"),
        ({"logits": np.where(PROBS > 0.7, np.inf, PROBS), "labels": LABELS}, "row 1 (counting from 0), class 1 is inf"),
        ({"probs": PROBS, "labels": np.array([0, 1, 3])}, "labels must lie in 0 … 2"),
        ({"probs": PROBS, "labels": LABELS + 0.5}, "labels must be class numbers, which are integers; row 0"),
        ({"probs": PROBS, "labels": np.full((3, 3), 1 / 3)}, "store labels.argmax(1)"),
        ({"probs": PROBS, "labels": LABELS[:2]}, "labels"),
        ({"probs": PROBS[:0], "labels": LABELS[:0]}, "at least one row"),
        ({"scores": PROBS, "labels": LABELS}, "logits"),
        ({"probs": PROBS}, "labels"),
        ({"logits": PROBS[:, 0], "labels": LABELS}, "For a binary classifier add --binary"),
        ({"test_logits": PROBS[:, :1], "test_labels": LABELS}, "For a binary classifier add --binary"),
        ({"logits": PROBS, "labels": LABELS}, "store them under the name probs, or name them with --probs\n"),
        ({"probs": PROBS, "labels": LABELS + 1}, "count from 1"),
        ({"probs": np.array([[{}]]), "labels": LABELS}, "pickl"),
    ],
)
def test_wrong_content(content: Any, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "bad.npz", tmp_path / "out.json"
    np.savez(path, **content)
    assert sentence in refused(["evaluate", str(path), "--json", str(out)], capsys)
    assert not out.exists()


def test_keys_of_other_names_are_to_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "p.npz", outputs=PROBS, truth=LABELS)
    said = refused(["evaluate", str(tmp_path / "p.npz")], capsys)
    assert "found outputs, truth. Name yours with --probs NAME --label NAME, or --logits\n" in said
    with pytest.raises(FileError, match=re.escape('with columns={"probs": NAME, "label": NAME}, or "logits"')):
        temperance.evaluate(tmp_path / "p.npz")


def test_wrong_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.npz"
    text.write_text("hello")
    empty = tmp_path / "empty.csv"
    empty.touch()
    for path in (text, empty, tmp_path, tmp_path / "nowhere.npz", tmp_path / "pred.docx"):
        assert str(path) in refused(["evaluate", str(path)], capsys)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_cut_files(
    suffix: str, share: float, tmp_path: Path, arrays: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"pred{suffix}"
    write_predictions(path, Predictions.of(*arrays, from_logits=True))
    whole = path.read_bytes()
    cut = int(len(whole) * share)
    if suffix == ".csv":  # a text file cut after a line is a shorter file: cut inside a number
        cut = whole.rindex(b"\n", 0, cut) + 3
    path.write_bytes(whole[:cut])
    assert str(path) in refused(["evaluate", str(path)], capsys)


def test_wrong_options(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean ece" in refused(["evaluate", str(good), "--metrics", "ecee"], capsys)
    for command in ("evaluate", "compare"):
        for wrong in ("0", "3000000000"):
            assert "temperance: --n-bins must be a whole number from 1 to 2^30; got " in refused(
                [command, str(good), "--n-bins", wrong], capsys
            )
    for empty in (["evaluate", ""], ["evaluate", str(good), "--report", ""]):
        assert "must be a file or a folder; got '' (does a shell variable" in refused(empty, capsys)
    assert "temperance: --bootstrap must be" in refused(["evaluate", str(good), "--bootstrap", "-1"], capsys)
    assert "temperance: --seed must be" in refused(["evaluate", str(good), "--seed", "-1"], capsys)
    no_groups = tmp_path / "plain.npz"
    np.savez(no_groups, probs=PROBS, labels=LABELS)
    assert "have no groups" in refused(["evaluate", str(no_groups), "--by", "group"], capsys)
    assert "write --by group --group site" in refused(["evaluate", str(no_groups), "--by", "site"], capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "--metrices", "ece"], "evaluate has no option --metrices; did you mean --metrics?"),
        (["evaluate", "-o", "page.html"], "evaluate has no option -o; did you mean --report FILE.html?"),
        (["evaluate", "--colour=red"], "evaluate has no option --colour; see temperance evaluate --help"),
        (["compare", "-o", "page.html"], "-o is for the calibrator; write the page with --report page.html"),
        (
            ["compare", "--ray", "--jobs", "2"],
            "a Ray cluster decides how many methods it fits at once: leave out --jobs or --ray",
        ),
        (["ood", "--label", "y"], "ood has no option --label; see temperance ood --help"),
        (["apply", "good.npz", "more", "-o", "x"], "apply does not take 'more'; see temperance apply --help"),
    ],
)
def test_options_that_a_command_does_not_have(
    arguments: list[str], said: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = arguments
    assert refused([command, str(good), *options], capsys).endswith(f"temperance: {said}\n")


@pytest.mark.parametrize(
    ("command", "unread"),
    [
        ("apply", ["--ignore-index"]),  # every row is calibrated, whatever its label
        ("ood", ["--label", "--group", "--weight", "--ignore-index"]),
        ("analyse", ["--group", "--weight"]),
    ],
)
def test_a_command_offers_only_what_it_reads(command: str, unread: list[str]) -> None:
    known = parser().commands
    offered, every = (set(known[name]._option_string_actions) for name in (command, "evaluate"))
    reading = {"--logits", "--probs", "--label", "--group", "--weight", "--ignore-index", "--binary", "--positive"}
    assert every >= reading and offered & reading == reading - set(unread)


def test_too_much_memory_is_refused_in_flags(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "STATISTIC_BYTES", 1000)
    said = refused(["evaluate", str(good), "--metrics", "ece"], capsys)
    assert "choose a smaller --n-bins, or do without intervals (--bootstrap 0)" in said and "n_bins" not in said
    with pytest.raises(FileError, match=r"choose a smaller n_bins, or do without intervals \(bootstrap=0\)"):
        temperance.evaluate(good, metrics=["ece"])


def test_unwritable_outputs_are_refused_first(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "no" / "folder.json"):
        for option in ("--json", "--csv", "--report"):
            assert "cannot be written" in refused(["evaluate", str(good), option, str(path)], capsys)


def test_two_outputs_are_two_files(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(path)
    for first, second in (("--json", "--csv"), ("--csv", "--report")):
        said = refused(["evaluate", str(good), first, str(path), second, str(link)], capsys)
        assert "is named for two outputs" in said and not path.exists()


def test_a_missing_calibrator_file(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refused(
        ["evaluate", str(good), "--calibrator", str(tmp_path / "no.safetensors")], capsys
    )


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="does not exist"):
        main(["--debug", "evaluate", str(tmp_path / "nowhere.npz")])


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from temperance.cli import main; sys.exit(main())", *arguments]


def test_output_into_a_closed_pipe_is_quiet(good: Path) -> None:
    run = subprocess.Popen(
        command("evaluate", str(good), "--json", "--bootstrap", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert run.stdout and run.stderr
    with run.stderr:
        run.stdout.close()
        assert run.stderr.read() == b"" and run.wait() == 0


def test_a_killed_run_leaves_no_half_written_output(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "report.html"
    out.parent.mkdir()
    out.write_text("before")
    # The last step before a new file takes the place of the old one.
    waits = "import os, sys, time; os.fsync = lambda _: (print('written', flush=True), time.sleep(60))"
    program = [sys.executable, "-c", f"{waits}; from temperance.cli import main; sys.exit(main())"]
    arguments = ["evaluate", str(good), "--report", str(out), "--bootstrap", "0"]
    with subprocess.Popen([*program, *arguments], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and "written\n" in iter(run.stdout.readline, "")
        run.kill()
    assert out.read_text() == "before" and list(out.parent.glob("[!.]*")) == [out]


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_help_has_a_description_and_examples_that_work(command: str) -> None:
    words, examples = MANUAL[command]
    assert words.endswith(".") and examples
    for example in examples:
        assert shlex.split(example)[0] == command
        parser().parse_args(shlex.split(example))
    (commands,) = (action.choices for action in parser()._actions if isinstance(action.choices, dict))
    shown = commands[command].format_help()
    assert all(f"temperance {example}" in shown for example in examples)


def test_files_that_are_something_else_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Temperature().fit(*random_predictions(50, 3)).save(tmp_path / "cal.safetensors")
    (tmp_path / "unlabelled.csv").write_text("logits_0,logits_1,label\n1,2,0\n2,1,\n")
    (tmp_path / "table.xlsx").write_text("PK")
    for name, sentence in {
        "cal.safetensors": "this is a calibrator, not predictions",
        "unlabelled.csv": "line 3 has no label; fill it in, or leave the row out",
        "table.xlsx": "its suffix is '.xlsx'; save the table as .csv",
    }.items():
        assert sentence in refused(["evaluate", str(tmp_path / name)], capsys)
