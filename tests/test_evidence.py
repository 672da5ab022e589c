"""What docs/evidence.md says in words: each sentence rests on a verdict or a number of the tables."""

from collections.abc import Iterator
from pathlib import Path
from statistics import correlation, fmean

import pytest
from scipy.stats import bartlett

from benchmarks.papers import acls, cts, differences, evidence, mac_cal, sctl, selective_risk, summary, trained
from benchmarks.papers.outputs import Cell, stored
from benchmarks.papers.trainings import BEST, LONGER, SMALL, TRAINED_LONGER


def verdicts(table: str, column: int, data: str = "CIFAR-100") -> dict[str, str]:
    """The second cell of each line about a data set, and the verdict in a column."""
    lines = [line.strip("| ").split(" | ") for line in evidence.table(table).splitlines()[2:]]
    return {line[1]: line[column].split(": ")[-1] for line in lines if line[0] == data}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ((1, 2), (3, 4), "holds"),
        ((1, 3), (2.5, 4.5), "holds"),  # the difference is 1.5 ± √2
        ((3, 4), (1, 2), "reversed"),
        ((2.5, 4.5), (1, 3), "reversed"),
        ((1, 3), (2, 4), "undecided"),
    ],
)
def test_a_verdict_is_about_the_difference(low: tuple[float, float], high: tuple[float, float], expected: str) -> None:
    first, second = (Cell("", "", "ECE", None, sum(ends) / 2, *ends) for ends in (low, high))
    assert trained.verdict(first, second) == expected


@pytest.mark.parametrize("data", ["cifar100", SMALL])
@pytest.mark.parametrize("key", ["accuracy", "ece"])
@pytest.mark.parametrize("state", ["as trained", "temperature", "auto", mac_cal.MASKED])
def test_no_method_is_known_to_have_another_spread(data: str, key: str, state: str) -> None:
    of_all = trained.repeated(key, trained.lines("cross-entropy", state, data)[0])
    several = [group for group in of_all if len(group) > 2]
    assert len(several) > 3 and bartlett(*several).pvalue > 0.05


def test_sentences_about_trainings_rest_on_verdicts() -> None:
    as_trained, scaled = verdicts("acls_claims", 3), verdicts("acls_claims", 4)
    assert set(as_trained.values()) == {"holds"}
    on_cifar10 = verdicts("acls_claims", 3, "CIFAR-10")
    assert (on_cifar10.pop("MbLS"), on_cifar10.pop("CRL")) == ("undecided", "reversed")
    assert set(on_cifar10.values()) == {"holds"}
    assert scaled.pop("CPC") == "holds" and set(scaled.values()) == {"undecided", "reversed"}
    assert [row for row, said in verdicts("acls_claims", 4, "CIFAR-10").items() if said == "holds"] == ["MMCE"]
    assert "reversed" not in verdicts("acls_claims", 5).values()
    au, on_cifar10 = verdicts("selective_risk_claims", 3), verdicts("selective_risk_claims", 3, "CIFAR-10")
    assert all(au[row] == "holds" for row in ("XE", "inverse focal", "KDE-XE"))
    assert au["FL-53"] == au["dual focal"] == "reversed"
    assert {row for row, said in on_cifar10.items() if said == "holds"} == {"FL-53", "inverse focal", "KDE-XE"}
    assert on_cifar10["XE"] == verdicts("selective_risk_claims", 5)["XE"] == "undecided"
    masked = verdicts("mac_cal_claims", 4)
    assert all(masked[row] == "holds" for row in ("vanilla", "LS", "MbLS", "mixup"))
    assert list(masked.values()).count("holds") == 7 and len(masked) == 11
    assert all(masked[row] == "reversed" for row in ("FL", "FLSD", "DFL", "MMCE"))
    masked = verdicts("mac_cal_claims", 4, "CIFAR-10")
    assert all(masked[row] == "holds" for row in ("FL", "FLSD", "DFL", "MMCE"))
    assert all(masked[row] == "reversed" for row in ("ACLS", "MbLS", "CPC"))
    for method in mac_cal.METHODS.values():
        pair = summary.without_and_with(mac_cal.MASKED, method, "accuracy", "cifar100")
        assert pair is None or pair[1].ours < pair[0].ours


