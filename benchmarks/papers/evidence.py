"""What became of the papers' claims: the tables of docs/evidence.md, all from benchmarks/results.

`trained.verdict` says when a claim holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.papers import acls, claims, cts, differences, mac_cal, sctl_tables, selective_risk, summary, trained
from benchmarks.papers.outputs import (
    PAPERS,
    RESULTS,
    Cell,
    Drawing,
    markdown,
    outputs_of,
    stored,
    stored_numbers,
)
from benchmarks.papers.trainings import SMALL
from benchmarks.quality.table import read
from benchmarks.quality.table import table as in_markdown
from temperance.report.svg.sheet import sheet


def states() -> str:
    """How many tables and figures of each paper have which state."""
    names = ("exact", "run", "reduced", "not run")
    lines = []
    for paper in PAPERS:
        found: list[str] = [output.state for output in outputs_of(paper)]
        lines.append([paper, *(str(found.count(name)) for name in names)])
    return in_markdown(["paper", *names], lines)


def of_small(*tables: Iterable[Cell], rows: str | tuple[str, ...] = "") -> str:
    """The accuracy and ECE of small networks in tables of the papers; `rows` is how those of interest begin."""
    found = [cell for table in tables for cell in table if cell.column == trained.ALL[SMALL]]
    chosen = [cell for cell in found if cell.metric in ("accuracy", "ECE") and cell.row.startswith(rows)]
    return markdown([replace(cell, column="") for cell in chosen])


# ----------------------------------------------------------------------------------------------------------- situations


def situations() -> str:
    """What to take today, and what it rests on."""
    rows = [
        ("held-out predictions, like those in use", "`temperance fit auto`", _quality("auto", "temperature")),
        ("the same, and the predicted class must not change", "`order-preserving`", _quality("order-preserving")),
        ("50 to 200 samples to fit on", "`auto`, or `temperature` for simplicity", _few()),
        ("samples in groups that are known in use, or with several labels", "`grouped`", _grouped()),
        ("fitted on a long tail, classes equally common in use", "`auto` with `--prior uniform`", _long_tail()),
        ("you train a network anyway", "CutMix (`--mix cutmix`), then `auto`", _training("cutmix", "crl", "acls")),
        ("no samples to fit a calibrator on", "`acls:margin=10` or dual focal loss", _alone("acls", "dual-focal")),
        ("you reject the least confident predictions", "CutMix or ACLS, then `auto`", _declining()),
    ]
    return in_markdown(["situation", "use", "measured"], rows)


def _quality(*methods: str) -> str:
    found = [line for line in read(RESULTS / "quality.jsonl") if "ece" in line]
    texts = []
    for method in (*methods, "identity"):
        mine = [line for line in found if line["method"] == method]
        nll, ece = fmean(line["nll"] for line in mine), 100 * fmean(line["ece"] for line in mine)
        texts.append(f"{method} {nll:.3f} and {ece:.1f} %")
    return f"NLL and ECE, mean of {len(mine)} sets: {'; '.join(texts)}"


def _few() -> str:
    found = [line for line in read(RESULTS / "robust.jsonl") if line["condition"] == "100"]
    texts = [
        f"{method} {fmean(line['nll'] for line in found if line['method'] == method):.3f}"
        for method in ("auto", "temperature", "identity")
    ]
    return f"NLL with 100 samples, the same sets: {', '.join(texts)}"


def _grouped() -> str:
    found = [line for line in read(RESULTS / "groups.jsonl") if not line["size"]]
    texts = []
    for method in ("grouped", "auto", "identity"):
        mine = [line for line in found if line["method"] == method]
        off = fmean(line["off"] / line["groups"] for line in mine)
        texts.append(f"{method} {fmean(line['nll'] for line in mine):.3f} and {100 * off:.0f} %")
    return f"NLL and groups that are off, mean of {len(mine)} sets: {'; '.join(texts)}"


def _long_tail() -> str:
    told = [line for line in read(RESULTS / "shift.jsonl") if line["study"] == "told"]
    texts = []
    for said, method, prior in (
        ("auto with the prior", "auto", "uniform"),
        ("temperature with it", "temperature", "uniform"),
        ("without", "temperature", "none"),
    ):
        mine = [line["ece"] for line in told if (line["method"], line["prior"]) == (method, prior)]
        texts.append(f"{said} {100 * fmean(mine):.2f} %")
    for said, row in (("temperature", "TS ND"), ("class temperatures", "CTS ND")):
        cells = [cell for cell in stored("sctl", "table 2") if (cell.row, cell.metric) == (row, "ECE")]
        texts.append(f"{said} with class scaling {fmean(cell.ours for cell in cells):.2f} %")
    return f"ECE, mean of the four networks of SCTL: {', '.join(texts)}"


ON_CIFAR_100 = "ResNet-18 on CIFAR-100, 100 epochs"


def _value(method: str, state: str, metric: str) -> float:
    return fmean(line[metric][0] for line in trained.lines(method, state))


def _training(*methods: str) -> str:
    texts = [
        f"{name} {_value(name, 'auto', 'nll'):.3f} and {100 * _value(name, 'auto', 'ece'):.2f} %"
        for name in (*methods, "cross-entropy")
    ]
    return f"{ON_CIFAR_100}, NLL and ECE with `auto`: {'; '.join(texts)}"


def _alone(*methods: str) -> str:
    texts = []
    for name in (*methods, "cross-entropy"):
        ece, accuracy = (100 * _value(name, "as trained", metric) for metric in ("ece", "accuracy"))
        texts.append(f"{name} {ece:.2f} % at {accuracy:.1f} %")
    return f"{ON_CIFAR_100}, ECE at accuracy: {', '.join(texts)}"


def _declining() -> str:
    texts = [
        f"{name} {100 * _value(name, 'as trained', 'aurc'):.2f} → {100 * _value(name, 'auto', 'aurc'):.2f} %"
        for name in ("cutmix", "acls", "cross-entropy", "au", "aurc")
    ]
    return f"{ON_CIFAR_100}, AURC as trained → with `auto`: {', '.join(texts)}"


# -------------------------------------------------------------------------------------------------------------- figures

# Those of docs/evidence.md, which `scripts/tables.py` draws.
FIGURES = (("sctl", "1"), ("cts", "3"), ("acls", "2"), ("selective-risk", "3"), ("mac-cal", "8"))


def drawing(paper: str, number: str) -> Drawing:
    """A figure of the numbers that were kept, or of benchmarks/results."""
    (output,) = (each for each in outputs_of(paper) if each.name == f"figure {number}")
    assert output.figure is not None
    kept = stored_numbers(paper, output.name) if output.figure.files else output.figure.measure(Path())
    return output.figure.draw(kept)


def figure(paper: str, number: str) -> str:
    """The picture, and what it says."""
    (about,) = (each.about for each in outputs_of(paper) if each.name == f"figure {number}")
    return f"![{about}, ours](pictures/{paper}-{number}.svg)\n\n{drawing(paper, number).says}"


def pictures() -> dict[str, str]:
    """The SVG files of FIGURES."""
    found = {f"{paper}-{number}.svg": drawing(paper, number) for paper, number in FIGURES}
    found["by-epoch.svg"] = differences.by_epoch()
    return {name: sheet(each.pictures, legend=each.legend, columns=each.columns) for name, each in found.items()}


def table(name: str) -> str:
    """One of the tables of docs/evidence.md by its name there."""
    made: dict[str, Callable[[], str]] = {
        "states": states,
        "agreement": sctl_tables.agreement_table,
        "class_scaling": sctl_tables.class_scaling,
        "class_scaling_stand_ins": sctl_tables.class_scaling_stand_ins,
        "class_scaling_elsewhere": sctl_tables.class_scaling_elsewhere,
        "acls": lambda: claims.against("acls"),
        "acls_claims": lambda: claims.every("acls"),
        "selective_risk": lambda: claims.against("au"),
        "selective_risk_claims": lambda: claims.every("au"),
        "mac_cal": claims.heads,
        "mac_cal_claims": claims.every_head,
        "answers": summary.answers,
        "progress": summary.progress,
        "failures": summary.failures,
        "kept": summary.kept,
        "headlines": differences.headlines,
        "lengths": differences.lengths,
        "discounts": differences.discounts,
        "acls_settings": lambda: of_small(
            acls.table_5(Path()), acls.table_6(Path()), acls.figure_a(Path()), rows=("ACLS (", "margin")
        ),
        "selective_risk_settings": lambda: of_small(selective_risk.figure_2(Path()), selective_risk.figure_s4(Path())),
        "mac_cal_settings": lambda: of_small(mac_cal.figure_6(Path()), rows="mixup"),
        "situations": situations,
        "cts_1": lambda: markdown(list(cts.on_published())),
        "cts_1_trained": lambda: markdown(list(cts.on_trained())),
        "cts_2": lambda: markdown(stored("cts", "table II")),
        "cts_3": lambda: markdown(stored("cts", "table III")),
        "selective_risk_1": lambda: markdown(list(selective_risk.table_1(Path()))),
        "mac_cal_5": lambda: markdown(list(mac_cal.table_5(Path()))),
    }
    made |= {f"figure_{paper.replace('-', '_')}_{n}": partial(figure, paper, n) for paper, n in FIGURES}
    tables = {f"{data}_{short}": partial(summary.trainings, data, short) for data, short in summary.TABLES}
    made |= {key.replace("-", "_"): table for key, table in tables.items()}
    return made[name]()
