"""temperance list KIND: every method of a kind, from the registries."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.table import Table

from temperance.cli.terminal import show
from temperance.errors import InputError, unknown_name
from temperance.settings import REQUIRED, Setting, settings_of

if TYPE_CHECKING:
    from temperance.registry import Registry

KINDS = ("metrics", "calibrators", "objectives", "losses", "networks", "heads", "recipes", "corruptions")

# The packages of those that have a registry.
PACKAGES = {kind: kind for kind in KINDS if kind != "recipes"}
PACKAGES |= {"networks": "training.networks", "corruptions": "data.corruptions"}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "list", help="list every metric, calibrator, objective, loss, network or head, with its settings and claims"
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="one of them: the values and the purpose of its settings"
    )
    parser.add_argument("--json", action="store_true", help="as JSON, with settings and claims")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if args.kind is None:
        raise InputError(f"say what to list: temperance list KIND, where KIND is one of {', '.join(KINDS)}")
    entries = described(args.kind)
    if args.name is not None:
        if args.name not in (names := [entry["name"] for entry in entries]):
            raise unknown_name("loss" if args.kind == "losses" else args.kind.removesuffix("s"), args.name, names)
        entries = [entry for entry in entries if entry["name"] == args.name]
    if args.json:
        print(json.dumps(entries, indent=2, default=str))
        return
    table = Table(show_edge=False, pad_edge=False)
    if args.name is None:
        columns = ["name", "what it is", "settings"]
        rows = [
            [e["name"], e["summary"], ", ".join(f"{n}={_written(v)}" for n, v in e["settings"].items())]
            for e in entries
        ]
    else:
        columns = ["setting", "default", "may be", "what it is for"]
        rows = [[n, _written(v), *entries[0]["about"][n].values()] for n, v in entries[0]["settings"].items()]
        print(f"{args.name}: {entries[0]['summary']}\n")
    for i, title in enumerate(columns):
        table.add_column(title, no_wrap=i == 0, style="dim" if title == "settings" else None)
    for row in rows:
        table.add_row(*row)
    show(table)


def _written(value: object) -> str:
    """A value as the command line takes it: none, true, false."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def described(kind: str) -> list[dict[str, Any]]:
    """Every entry of a registry: name, summary, settings with defaults, what is known about these, claims."""
    if kind == "recipes":
        return _recipes()
    found = registry(kind)
    if kind in ("metrics", "networks"):
        return [_entry(each, each.settings, each.claims) for each in found]
    if kind == "corruptions":
        return [_entry(each, {}, {"family": each.family}) for each in found]
    if kind == "losses":
        return [_entry(each, each.own_settings(), each.claims()) for each in found]
    if kind == "objectives":
        return [_entry(each, settings_of(each), {"convex": each.convex}) for each in found]
    if kind == "heads":
        return [_entry(each, settings_of(each), each.claims() | {"presets": each.presets}) for each in found]
    return [_entry(each, settings_of(each), each.claims()) for each in found]


def registry(kind: str) -> Registry[Any]:
    """The registry of a kind, which has its name."""
    found: Registry[Any] = getattr(import_module(f"temperance.{PACKAGES[kind]}"), kind.upper())
    return found


def _entry(thing: Any, settings: Mapping[str, Setting], claims: dict[str, Any]) -> dict[str, Any]:
    defaults = {name: "required" if s.default is REQUIRED else s.default for name, s in settings.items()}
    return {
        "name": thing.name,
        "summary": thing.summary,
        "settings": defaults,
        "about": _about(settings),
        "claims": claims,
    }


def _about(settings: Mapping[str, Setting]) -> dict[str, dict[str, str]]:
    return {name: {"may be": setting.allowed, "purpose": setting.purpose} for name, setting in settings.items()}


def _recipes() -> list[dict[str, Any]]:
    """How the papers trained: the settings that differ from the defaults."""
    from dataclasses import asdict

    from temperance.training.recipe import PAPERS, RECIPES, Recipe

    plain = asdict(Recipe())
    return [
        {
            "name": name,
            "summary": PAPERS[name],
            "settings": {key: value for key, value in asdict(recipe).items() if value != plain[key]},
            "about": _about(settings_of(Recipe)),
            "claims": {},
        }
        for name, recipe in RECIPES.items()
    ]