def test_sentences_about_small_networks_rest_on_verdicts() -> None:
    on = trained.ALL[SMALL]
    as_trained, scaled, after_auto = (verdicts("acls_claims", column, on) for column in (3, 4, 5))
    assert as_trained.pop("LS") == "undecided" and set(as_trained.values()) == {"holds"} and len(as_trained) == 9
    assert {"CE", "LS", "MbLS", "ECP"} == {row for row, said in scaled.items() if said == "undecided"}
    assert "reversed" not in scaled.values() and set(after_auto.values()) == {"undecided"}
    au_verdicts = verdicts("selective_risk_claims", 3, on)
    assert au_verdicts.pop("inverse focal") == "holds" and set(au_verdicts.values()) == {"reversed"}
    found = {(cell.row, cell.metric): cell for cell in acls.table_3(Path()) if cell.column == on}
    assert all(cell.trainings >= 3 for cell in found.values())
    assert trained.verdict(found["MMCE", "ECE"], found["CE", "ECE"]) == "holds"
    assert found["MMCE", "accuracy"].ours > found["CE", "accuracy"].ours - 0.1
    au = {
        cell.row: cell.ours for cell in selective_risk.table_1(Path()) if (cell.column, cell.metric) == (on, "accuracy")
    }
    assert round(au["XE"] - au["AU"]) == 4
    masked = verdicts("mac_cal_claims", 4, on)
    assert {row for row, said in masked.items() if said == "holds"} == {"vanilla", "mixup", "FL"}
    assert {row for row, said in masked.items() if said == "reversed"} == {"ACLS", "LS", "MIT", "DFL"}
    pairs = [summary.without_and_with(mac_cal.MASKED, method, "accuracy", SMALL) for method in mac_cal.METHODS.values()]
    lost = [pair[0].ours - pair[1].ours for pair in pairs if pair is not None]
    assert 0.5 < min(lost) <= max(lost) < 4.5
    found = {(cell.row, cell.metric): cell for cell in mac_cal.figure_5(Path()) if cell.column == on}
    rows = [[found[f"{row}, severity {severity}", "ECE"] for row in ("MaC-Cal", "vanilla")] for severity in (1, 3, 5)]
    assert all(after.ours < before.ours for after, before in rows)
    assert [trained.verdict(*pair) for pair in rows] == ["holds", "holds", "undecided"]
    plain, masked_too = (cell for cell in mac_cal.table_2(Path()) if (cell.column, cell.metric) == (on, "AUROC"))
    assert trained.verdict(plain, masked_too) == "undecided" and abs(plain.ours - masked_too.ours) < 0.5


def test_sentences_about_longer_trainings_rest_on_cells() -> None:
    def ece(method: str, changes: str, state: str = "as trained", metric: str = "ECE") -> Cell:
        found = trained.cell("", f"{method} {changes}".strip(), metric, None, state, SMALL)
        assert found is not None and found.trainings >= 3
        return found

    best = f"{LONGER} {BEST}"
    assert selective_risk.ECE["cifar100"][0] == pytest.approx(mac_cal.TABLE_1["cifar100"][0] / 2, rel=0.01)
    assert ece("cross-entropy", LONGER).ours > 2 * ece("cross-entropy", "").ours
    usual, longer = (ece("cross-entropy", changes, metric="accuracy") for changes in ("", LONGER))
    assert trained.verdict(usual, longer) == "holds"
    assert trained.verdict(ece("au", LONGER, metric="accuracy"), longer) == "undecided"
    assert ece("au", LONGER).ours == pytest.approx(ece("cross-entropy", LONGER).ours / 2, rel=0.1)
    assert trained.verdict(ece("au", LONGER), ece("cross-entropy", LONGER)) == "holds"
    assert ece("au", best).ours < ece("cross-entropy", best).ours / 3
    assert trained.verdict(ece("au", best), ece("focal", best)) == "holds"
    for other in ("mbls", "label-smoothing", "cross-entropy"):
        assert trained.verdict(ece("acls", LONGER), ece(other, LONGER)) == "holds"
    for changes in ("", LONGER):
        after = [ece(method, changes, "auto").ours for method in TRAINED_LONGER]
        assert max(after) - min(after) < 0.5
    masked = {
        method: [ece(method, LONGER, state) for state in ("as trained", mac_cal.MASKED, mac_cal.KEPT_ACCURACY)]
        for method in TRAINED_LONGER
    }
    lowered = {method for method, (plain, default, _) in masked.items() if trained.verdict(default, plain) == "holds"}
    raised = {method for method, (plain, default, _) in masked.items() if trained.verdict(plain, default) == "holds"}
    assert lowered == {"cross-entropy"} and raised == set(TRAINED_LONGER) - lowered
    kept = {method for method, (plain, _, preset) in masked.items() if trained.verdict(preset, plain) == "holds"}
    assert kept == set(TRAINED_LONGER) - {"focal"}


