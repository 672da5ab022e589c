"""What the trainings of the queue say together: answers to the papers' claims, how far it is, and every number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean

from benchmarks.papers import mac_cal, trained
from benchmarks.papers.outputs import Cell, ours
from benchmarks.papers.trained import ALL, verdict
from benchmarks.papers.trainings import KEPT, METHODS, REFINED, queued, training_of
from benchmarks.quality.table import table

# The states of a training that are shown, by the end of a table's name.
STATES = {"trained": "as trained", "temperature": "temperature", "auto": "auto", "masked": mac_cal.MASKED}
TABLES = [(data, short) for data in ALL for short in STATES]

# Metrics, the number that makes them readable, and digits.
METRICS = {
    "accuracy": ("accuracy", 100, 2),
    "NLL": ("nll", 1, 4),
    "ECE": ("ece", 100, 2),
    "AECE": ("adaptive-ece", 100, 2),
    "classwise ECE": ("classwise-ece", 100, 3),
    "AURC": ("aurc", 100, 2),
}

# Whether the first has a lower ECE than the second.
QUESTIONS = [("acls", other) for other in ("mbls", "label-smoothing", "cross-entropy")]
QUESTIONS += [("au", other) for other in ("cross-entropy", "focal", "flsd")]
NAMES = {"acls": "ACLS", "mbls": "MbLS", "label-smoothing": "label smoothing", "cross-entropy": "cross-entropy"}
NAMES |= {"au": "AU", "focal": "focal loss", "flsd": "FL-53"}
HEADS = {
    mac_cal.MASKED: "Does MaC-Cal lower the ECE of each training?",
    mac_cal.KEPT_ACCURACY: "Does its preset `kept-accuracy`?",
}
# What may explain that MaC-Cal does not.
READINGS = {
    mac_cal.HELD_OUT: "Does it with γ from held-out images?",
    mac_cal.ONE_LAYER: "And with one layer in place of two?",
}
ANSWERS = {"holds": "yes", "reversed": "no", "undecided": "undecided"}
NOT_YET = "not trained yet"


def answers() -> str:
    """The questions that the papers answer with yes, and our answers, for each data set."""
    return questions({name: (data, "") for data, name in ALL.items()})


def questions(
    columns: Mapping[str, tuple[str, str]], compared: Iterable[str] = NAMES, heads: Mapping[str, str] = HEADS
) -> str:
    """Our answers to the papers' questions about methods that are compared.

    columns  {what is said of a column: (data, changes to the usual training)}
    heads    {head: question}
    """
    lines = []
    for method, other in QUESTIONS:
        if {method, other} <= set(compared):
            question = f"Does {NAMES[method]} have a lower ECE than {NAMES[other]}"
            question += ", and at what accuracy?" if method == "au" else "?"
            lines.append([question, *(_lower(method, other, data, changes) for data, changes in columns.values())])
    for head, question in heads.items():
        lines.append([question, *(_each_lower(head, data, changes) for data, changes in columns.values())])
    return table(["question", *columns], lines)


def _lower(method: str, other: str, data: str, changes: str) -> str:
    """Yes, no or undecided, with both numbers."""
    methods = [f"{each} {changes}".strip() for each in (method, other)]
    mine, its = (trained.cell("", each, "ECE", None, data=data) for each in methods)
    if mine is None or its is None:
        broken = [each for each in methods if trained.broke_down(each, data)]
        waits = {training_of(each, data) for each in methods} <= queued()
        return f"undecided: {broken[0]} broke down" if broken else NOT_YET if waits else ""
    texts = [ours(mine), ours(its)]
    if method == "au":
        accuracies = [trained.cell("", each, "accuracy", None, data=data) for each in methods]
        texts = [f"{text} at {cell.ours:.2f}" for text, cell in zip(texts, accuracies, strict=True) if cell]
    return f"{ANSWERS[verdict(mine, its)]}: {' against '.join(texts)}"


def _each_lower(head: str, data: str, changes: str) -> str:
    """How many trainings a head improves, and which; empty where no spread of trainings is known."""
    found: dict[str, list[str]] = {said: [] for said in ANSWERS.values()}
    for row, method in mac_cal.METHODS.items():
        pair = without_and_with(head, f"{method} {changes}", "ECE", data)
        if pair and not any(math.isnan(cell.low) for cell in pair):
            found[ANSWERS[verdict(pair[1], pair[0])]].append(row)
    texts = [f"{said} for {len(rows)} ({', '.join(rows)})" for said, rows in found.items() if rows]
    return "; ".join(texts) or (NOT_YET if head in HEADS else "")


def without_and_with(head: str, method: str, metric: str, data: str) -> tuple[Cell, Cell] | None:
    """A number of a training, and with another head."""
    states = (mac_cal.PLAIN, head)
    before, after = (trained.cell("", method, metric, None, state, data) for state in states)
    return (before, after) if before and after else None


def progress() -> str:
    """How many of the training methods were measured on each data set, and which wait."""
    lines = []
    for data, name in ALL.items():
        waiting = [method for method in METHODS if not trained.is_measured(method, data)]
        broken = [method for method in METHODS if trained.broke_down(method, data)]
        done = f"{len(METHODS) - len(waiting)} of {len(METHODS)}"
        done += f" ({', '.join(broken)} broke down)" if broken else ""
        lines.append([name, done, ", ".join(waiting) or "none"])
    return table(["data", "methods", "waiting"], lines)


def failures() -> str:
    """The trainings that broke down, and what was said."""
    rows = [[f"`{line['training']}`", line["failure"].split(":")[0]] for line in trained.failures()]
    return table(["training", "what happened"], rows) if rows else "None broke down."


def trainings(data: str, short: str) -> str:
    """Every training method on a data set in a state: all metrics with their intervals, the lowest NLL first."""
    lines = []
    found = {method: trained.lines(method, STATES[short], data) for method in METHODS}
    ranked = sorted((fmean(line["nll"][0] for line in mine), method) for method, mine in found.items() if mine)
    for _, method in ranked:
        seeds = f", mean of {len(found[method])}" if len(found[method]) > 1 else ""
        lines.append([f"{method}{seeds}", *(_number(found[method], metric) for metric in METRICS)])
    return table(["method", *METRICS], lines) if lines else f"{NOT_YET.capitalize()}."


def kept() -> str:
    """The network of the last epoch beside that of the refined one, after calibration."""
    states = {"as trained": "as trained", "temperature": "with a temperature", "auto": "with `auto`"}
    heads = ["data", "method", "kept", "accuracy", *(f"NLL {said}" for said in states.values())]
    lines = []
    for data, name in ALL.items():
        for method in KEPT:
            if not trained.lines(f"{method} {REFINED}", data=data):
                continue
            for said, change in (("last", ""), ("refined", f" {REFINED}")):
                found = [trained.lines(method + change, state, data) for state in states]
                cells = [_number(found[0], "accuracy"), *(_number(each, "NLL") for each in found)]
                lines.append([name, method, f"`{said}`", *cells])
    return table(heads, lines) if lines else f"{NOT_YET.capitalize()}."


def _number(lines: list[trained.Line], metric: str) -> str:
    """A metric of all seeds, with its interval."""
    key, times, digits = METRICS[metric]
    value, low, high = (times * number for number in trained.measured(lines, key))
    return f"{value:.{digits}f}" + ("" if math.isnan(low) else f" ({low:.{digits}f}–{high:.{digits}f})")
