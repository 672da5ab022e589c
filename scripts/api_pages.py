"""The Python reference of the site: every public name of every package."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from method_pages import REGISTRIES, page_path
from temperance.metrics import Metric

# A page for each: its title, and the modules whose public names it has.
MODULES = {
    "index": ("temperance", ["temperance"]),
    "metrics": ("temperance.metrics", ["temperance.metrics"]),
    "calibrators": ("temperance.calibrators", ["temperance.calibrators"]),
    "losses": ("temperance.losses", ["temperance.losses"]),
    "heads": ("temperance.heads", ["temperance.heads"]),
    "training": ("temperance.training", ["temperance.training"]),
    "data": ("temperance.data", ["temperance.data"]),
    "report": ("temperance.report", ["temperance.report"]),
    "interop": ("temperance.interop", [f"temperance.interop.{name}" for name in ("sklearn", "onnx")]),
}
# Their libraries need not be installed to read about them.
UNSEEN = {
    "interop": [
        "temperance.interop.lightning.CalibrationCallback",
        "temperance.interop.transformers.TrainerCalibration",
        "temperance.interop.torchmetrics.CalibrationMetric",
    ]
}


def api_pages() -> Iterator[tuple[str, str]]:
    """The path and the Markdown of every page."""
    methods = {id(thing): (kind, thing.name) for kind, found in REGISTRIES.items() for thing in found}
    for page, (title, names) in MODULES.items():
        found = sorted((each for name in names for each in public(import_module(name))), key=inspect.isclass)
        listed = [methods[id(thing)] for thing in found if id(thing) in methods]
        parts = [f"# {title}", inspect.cleandoc(import_module(names[0]).__doc__ or "") if len(names) == 1 else ""]
        if listed:
            links = ", ".join(f"[{name}](../{page_path(kind, name)})" for kind, name in listed)
            parts.append(f"Methods have [pages of their own](../reference/{listed[0][0]}/index.md): {links}.")
        paths = [f"{thing.__module__}.{thing.__qualname__}" for thing in found if id(thing) not in methods]
        parts += [f"::: {path}" for path in dict.fromkeys([*paths, *UNSEEN.get(page, [])])]
        yield f"api/{page}.md", "\n\n".join(filter(None, parts)) + "\n"


def public(module: ModuleType) -> list[Any]:
    """The classes, functions and methods of the registries that a module offers."""
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    found = [getattr(module, name) for name in names]
    return [
        thing for thing in found if inspect.isclass(thing) or inspect.isfunction(thing) or isinstance(thing, Metric)
    ]
