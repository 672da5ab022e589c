"""The papers' tables and figures: the list of them, what was kept, and how cells come from results."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import (
    differences,
    mac_cal,
    outputs,
    sctl,
    sctl_printed,
    summary,
    trained,
)
from benchmarks.papers.outputs import PAPERS, Cell, Output, outputs_of, store, stored
from benchmarks.papers.trainings import BEST, LARGER, LONGER, SMALL, Training, queue, training_of
from benchmarks.quality.table import read
from commands import run
from temperance.cli import reproduce

# Every table and figure of the papers; S is a supplement that counts from 1 again.
COMPLETE = {
    "sctl": ("1 2 3 4", "1 2 3 4"),
    "cts": ("I II III", "1 2 3"),
    "acls": ("1 2 3 4 5 6 A B", "1 2 3 A"),
    "selective-risk": ("1 2 S1 S2 S3 S4", "1 2 3 S1 S2 S3 S4 S5 S6"),
    "mac-cal": ("1 2 3 4 5", "1 2 3 4 5 6 7 8"),
}
ALL = [(paper, output) for paper in PAPERS for output in outputs_of(paper)]

# The logs of the authors' program, by the names of rows here.
LOGGED = {"CE": "CE", "LS": "LS", "FL": "FL", "ND": "CL_GN", "CM": "CL_CM", "MM": "CL_MM"}


# ----------------------------------------------------------------------------------------------------------- the list


def test_every_table_and_figure_has_a_state() -> None:
    assert tuple(PAPERS) == reproduce.NAMES == tuple(COMPLETE)
    for paper, (tables, figures) in COMPLETE.items():
        expected = [f"table {n}" for n in tables.split()] + [f"figure {n}" for n in figures.split()]
        assert [output.name for output in outputs_of(paper)] == expected


@pytest.mark.parametrize(("paper", "output"), ALL, ids=lambda value: getattr(value, "name", value))
def test_states_say_how_or_why(paper: str, output: Output) -> None:
    assert output.state in ("exact", "run", "reduced", "not run") and output.how and output.about
    if output.state == "not run":
        assert output.cells is None and output.figure is None
    if output.state == "exact":
        assert output.cells is not None and output.data


@pytest.mark.parametrize(("paper", "output"), ALL, ids=lambda value: getattr(value, "name", value))
def test_every_table_shows_without_predictions(paper: str, output: Output) -> None:
    """From benchmarks/results, or as it was kept."""
    if output.cells is not None:
        kind, number = output.name.split()
        said = run("reproduce", paper, "--quick", f"--{kind}", number)
        assert said.code == 0, said.err
        assert "ours" in said.out
        assert "Nothing was measured now" in " ".join(said.out.split())


@pytest.mark.parametrize(("ours", "said"), [(5.5009, "0.00"), (5.4991, "0.00"), (5.52, "+0.02"), (5.48, "−0.02")])
def test_a_difference_that_rounds_to_zero_has_no_sign(ours: float, said: str) -> None:
    _, lines = outputs.grid([Cell("", "TS", "ECE", printed=5.5, ours=ours, exact=True)])
    assert lines[0][-1] == said


def test_only_the_papers_own_predictions_can_agree() -> None:
    exact = Cell("TS", "a network of the paper", "ECE", 5.5, 5.51, exact=True)
    other = Cell("TS", "another network", "ECE", 5.5, 7.0)
    share = Cell("TS", "another network", "share", 100.0, 50.0)
    head, lines = outputs.grid([exact, other, share])
    assert head == [outputs.COLUMN, "method", "ECE, paper", "ours", "difference", "share, paper", "ours"]
    assert [each[4] for each in lines] == ["+0.01", ""]
    assert outputs.agreement([exact, other, share]).startswith("1 of 1 numbers")


def test_numbers_that_the_paper_does_not_print_have_no_column() -> None:
    head, lines = outputs.grid([Cell("AU", "", "ECE", None, 5.0), Cell("AU", "", "accuracy", 90.0, 91.0)])
    assert head == ["method", "ECE, ours", "accuracy, paper", "ours"]
    assert lines == [["AU", "5.00", "90.00", "91.00"]]


# ------------------------------------------------------------------------------- what was trained, and what waits


def text_about(output: Output, data: str) -> str:
    """What an output says about its trainings on a data set."""
    (said,) = re.findall(
        rf"((?:all|none of|\d+ of) \d+(?: yet)? on {trained.ALL[data]}\b(?: \(waiting: .*?\)(?=, |$))?)", output.how
    )
    return str(said)


@pytest.mark.parametrize(("paper", "output"), ALL, ids=lambda value: getattr(value, "name", value))
def test_the_list_says_what_waits_and_nothing_else(paper: str, output: Output) -> None:
    """A training that was measured does not wait, and one that was not does; what waits is in the queue."""
    measured = {Training.parse(line["training"]).of_any_seed for line in read(outputs.RESULTS / "papers.jsonl")}
    queued = {training.of_any_seed for training in queue()}
    if not output.methods:
        assert "wait" not in output.how and "trained:" not in output.how
    for data in output.sets:
        assert all(", " not in row for row in output.methods), "names are between commas"
        trainings = {row: training_of(method, data) for row, method in output.methods.items()}
        waiting = [row for row, training in trainings.items() if training not in measured]
        assert all(trainings[row] in queued for row in waiting)
        said, n = text_about(output, data), len(trainings)
        if not waiting:
            assert said.startswith(f"all {n} on")
        elif len(waiting) == n:
            assert said.startswith(f"none of {n} yet on")
        else:
            assert said.startswith(f"{n - len(waiting)} of {n} on")
            assert re.search(rf"\(waiting: {re.escape(', '.join(waiting))}[;)]", said)


def test_a_state_follows_from_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    methods = {"MbLS": "mbls", "CE": "cross-entropy"}

    def described() -> tuple[str, str]:
        found = trained.output("table 1", "ECE", "small", lambda data: iter(()), methods, ["cifar100"])
        return found.state, found.how

    assert described() == ("not run", "waiting in the queue; trained: none of 2 yet on CIFAR-100")
    write_results(tmp_path, line("mbls", 0.1))
    assert described() == ("reduced", "small; trained: 1 of 2 on CIFAR-100 (waiting: CE)")
    broken = {"training": "cifar100 resnet18 100 cross-entropy", "failure": "the loss became nan"}
    write_results(tmp_path, line("mbls", 0.1), broken)
    assert described() == ("reduced", "small; trained: all 2 on CIFAR-100 (broke down: CE)")


# ------------------------------------------------------------------------------------------------------ what was kept


# Where rounding decides when the optimiser of the authors' program stops, and moves the ECE by more than elsewhere.
BY_ROUNDING = {("CIFAR-10-LT, ResNet-110-SD", row): 0.04 for row in ("ETS LS", "ETS ND")}


@pytest.mark.parametrize(("table", "numbers"), [("1", 34), ("2", 136), ("3", 16), ("4", 8)])
def test_sctl_comes_out_as_printed(table: str, numbers: int) -> None:
    found = {
        (cell.column, cell.row, cell.metric): abs(cell.ours - cell.printed)
        for cell in stored("sctl", f"table {table}")
        if cell.exact and cell.printed is not None
    }
    assert len(found) == numbers
    for (network, row, _), difference in found.items():
        assert difference <= BY_ROUNDING.get((network, row), outputs.CLOSE), (network, row)


@pytest.mark.parametrize("output", outputs_of("sctl")[:4], ids=lambda output: output.name)
def test_what_was_kept_has_the_numbers_that_the_paper_prints(
    output: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert output.cells is not None
    monkeypatch.setattr(sctl, "measured", lambda file, row: (1.0, 1.0))
    kept = {(cell.column, cell.row, cell.metric): cell.printed for cell in stored("sctl", output.name)}
    printed = {(cell.column, cell.row, cell.metric): cell.printed for cell in output.cells(tmp_path)}
    assert kept == pytest.approx(printed, abs=1e-4)


@pytest.mark.shared
def test_the_printed_numbers_are_those_of_the_authors_logs(shared_data: Path) -> None:
    logs = json.loads((shared_data / "more" / "longtail" / "sctl_logs.json").read_text())
    names = ("densenet40_c10_LT", "resnet_wide28_c10_LT", "resnet110_c10_LT", "resnet110_SD_c10_LT")
    others = [f"{name}_c10" for name in ("resnet_wide32", "resnet110", "resnet110_SD")]
    others += [f"{name}_c100" for name in ("densenet40", "resnet_wide32", "resnet110", "resnet110_SD")]
    for row, (first, second) in sctl_printed.OTHERS.items():
        name, objective = ("TS", "CE") if row == sctl_printed.UNCALIBRATED else row.split()
        log = logs[f"{name}_{LOGGED[objective]}"]
        found = [log[network]["uncal_ece" if row == sctl_printed.UNCALIBRATED else "ece"] for network in others]
        assert [*first, *second] == pytest.approx(found, abs=0.0101), row
    for row in list(sctl_printed.TABLE_1)[1:]:
        name, objective = row.split()
        log = logs[f"{name}_{LOGGED[objective]}"]
        found = log["densenet40_c10"]
        assert sctl_printed.TABLE_1[row] == pytest.approx((found["ece"], found["acc"]), abs=0.0101), row
        for i, network in enumerate(names):
            assert sctl_printed.TABLE_2[row][i] == (log[network]["ece"], log[network]["acc"]), (row, network)
            assert sctl_printed.TABLE_2[sctl_printed.UNCALIBRATED][i] == (
                log[network]["uncal_ece"],
                log[network]["uncal_acc"],
            )
    for name, numbers in sctl_printed.TABLE_3.items():
        for objective, error in numbers.items():
            logged = logs[f"{name}_{LOGGED[objective]}"]["densenet40_c10"]["ece"]
            assert error == pytest.approx(logged, abs=0.0101), (name, objective)


def test_cells_are_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "CELLS", tmp_path / "cells.jsonl")
    first, second = Cell("TS", "", "ECE", 0.96, 0.97), Cell("TS", "a", "ECE", None, 1.0, 0.5, 1.5, 3)
    store("sctl", "table 1", [first], 1.0)
    store("cts", "table I", [first], 1.0)
    store("sctl", "table 1", [second], 1.0)
    assert stored("sctl", "table 1") == [second]
    (kept,) = stored("cts", "table I")
    assert math.isnan(kept.low) and (kept.printed, kept.ours) == (0.96, 0.97)


# --------------------------------------------------------------------------------------- cells from what was trained


def write_results(folder: Path, *lines: dict[str, Any]) -> None:
    (folder / "papers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def line(training: str, ece: float, state: str = "as trained") -> dict[str, Any]:
    return {"training": f"cifar100 resnet18 100 {training}", "state": state, "ece": [ece, ece - 0.01, ece + 0.01]}


def line_of(method: str, ece: float, data: str) -> dict[str, Any]:
    return line("", ece) | {"training": training_of(method, data).line}


def test_a_cell_is_the_mean_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    write_results(
        tmp_path,
        line("mbls", 0.10),
        line("mbls seed=1", 0.20),
        line("mbls", 0.50, "temperature"),
        line("cross-entropy mix=mixup", 0.40),
        line("acls:margin=10.0:variant=released", 0.90),
        {"training": "cifar100 resnet18 100 brier", "failure": "the loss became nan"},
        {**line("mbls", 0.9), "training": "cifar10 resnet18 100 mbls"},
    )
    other = trained.cell("MbLS", "mbls", "ECE", 1.16, data="cifar10")
    assert other is not None and other.ours == pytest.approx(90)
    found = trained.cell("MbLS", "mbls", "ECE", 1.64)
    assert found is not None and found.trainings == 2
    assert (found.ours, found.low, found.high) == pytest.approx((15, 14, 16))
    mixed = trained.cell("mixup", "mixup", "ECE", None)
    assert mixed is not None and mixed.ours == pytest.approx(40)
    for method in ("cross-entropy", "acls", "brier"):  # other mixtures and variants, and failures, do not count
        assert trained.cell(method, method, "ECE", None) is None


def test_three_seeds_give_an_interval_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    write_results(tmp_path, *(line(f"mbls seed={seed}", 0.10 + seed / 100) for seed in range(3)))
    found = trained.cell("MbLS", "mbls", "ECE", None)
    assert found is not None and found.trainings == 3
    reach = 4.30265 * 1.0 / math.sqrt(3)  # Student's t with two degrees of freedom; a standard deviation of one point
    assert (found.ours, found.low, found.high) == pytest.approx((11, 11 - reach, 11 + reach))


def test_a_method_trained_once_has_the_spread_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    several = [line(f"mbls seed={seed}", 0.10 + seed / 100) for seed in range(3)]
    several += [line(f"cross-entropy seed={seed}", 0.20 + seed / 50) for seed in range(2)]
    elsewhere = {**line("brier", 0.30), "training": "cifar10 resnet18 100 brier"}
    write_results(tmp_path, *several, line("brier", 0.30), elsewhere)
    found = trained.cell("Brier", "brier", "ECE", None)
    assert found is not None and found.trainings == 1
    reach = 3.18245 * math.sqrt((1 + 1 + 2) / 3)  # squares of 1, 1 and of 1 twice, three degrees of freedom
    assert (found.ours, found.low, found.high) == pytest.approx((30, 30 - reach, 30 + reach))
    alone = trained.cell("Brier", "brier", "ECE", None, data="cifar10")
    assert alone is not None and (alone.low, alone.high) == pytest.approx((29, 31))  # over test samples


def test_answers_are_yes_no_or_undecided_for_each_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    write_results(
        tmp_path,
        line("acls:margin=10.0", 0.10),
        line("mbls", 0.20),
        line("label-smoothing", 0.05),
        line("cross-entropy", 0.11),
        line("cross-entropy", 0.02, mac_cal.MASKED),
        line("cross-entropy", 0.2, mac_cal.KEPT_ACCURACY),
    )
    found = [each.strip("| ").split(" | ") for each in summary.answers().splitlines()[2:]]
    assert [each[1].split(":")[0] for each in found[:3]] == ["yes", "no", "undecided"]
    assert {each[2] for each in found} == {summary.NOT_YET}
    assert [each[1] for each in found[-2:]] == ["yes for 1 (vanilla)", "no for 1 (vanilla)"]
    broken = {"training": "cifar100 resnet18 100 acls:margin=10.0", "failure": "the loss became nan"}
    write_results(tmp_path, broken, line("mbls", 0.20))
    assert "undecided: acls broke down" in summary.answers() and "(acls broke down)" in summary.progress()
    assert "| `cifar100 resnet18 100 acls:margin=10.0` | the loss became nan |" in summary.failures()


def test_longer_trainings_stand_beside_the_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    errors = {"": (0.10, 0.20), f" {LONGER}": (0.30, 0.20)}
    methods = ("au", "cross-entropy")
    write_results(
        tmp_path,
        *(
            line_of(f"{method}{changes} seed={seed}", error + seed / 1000, SMALL) | {"accuracy": [0.5, None, None]}
            for changes, both in errors.items()
            for method, error in zip(methods, both, strict=True)
            for seed in range(3)
        ),
    )
    rows = [each.strip("|").split("|") for each in differences.lengths().splitlines()[2:]]
    said = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}
    usual, longer, best = said["Does AU have a lower ECE than cross-entropy, and at what accuracy?"]
    assert usual.startswith("yes: 10.10 (9.94–10.26), mean of 3 at 50.00 against 20.10")
    assert longer.startswith("no: 30.10 (29.94–30.26), mean of 3 at 50.00") and best == summary.NOT_YET
    assert said["Does ACLS have a lower ECE than MbLS?"] == [summary.NOT_YET, summary.NOT_YET, ""]
    assert not any("FL-53" in question for question in said)


def test_headlines_are_the_papers_cells_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    write_results(tmp_path, line_of("au", 0.05, "cifar100"), line_of(f"au {LARGER} {BEST}", 0.02, "cifar100"))
    rows = [each.strip("| ").split(" | ") for each in differences.headlines().splitlines()[2:]]
    assert rows[1] == ["selective-risk", "CIFAR-100", "AU", "2.44", "2.00 (1.00–3.00)", "5.00 (4.00–6.00)"]
    assert rows[0][3:] == ["7.18", summary.NOT_YET, summary.NOT_YET]
    assert [row[3] for row in rows[2:]] == ["5.85", "2.79", "1.16", "1.12", "14.36", "2.90", "4.11", "0.92"]


def test_the_refined_network_stands_beside_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    states = ("as trained", "temperature", "auto")
    known = {"accuracy": [0.8, 0.7, 0.9]}
    last = [line("cross-entropy", 0.1, state) | known | {"nll": [0.9, 0.8, 1.0]} for state in states]
    write_results(tmp_path, *last)
    assert summary.kept() == "Not trained yet."
    refined = [line("cross-entropy keep=refined", 0.1, state) | known | {"nll": [0.7, 0.6, 0.8]} for state in states]
    write_results(tmp_path, *last, *refined)
    rows = [each.strip("| ").split(" | ") for each in summary.kept().splitlines()[2:]]
    assert [row[:3] for row in rows] == [["CIFAR-100", "cross-entropy", f"`{kept}`"] for kept in ("last", "refined")]
    assert [row[-1] for row in rows] == ["0.9000 (0.8000–1.0000)", "0.7000 (0.6000–0.8000)"]


def test_other_images_are_means_over_what_was_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    unfamiliar = {"svhn": {"auroc": [0.8, 0.7, 0.9], "fpr95": [0.5, 0.5, 0.5]}}
    unfamiliar |= {"cifar10": {"auroc": [0.6, 0.5, 0.7], "fpr95": [0.7, 0.7, 0.7]}}
    corrupted = {"fog:3": {"ece": 0.1, "accuracy": 0.5}, "snow:3": {"ece": 0.3, "accuracy": 0.7}}
    write_results(
        tmp_path,
        line("cross-entropy", 0.1) | {"unfamiliar": unfamiliar, "corrupted": corrupted},
        line("cross-entropy seed=1", 0.1),  # was shown nothing
    )
    auroc, fpr = mac_cal.table_2(tmp_path)
    assert (auroc.ours, auroc.low, auroc.high, fpr.ours) == pytest.approx((70, 60, 80, 60))
    error, accuracy = mac_cal.figure_5(tmp_path)
    assert error.row == "vanilla, severity 3" and (error.ours, accuracy.ours) == pytest.approx((20, 60))
    assert trained.shown("table 2", "", "ResNet-18", "one of two", "unfamiliar").how == "ResNet-18; one of two"
    write_results(
        tmp_path, {"training": training_of("cross-entropy", SMALL).line, "state": "as trained", "unfamiliar": {}}
    )
    assert trained.shown("table 2", "", "ResNet-18", "one", "unfamiliar").how == f"{trained.ALSO_SMALL}; one"
