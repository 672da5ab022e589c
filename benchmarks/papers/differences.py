"""The papers' headline numbers beside ours, and whether what may explain the differences does, on small networks."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from benchmarks.papers import acls, mac_cal, selective_risk, summary, trained
from benchmarks.papers.outputs import Drawing, ours
from benchmarks.papers.trainings import BEST, LARGER, LONGER, SMALL, TRAINED_LONGER
from benchmarks.quality.table import table
from temperance.report.svg.lines import Line, line_chart

# The changes to the usual training that come nearest to each paper's.
NEAREST = {"selective-risk": f"{LARGER} {BEST}", "acls": LARGER, "mac-cal": LARGER}

# What may explain differences: {what is said of a column: changes to the usual training}.
LENGTHS = {"40 epochs, the last": "", "160 epochs, the last": LONGER, "160 epochs, the best": f"{LONGER} {BEST}"}

# Where MaC-Cal is measured: {what is said of it: (data, changes to the usual training)}; and with which γ.
WHERE = {name: (data, "") for data, name in trained.ALL.items()} | {"5,000 images, 160 epochs": (SMALL, LONGER)}
DISCOUNTS = {
    "γ = 0.95": mac_cal.MASKED,
    "γ from held-out images": mac_cal.HELD_OUT,
    "the same, one layer": mac_cal.ONE_LAYER,
}

DRAWN = ("cross-entropy", "label-smoothing", "acls", "au", "focal")

ROWS = {"selective-risk": ("XE", "AU"), "acls": ("CE", "LS", "MbLS", "ACLS"), "mac-cal": ("vanilla", "MaC-Cal")}


def headlines() -> str:
    """The ECE of the papers' headline cells, with their network and with the usual one here."""
    heads = ("paper", "data", "method", "the paper's", "ours, ResNet-50, 200 epochs", f"ours, {trained.REDUCED}")
    lines = []
    for paper, data, row, (method, state), printed in _cells():
        methods = (f"{method} {NEAREST[paper]}", method)
        cells = [trained.cell("", each, "ECE", None, state, data) for each in methods]
        texts = [ours(cell) if cell else summary.NOT_YET for cell in cells]
        lines.append([paper, trained.SETS[data], row, f"{printed:.2f}", *texts])
    return table(heads, lines)


def _cells() -> Iterator[tuple[str, str, str, tuple[str, str], float]]:
    """Paper, data, row, its method and state, and the paper's number."""
    for row in ROWS["selective-risk"]:
        number = selective_risk.ECE["cifar100"][list(selective_risk.LOSSES).index(row)]
        yield "selective-risk", "cifar100", row, (selective_risk.LOSSES[row], selective_risk.PLAIN), number
    for row in ROWS["acls"]:
        yield "acls", "cifar10", row, acls.ROWS[row], acls.TABLE_3["cifar10"][row][1]
    for data, numbers in mac_cal.TABLE_1.items():
        for row in ROWS["mac-cal"]:
            yield "mac-cal", data, row, mac_cal.ROWS[row], numbers[list(mac_cal.ROWS).index(row)]


def lengths() -> str:
    """The papers' questions again, with small networks that were trained longer, and with the best of these."""
    columns = {said: (SMALL, changes) for said, changes in LENGTHS.items()}
    return summary.questions(columns, TRAINED_LONGER, summary.HEADS | summary.READINGS)


def discounts() -> str:
    """What MaC-Cal leaves of the error, by its γ: means over the trainings that it was added to."""
    heads = [
        "networks",
        "MaC-Cal with",
        "ECE before",
        "after",
        "of it mean gap",
        "lower",
        "over-confident",
        "accuracy lost",
    ]
    lines = []
    for said, (data, changes) in WHERE.items():
        for discount, head in DISCOUNTS.items():
            pairs = list(paired(head, data, changes))
            if pairs:
                before, after = ([line["ece"][0] for line in side] for side in zip(*pairs, strict=True))
                gaps = [line["confidence-gap"][0] for _, line in pairs]
                lost = [plain["accuracy"][0] - line["accuracy"][0] for plain, line in pairs]
                errors = [f"{100 * fmean(numbers):.2f}" for numbers in (before, after, map(abs, gaps))]
                lower = sum(now < then for now, then in zip(after, before, strict=True))
                counts = [f"{lower} of {len(pairs)}", f"{sum(gap > 0 for gap in gaps)} of {len(pairs)}"]
                lines.append([said, discount, *errors, *counts, f"{100 * fmean(lost):.2f}"])
    return table(heads, lines)


def paired(head: str, data: str, changes: str) -> Iterator[tuple[trained.Line, trained.Line]]:
    """The lines of each training that MaC-Cal was added to, as trained and with a head."""
    for method in mac_cal.METHODS.values():
        name = f"{method} {changes}".strip()
        plain = {line["training"]: line for line in trained.lines(name, mac_cal.PLAIN, data)}
        for line in trained.lines(name, head, data):
            yield plain[line["training"]], line


def by_epoch() -> Drawing:
    """The ECE of the validation part during the longer trainings, the mean over trainings."""
    lines: list[Line] = []
    for method in DRAWN:
        found = [line["val_ece"] for line in trained.lines(f"{method} {LONGER}", data=SMALL)]
        means = [fmean(errors) for errors in zip(*found, strict=True)]
        lines.append(Line(method, list(enumerate(means, 1)), len(lines)))
    drawn = line_chart(lines, y_title="ECE", x_title="epoch", percent=True, from_zero=True)
    return Drawing([("ECE of the validation part by epoch, small networks", drawn)], "", lines, columns=1)
