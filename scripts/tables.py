"""Write the tables of the docs, and a picture, from registries and results: python scripts/tables.py

The tests check that it was run.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temperance.cli.list_methods import described
from temperance.losses import LOSSES

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))

from benchmarks.papers import evidence  # noqa: E402  (needs the root on the path)
from benchmarks.quality import (  # noqa: E402
    classifiers,
    coverage,
    digits,
    few,
    harm,
    heads,
    leaderboard,
    longtail,
    losses,
    published,
    recommend,
    robust,
    shift,
)
from benchmarks.quality.table import by_objective, markdown, read  # noqa: E402
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


def table(kind: str, family: str = "") -> str:
    """The entries of a registry, all or those of a family, or what a benchmark found, as a Markdown table."""
    if kind == "quality":
        return markdown(read(RESULTS / "quality.jsonl"))
    if kind == "leaderboard":
        return leaderboard.markdown(read(RESULTS / "leaderboard.jsonl"), family)
    if kind == "headline":
        return leaderboard.headline(read(RESULTS / "leaderboard.jsonl"))
    if kind == "head_results":
        return heads.markdown(read(RESULTS / "heads.jsonl"))
    if kind == "long_tail":
        return longtail.markdown(read(RESULTS / "longtail.jsonl"))
    if kind == "by_objective":
        return by_objective(read(RESULTS / "objectives.jsonl"))
    if kind == "published":
        return published.markdown(read(RESULTS / "published.jsonl"))
    if kind == "told":
        return shift.told_markdown(read(RESULTS / "shift.jsonl"))
    if kind == "estimated":
        return shift.estimated_markdown(read(RESULTS / "shift.jsonl"))
    if kind == "adapted_few":
        return shift.few_markdown(read(RESULTS / "shift.jsonl"))
    if kind == "coverage":
        return coverage.markdown(read(RESULTS / "coverage.jsonl"))
    if kind == "few":
        return few.markdown(read(RESULTS / "few.jsonl"))
    if kind == "harm":
        return leaderboard.harm_markdown(read(RESULTS / "leaderboard.jsonl"))
    if kind == "harm_by":
        return harm.markdown(read(RESULTS / "harm.jsonl"), family)
    if kind == "robust":
        return robust.markdown(read(RESULTS / "robust.jsonl"))
    if kind == "recommended":
        return recommend.markdown(read(RESULTS / "recommend.jsonl"))
    if kind == "recommended_harm":
        return recommend.stated_markdown(read(RESULTS / "recommend.jsonl"))
    if kind == "loss_results":
        return losses.markdown(read(RESULTS / "losses.jsonl"))
    if kind == "cost":
        return cost.markdown(read(RESULTS / "cost.jsonl"), family)
    if kind == "speed":
        return peers.markdown(read(RESULTS / "speed.jsonl"))
    if kind == "jobs":
        return jobs.markdown(read(RESULTS / "jobs.jsonl"))
    if kind == "memory":
        return memory.markdown(read(RESULTS / "memory.jsonl"))
    if kind == "growth":
        return jobs.growth(read(RESULTS / "jobs.jsonl"))
    if kind == "loss_cost":
        return loss_speed.markdown(read(RESULTS / "steps.jsonl"), LOSS_FAMILIES[family])
    if kind == "classifiers":
        return classifiers.markdown(read(RESULTS / "classifiers.jsonl"))
    if kind == "digits":
        return digits.markdown(read(RESULTS / "digits.jsonl"))
    if kind == "evidence":
        return evidence.table(family)
    if kind == "loss_settings":
        return used(LOSS_FAMILIES[family])
    entries = [entry for entry in described(kind) if family in ("", entry["claims"].get("family"))]
    if kind == "losses" and family:
        entries = [entry for name in LOSS_FAMILIES[family] for entry in described(kind) if entry["name"] == name]
    rows = [f"| {entry['name']} | {entry['summary']} | {settings(entry)} |" for entry in entries]
    return "\n".join(["| name | what it is | settings |", "|---|---|---|", *rows])


def used(names: tuple[str, ...]) -> str:
    """What papers and programs set losses to, and on which data."""
    rows = [
        f"| {name} | {one.data} | {as_code(one.settings)} | {one.source} |"
        for name in names
        for one in LOSSES[name].hyper_parameters
    ]
    return "\n".join(["| loss | data | settings | source |", "|---|---|---|---|", *rows])


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
