"""temperance list KIND: what there is, read from the registries."""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

from rich.console import Console
from rich.table import Table

KINDS = ("metrics", "calibrators", "losses")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("list", help="name every metric, calibrator or loss, with its settings and claims")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--json", action="store_true", help="as JSON, with settings and claims")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    entries = described(args.kind)
    if args.json:
        print(json.dumps(entries, indent=2, default=str))
        return
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("settings", style="dim")
    for entry in entries:
        settings = ", ".join(f"{name}={value}" for name, value in entry["settings"].items())
        table.add_row(entry["name"], entry["summary"], settings)
    Console().print(table)


def described(kind: str) -> list[dict[str, Any]]:
    """Every entry of a registry: name, summary, settings with defaults, claims."""
    if kind == "metrics":
        from temperance.metrics import METRICS

        return [{"name": m.name, "summary": m.summary, "settings": m.options, "claims": m.claims} for m in METRICS]
    if kind == "losses":
        from temperance.losses import LOSSES, base

        return [
            {"name": c.name, "summary": c.summary, "settings": _shown(base.settings_of(c)), "claims": c.claims()}
            for c in LOSSES
        ]
    from temperance.calibrators import CALIBRATORS
    from temperance.calibrators.base import settings_of

    return [
        {"name": c.name, "summary": c.summary, "settings": settings_of(c), "claims": c.claims()} for c in CALIBRATORS
    ]


def _shown(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with their defaults, or the word for those that have none."""
    return {name: "required" if value is inspect.Parameter.empty else value for name, value in settings.items()}
