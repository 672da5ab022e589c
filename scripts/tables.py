"""Write the tables of the docs, and a picture, from registries and results: python scripts/tables.py

The tests check that it was run.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from temperance.cli.list_methods import described
from temperance.losses import LOSSES

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))

from benchmarks.papers import evidence  # noqa: E402  (needs the root on the path)
from benchmarks.quality import (  # noqa: E402
    abstain,
    answers,
    classifiers,
    columns,
    coverage,
    decisions,
    digits,
    few,
    groups,
    harm,
    heads,
    keep,
    leaderboard,
    longtail,
    losses,
    published,
    recommend,
    robust,
    shift,
)
from benchmarks.quality.table import by_objective, markdown, read  # noqa: E402
from benchmarks.quality.table import table as in_markdown  # noqa: E402
from benchmarks.speed import cost, jobs, memory  # noqa: E402
from benchmarks.speed import losses as loss_speed  # noqa: E402
from benchmarks.speed import table as peers  # noqa: E402

# The pages of docs/losses, and what they are about; the mixup family has no entries in the registry.
LOSS_FAMILIES = {
    "proper": ("cross-entropy", "brier"),
    "smoothing": ("label-smoothing", "entropy-penalty", "cpc", "mbls", "acls", "acls-ranking", "crl-margin"),
    "focal": ("focal", "flsd", "inverse-focal", "dual-focal", "adafocal"),
    "batch": ("mmce", "mdca", "kde-xe", "soft-ece", "soft-avuc"),
    "selective": ("aurc", "au", "crl"),
}

# What benchmarks found: the name of a table, the file of results, and what makes the table of its rows.
FOUND: dict[str, tuple[str, Callable[[list[dict[str, Any]]], str]]] = {
    "quality": ("quality.jsonl", markdown),
    "by_objective": ("objectives.jsonl", by_objective),
    "headline": ("leaderboard.jsonl", leaderboard.headline),
    "harm": ("leaderboard.jsonl", leaderboard.harm_markdown),
    "head_results": ("heads.jsonl", heads.markdown),
    "long_tail": ("longtail.jsonl", longtail.markdown),
    "published": ("published.jsonl", published.markdown),
    "told": ("shift.jsonl", shift.told_markdown),
    "estimated": ("shift.jsonl", shift.estimated_markdown),
    "adapted_few": ("shift.jsonl", shift.few_markdown),
    "coverage": ("coverage.jsonl", coverage.markdown),
    "coverage_headline": ("coverage.jsonl", coverage.headline),
    "abstain": ("abstain.jsonl", abstain.markdown),
    "few": ("few.jsonl", few.markdown),
    "robust": ("robust.jsonl", robust.markdown),
    "recommended": ("recommend.jsonl", recommend.markdown),
    "recommended_harm": ("recommend.jsonl", recommend.stated_markdown),
    "loss_results": ("losses.jsonl", losses.markdown),
    "speed": ("speed.jsonl", peers.markdown),
    "jobs": ("jobs.jsonl", jobs.markdown),
    "growth": ("jobs.jsonl", jobs.growth),
    "memory": ("memory.jsonl", memory.markdown),
    "classifiers": ("classifiers.jsonl", classifiers.markdown),
    "digits": ("digits.jsonl", digits.markdown),
    "keep": ("keep.jsonl", keep.markdown),
    "answers": ("answers.jsonl", answers.markdown),
    "groups": ("groups.jsonl", groups.markdown),
    "columns": ("columns.jsonl", columns.markdown),
    "decisions": ("decisions.jsonl", decisions.markdown),
}
FOUND_BY_FAMILY: dict[str, tuple[str, Callable[[list[dict[str, Any]], str], str]]] = {
    "leaderboard": ("leaderboard.jsonl", leaderboard.markdown),
    "harm_by": ("harm.jsonl", harm.markdown),
    "cost": ("cost.jsonl", cost.markdown),
}


def table(kind: str, family: str = "") -> str:
    """The entries of a registry, all or those of a family, or what a benchmark found, as a Markdown table."""
    if kind in FOUND:
        file, as_table = FOUND[kind]
        return as_table(read(RESULTS / file))
    if kind in FOUND_BY_FAMILY:
        file, of_family = FOUND_BY_FAMILY[kind]
        return of_family(read(RESULTS / file), family)
    if kind == "loss_cost":
        return loss_speed.markdown(read(RESULTS / "steps.jsonl"), LOSS_FAMILIES[family])
    if kind == "evidence":
        return evidence.table(family)
    if kind == "loss_settings":
        return used(LOSS_FAMILIES[family])
    entries = [entry for entry in described(kind) if family in ("", entry["claims"].get("family"))]
    if kind == "losses" and family:
        entries = [entry for name in LOSS_FAMILIES[family] for entry in described(kind) if entry["name"] == name]
    rows = [[entry["name"], entry["summary"], settings(entry)] for entry in entries]
    return in_markdown(["name", "what it is", "settings"], rows)


def used(names: tuple[str, ...]) -> str:
    """What papers and programs set losses to, and on which data."""
    rows = [
        [name, one.data, as_code(one.settings), one.source] for name in names for one in LOSSES[name].hyper_parameters
    ]
    return in_markdown(["loss", "data", "settings", "source"], rows)


def as_code(found: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in found.items())


def settings(entry: dict[str, Any]) -> str:
    """Its settings with their defaults, without the `prior` that every calibrator has."""
    return as_code({name: value for name, value in entry["settings"].items() if name != "prior"})


def filled(page: str) -> str:
    """A page with each `<!-- table: KIND -->` or `<!-- table: KIND FAMILY -->` block replaced by the current table."""
    block = re.compile(r"<!-- table: (\w+)(?: (\w+))? -->\n.*?<!-- end -->", re.DOTALL)

    def current(found: re.Match[str]) -> str:
        kind, family = found[1], found[2] or ""
        return f"<!-- table: {f'{kind} {family}'.strip()} -->\n{table(kind, family)}\n<!-- end -->"

    return block.sub(current, page)


def drawn() -> dict[Path, str]:
    """The pictures that are made of results with the drawings of a report."""
    found = {
        "leaderboard.svg": leaderboard.picture(read(RESULTS / "leaderboard.jsonl")),
        "harm.svg": harm.picture(read(RESULTS / "harm.jsonl")),
        **evidence.pictures(),
    }
    return {DOCS / "pictures" / name: picture for name, picture in found.items()}


if __name__ == "__main__":
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        path.write_text(filled(path.read_text()))
    for path, picture in drawn().items():
        path.write_text(picture)