def test_sentences_about_what_mac_cal_leaves_open_rest_on_lines() -> None:
    def pairs(head: str, data: str, changes: str = "") -> dict[str, tuple[trained.Line, trained.Line]]:
        return {pair[0]["training"]: pair for pair in differences.paired(head, data, changes)}

    def gap(line: trained.Line) -> float:
        return float(line["confidence-gap"][0])

    for data, changes in differences.WHERE.values():
        left = [after for _, after in pairs(mac_cal.MASKED, data, changes).values()]
        assert fmean(abs(gap(line)) for line in left) > 0.8 * fmean(line["ece"][0] for line in left), data
    assert all(gap(after) < 0 for _, after in pairs(mac_cal.MASKED, "cifar10").values())
    assert all(gap(after) > 0 for _, after in pairs(mac_cal.MASKED, SMALL, LONGER).values())
    for changes in ("", LONGER):
        found = [pairs(head, SMALL, changes) for head in differences.DISCOUNTS.values()]
        same = found[0].keys() & found[1].keys() & found[2].keys()
        gaps, errors, lost = (
            [fmean(number(*each[training]) for training in same) for each in found]
            for number in (
                lambda _, after: abs(gap(after)),
                lambda _, after: after["ece"][0],
                lambda before, after: before["accuracy"][0] - after["accuracy"][0],
            )
        )
        assert gaps[0] > 2 * gaps[1] > 2 * gaps[2] and errors[0] > errors[1] > errors[2]
        assert 0 < lost[2] < min(lost[:2])
    longer = pairs(mac_cal.ONE_LAYER, SMALL, LONGER).values()
    assert len(longer) == 6 and all(after["ece"][0] < before["ece"][0] for before, after in longer)
    methods = mac_cal.METHODS.values()
    held = {method: summary.without_and_with(mac_cal.ONE_LAYER, method, "ECE", SMALL) for method in methods}
    said = {method: trained.verdict(pair[1], pair[0]) for method, pair in held.items() if pair}
    assert (list(said.values()).count("holds"), list(said.values()).count("undecided"), len(said)) == (7, 4, 11)
    assert all(pair[0].ours < 2.1 for method, pair in held.items() if pair and said[method] == "undecided")


def test_sentences_about_settings_rest_on_cells() -> None:
    def on_small(*tables: Iterator[Cell]) -> dict[tuple[str, str], Cell]:
        cells = [cell for table in tables for cell in table if cell.column == trained.ALL[SMALL]]
        return {(cell.row, cell.metric): cell for cell in cells}

    found = on_small(acls.table_5(Path()), acls.table_6(Path()), acls.figure_a(Path()))
    margins = {row: cell for (row, _), cell in found.items() if row.startswith("margin")}
    best = margins.pop("margin 6")
    assert len(margins) == 4 and {trained.verdict(best, cell) for cell in margins.values()} == {"holds"}
    for better, worse in (("ACLS (margin)", "ACLS (ranking)"), ("CRL (margin)", "CRL (ranking)")):
        assert trained.verdict(found[better, "ECE"], found[worse, "ECE"]) == "holds"
    assert trained.verdict(found["ACLS (ranking)", "ECE"], found["CRL (ranking)", "ECE"]) == "reversed"
    for part, said in (("adaptive", "holds"), ("conditional", "undecided")):
        assert trained.verdict(found["ACLS (margin)", "ECE"], found[f"ACLS ({part} only)", "ECE"]) == said
    assert min(cell.trainings for cell in found.values()) > 1
    found = on_small(selective_risk.figure_2(Path()), selective_risk.figure_s4(Path()))
    assert min(cell.trainings for cell in found.values()) > 1
    for other in ("confidence", "margin"):
        assert trained.verdict(found["negative entropy", "ECE"], found[other, "ECE"]) == "holds"
        assert trained.verdict(found[other, "accuracy"], found["negative entropy", "accuracy"]) == "holds"
    falling = [found[f"inverse focal γ {gamma}", "accuracy"].ours for gamma in ("3", "4", "5")]
    assert falling[0] > 50 > falling[1] > 10 > falling[2]  # chance is 10
    found = on_small(mac_cal.figure_6(Path()))
    before, after = (
        [found[f"mixup α {alpha}{more}", "ECE"].ours for alpha in ("0.2", "0.5", "1.0", "2.0")]
        for more in ("", " + MaC-Cal")
    )
    assert before == sorted(before) and before[-1] - before[0] > 5 > 2 > max(after) - min(after)


