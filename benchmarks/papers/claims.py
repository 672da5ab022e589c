"""Whether the papers' claims about trained networks hold here: brief for docs/evidence.md, and one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from benchmarks.papers import acls, mac_cal, selective_risk, trained
from benchmarks.papers.summary import without_and_with
from benchmarks.papers.trained import verdict
from benchmarks.quality.table import table

STATES = {"as trained": "as trained", "temperature": "with a temperature", "auto": "with `auto`"}

# Whose ECE should be above that of a loss: {loss: {row of its paper: method}}.
RIVALS = {
    "acls": {row: method for row, method in acls.METHODS.items() if row not in ("ACLS", acls.RELEASED)},
    "au": {row: method for row, method in selective_risk.IN_TABLE_1.items() if row != "AU"},
}
OWN = {"acls": "ACLS", "au": "AU"}

# The papers' numbers: {loss: {data: {row: ECE}}}.
PRINTED: dict[str, Mapping[str, Mapping[str, float]]] = {
    "acls": {data: {row: numbers[1] for row, numbers in rows.items()} for data, rows in acls.TABLE_3.items()},
    "au": {
        data: dict(zip(selective_risk.LOSSES, numbers, strict=False)) for data, numbers in selective_risk.ECE.items()
    },
}

HEADS = {mac_cal.MASKED: "MaC-Cal", mac_cal.KEPT_ACCURACY: "`kept-accuracy`"}


def against(method: str) -> str:
    """Whether the ECE of a loss is below that of its rivals: each as trained, and how many after calibration."""
    lines = []
    for row, other in RIVALS[method].items():
        lines.append([row, *(_against(method, other, "as trained", data) for data in trained.ALL)])
    for state, said in STATES.items():
        if state != "as trained":
            lines.append([f"all of them, {said}", *(_counts(method, state, data) for data in trained.ALL)])
    return table(["ECE below that of", *trained.ALL.values()], lines)


def _counts(method: str, state: str, data: str) -> str:
    """How many of the claims hold, are undecided and are reversed."""
    found = [_against(method, other, state, data).split(": ")[-1] for other in RIVALS[method].values()]
    return ", ".join(f"{found.count(said)} {said}" for said in ("holds", "undecided", "reversed") if said in found)


def every(method: str) -> str:
    """Whether the ECE of a loss is below that of each rival on each data set, as trained and after calibration."""
    lines = []
    for data, name in trained.ALL.items():
        printed = PRINTED[method].get(data)
        for row, other in RIVALS[method].items():
            texts = [_against(method, other, state, data) for state in STATES]
            if all(texts):
                paper = f"{printed[OWN[method]]:.2f} against {printed[row]:.2f}" if printed else ""
                lines.append([name, row, paper, *texts])
    return table(["data", "ECE below that of", "paper", *STATES.values()], lines)


def _against(method: str, other: str, state: str, data: str) -> str:
    """Two ECEs and the verdict; empty where one is missing."""
    mine, its = (trained.cell("", each, "ECE", None, state, data) for each in (method, other))
    return f"{mine.ours:.2f} against {its.ours:.2f}: {verdict(mine, its)}" if mine and its else ""


def heads() -> str:
    """What MaC-Cal and its preset do to the ECE of each training, and to the accuracy of all."""
    columns = [(data, head) for data in trained.ALL for head in HEADS]
    lines = [[row, *(_moved(head, method, data) for data, head in columns)] for row, method in mac_cal.METHODS.items()]
    lines.append(["mean loss of accuracy", *(f"{fmean(_lost(head, data)):z.2f}" for data, head in columns)])
    return table(["training", *(f"{trained.ALL[data]}, {HEADS[head]}" for data, head in columns)], lines)


def _moved(head: str, method: str, data: str) -> str:
    """The ECE before and after, and whether it is lower; empty where it was not measured."""
    pair = without_and_with(head, method, "ECE", data)
    return f"{pair[0].ours:.2f} → {pair[1].ours:.2f}: {verdict(pair[1], pair[0])}" if pair else ""


def _lost(head: str, data: str) -> Iterator[float]:
    """The points of accuracy that each training loses."""
    for method in mac_cal.METHODS.values():
        pair = without_and_with(head, method, "accuracy", data)
        if pair:
            yield pair[0].ours - pair[1].ours


def every_head() -> str:
    """Whether MaC-Cal lowers the ECE of each training, and what it does to its accuracy; both with its preset too."""
    columns = ["data", "training"]
    for head in ("paper", *HEADS.values()):
        columns += [f"ECE, {head}", f"accuracy, {head}"]
    lines = []
    for data, name in trained.ALL.items():
        for row, method in mac_cal.METHODS.items():
            printed = zip(*mac_cal.TABLE_3[data][row], strict=True) if data in mac_cal.TABLE_3 else ()
            accuracy, ece = [f"{before:.2f} → {after:.2f}" for before, after in printed] or ["", ""]
            cells = [ece, accuracy]
            for head in HEADS:
                pair = without_and_with(head, method, "accuracy", data)
                cells += [_moved(head, method, data), f"{pair[0].ours:.2f} → {pair[1].ours:.2f}" if pair else ""]
            if cells[2]:
                lines.append([name, row, *cells])
    return table(columns, lines)
