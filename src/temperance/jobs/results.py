"""What was measured: frozen rows in long form, and where they came from.

The terminal table, JSON, CSV and the HTML report are pure functions of these.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import temperance
from temperance import showing
from temperance.errors import InputError, optional
from temperance.showing import Shown

if TYPE_CHECKING:
    from temperance.jobs.statistics import Measuring
    from temperance.predictions import Predictions


@dataclass(frozen=True)
class Row:
    """One metric of one method on one part of the data, with its interval."""

    source: str
    split: str
    group: str
    method: str
    params: dict[str, Any]
    metric: str
    value: float
    low: float
    high: float
    n: int
    seconds: float


@dataclass(frozen=True)
class Provenance:
    """Enough to run it again: versions, seed, settings, the input's hash, the device and the command."""

    inputs: dict[str, str]
    settings: dict[str, Any]
    seed: int
    device: str
    versions: dict[str, str]
    commit: str
    command: str
    created: str

    @classmethod
    def of(cls, inputs: dict[str, str], settings: dict[str, Any], seed: int, device: str = "cpu") -> Provenance:
        """The provenance of a result computed now, from inputs {name: sha256}."""
        return cls(
            inputs=inputs,
            settings=settings,
            seed=seed,
            device=device,
            versions={
                "temperance": temperance.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            commit=_commit(),
            command=_command(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def how_read(predictions: Predictions | Measuring, calibrated_by: str | None) -> dict[str, Any]:
    """How predictions were read, for the settings of every job; what is usual is left out."""
    found = {
        "weights": predictions.has_weights,
        "rows": predictions.row_name if predictions.row_name != "sample" else None,
        "answers": predictions.answers,
        "multilabel": predictions.multilabel,
        "calibrated_by": calibrated_by,
    }
    return {name: value for name, value in found.items() if value}


class Tabular(Shown):
    """A result that is also a table, with one row for each measurement; `print` shows what the command line does."""

    def __str__(self) -> str:
        return showing.as_text(self)

    def _records(self) -> list[dict[str, Any]]:
        """The rows of the table."""
        raise NotImplementedError

    def to_csv(self) -> str:
        """The table as CSV."""
        records = self._records()
        out = io.StringIO()
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return out.getvalue()

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        return _library("pandas").DataFrame(self._records())

    def to_polars(self) -> Any:
        """The table as a polars DataFrame."""
        return _library("polars").DataFrame(self._records(), infer_schema_length=None)

    def to_arrow(self) -> Any:
        """The table as a pyarrow Table."""
        return _library("pyarrow").Table.from_pylist(self._records())


@dataclass(frozen=True, repr=False)
class Results(Tabular):
    """Rows with their provenance."""

    rows: tuple[Row, ...]
    provenance: Provenance

    def row(self, metric: str, *, group: str = "", method: str | None = None) -> Row:
        """The row of a metric."""
        for row in self.rows:
            if row.metric == metric and row.group == group and method in (None, row.method):
                return row
        where = "".join(f" of {kind} {name!r}" for kind, name in (("group", group), ("method", method)) if name)
        raise InputError(f"there is no row for {metric!r}{where}")

    def to_dict(self, prefix: str = "") -> dict[str, float]:
        """Every value by its name, as experiment trackers log them: `ece`; with several methods, `temperature/ece`."""
        return flat(self.rows, prefix)

    def to_json(self, **extra: Any) -> str:
        """Everything as JSON; numbers that are not finite become null."""
        found = {"provenance": dataclasses.asdict(self.provenance), **extra}
        found["rows"] = [dataclasses.asdict(row) for row in self.rows]
        return as_json(found)

    def _records(self) -> list[dict[str, Any]]:
        return records(self.rows)


def records(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows as the records of a table, with params as JSON in one column."""
    return [vars(row) | {"params": json.dumps(row.params, sort_keys=True)} for row in rows]


def flat(rows: Sequence[Row], prefix: str = "") -> dict[str, float]:
    """The values of rows by name: `ece`, and with several groups or methods `temperature/ece`."""
    fields = [field for field in ("group", "method") if len({getattr(row, field) for row in rows}) > 1]
    return {prefix + log_name(*(getattr(row, field) for field in fields), row.metric): row.value for row in rows}


def log_name(*parts: str) -> str:
    """Parts of a name with slashes between them, in characters that every experiment tracker accepts.

    >>> log_name("temperature:objective=focal", "", "classwise-ece")
    'temperature_objective_focal/classwise_ece'
    """
    return re.sub(r"[^\w./]+", "_", "/".join(filter(None, parts)))


def _library(name: str) -> Any:
    with optional(name, "tables", f"to_{'arrow' if name == 'pyarrow' else name}()"):
        return import_module(name)


def shown(value: float, *, percent: bool) -> str:
    """A number as people read it: percent with two decimals, else four significant digits."""
    if not math.isfinite(value):
        return "–"
    return showing.percent(value) if percent else f"{value:z#.4g}"


def shown_range(low: float, high: float, *, percent: bool) -> str:
    """An interval as people read it; nothing where there is none."""
    return "" if math.isnan(low) else f"{shown(low, percent=percent)} … {shown(high, percent=percent)}"


def as_json(found: dict[str, Any]) -> str:
    """A result as JSON; numbers that are not finite become null."""
    return json.dumps(_finite(found), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _command() -> str:
    """The command that was run, as typed."""
    program = Path(sys.argv[0])
    name = "temperance" if program.parts[-2:] == ("temperance", "__main__.py") else program.name
    return shlex.join([name, *sys.argv[1:]])


def _commit() -> str:
    """The commit of the source this runs from, or nothing if there is none."""
    here = Path(__file__).resolve().parents[3]
    if not (here / ".git").exists():
        return ""
    command = ["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # there is no git here
        return ""