def test_sentences_about_the_picture_by_epoch_rest_on_it() -> None:
    grown = {}
    for line in differences.by_epoch().legend:
        errors = [error for _, error in line.points]
        assert len(errors) == 160
        after_fall, before_fall = fmean(errors[70:75]), fmean(errors[60:69])
        assert (after_fall < before_fall) == (line.name != "focal"), line.name
        grown[line.name] = fmean(errors[-5:]) - after_fall
    assert min(grown[method] for method in ("cross-entropy", "label-smoothing", "au")) > 0.03
    assert 0 < grown["acls"] < 0.015 and grown["focal"] < 0


def test_sentences_about_kept_accuracy_rest_on_cells() -> None:
    for data in trained.ALL:
        for changes in ("", LONGER, f"{LONGER} {BEST}"):
            for row, method in mac_cal.METHODS.items():
                name = f"{method} {changes}".strip()
                ece, accuracy = (
                    summary.without_and_with(mac_cal.KEPT_ACCURACY, name, metric, data)
                    for metric in ("ECE", "accuracy")
                )
                if ece and accuracy:
                    assert trained.verdict(ece[0], ece[1]) != "holds", (data, name)
                    assert abs(accuracy[0].ours - accuracy[1].ours) <= 0.2, (data, name)
                    if row == "vanilla":
                        assert trained.verdict(ece[1], ece[0]) == "holds", (data, name)


def test_sentences_about_temperatures_rest_on_cells(tmp_path: Path) -> None:
    scaled = [line.split(" | ") for line in evidence.table("acls_claims").splitlines()[2:] if "CIFAR-100" in line]
    for _, row, _, plain, with_temperature, *_ in scaled:
        (own, other), (own_after, other_after) = (
            [float(number) for number in text.split(":")[0].split(" against ")] for text in (plain, with_temperature)
        )
        assert other_after < other and own_after > own, row
    found = {(cell.column, cell.row): cell.ours for cell in selective_risk.table_s4(tmp_path)}
    for data, least, others in (("CIFAR-100", 3, {"AU (as printed)"}), ("CIFAR-10", 0, {"FL-53"})):
        worse = {
            row: found[data, f"{row} + TS, training part"] - ours
            for (on, row), ours in found.items()
            if on == data and " + " not in row
        }
        assert {row for row, by in worse.items() if by <= least} == others


@pytest.mark.parametrize("data", trained.ALL)
def test_masks_help_most_where_the_error_was_large(data: str) -> None:
    pairs = [summary.without_and_with(mac_cal.MASKED, method, "ECE", data) for method in mac_cal.METHODS.values()]
    moves = [(pair[0].ours, pair[0].ours - pair[1].ours) for pair in pairs if pair is not None]
    assert correlation(*zip(*moves, strict=True)) > 0.7


def test_sentences_about_predictions_rest_on_cells(tmp_path: Path) -> None:
    shares = {cell.column: cell.ours for cell in cts.table_1(tmp_path) if cell.metric == cts.BELOW}
    assert shares["CIFAR-100, mean of 8"] < 50 < shares["CIFAR-10, mean of 15"]
    own = {(cell.column, cell.row): cell for cell in cts.on_trained()}
    found = [trained.verdict(own[column, "CTS"], own[column, "TS"]) for column in {column for column, _ in own}]
    assert (found.count("holds"), found.count("undecided"), len(found)) == (1, 11, 12)
    by_row = {(cell.column, cell.row): cell.ours for cell in stored("sctl", "table 2") if cell.metric == "ECE"}
    for network in sctl.LONG_TAIL:
        for name in sctl.CALIBRATORS:
            rows = (f"{name} {objective}" for objective in ("CE", sctl.BALANCED, "ND"))
            plain, balanced, scaled = (by_row[f"{sctl.ON_TAIL}, {network}", row] for row in rows)
            assert scaled < balanced < plain
            assert plain - balanced > balanced - scaled, "balancing has most of the gain"


def test_the_sentence_about_balanced_data() -> None:
    found = {(cell.column, cell.row, cell.metric): cell for cell in stored("sctl", "table 1") if not cell.exact}
    for column, least in (("CIFAR-10, mean of 6", 60), ("CIFAR-100, mean of 6", 80)):
        for name in sctl.CALIBRATORS:
            plain, scaled = (found[column, f"{name} {objective}", "ECE"] for objective in ("CE", "ND"))
            share = found[column, f"{name} ND", sctl.BELOW]
            assert scaled.printed is not None and plain.printed is not None and share.printed == 100
            assert 0 < 1 - scaled.ours / plain.ours < 0.1 < 1 - scaled.printed / plain.printed, (column, name)
            assert least < share.ours
    assert any(cell.ours < 100 for (_, _, metric), cell in found.items() if metric == sctl.BELOW)
