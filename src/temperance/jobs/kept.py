"""The results of comparisons, set by set in a folder, so that an interrupted one resumes with the remaining sets."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import temperance
from temperance.errors import InputError
from temperance.files import PathLike, make_folder, reading, write_text
from temperance.jobs.comparison import Comparison, chosen_methods, compare
from temperance.jobs.outcomes import BASELINE
from temperance.jobs.results import Provenance, Results, Row
from temperance.jobs.sides import fit_and_test
from temperance.predictions.disk import FORMATS
from temperance.predictions.given import READING, Set
from temperance.predictions.shards import suffix_of
from temperance.settings import defaults_of


@dataclass(frozen=True)
class Finding:
    """The result of a comparison on one set; `measured` has every metric of every method that could be fitted."""

    recommended: str
    verdict: str
    split: str
    k: int
    measured: dict[str, dict[str, float]]
    answers: bool = False
    multilabel: bool = False

    @property
    def one_score(self) -> bool:
        """Does a row have one probability, rather than those of classes?"""
        return self.answers or self.multilabel


def reduced(found: Comparison) -> tuple[Results, Finding]:
    """A comparison without its predictions and calibrators, which would otherwise be held for all sets at once."""
    measured = {
        outcome.label: {"seconds": outcome.seconds} | {name: each.value for name, each in outcome.measured.items()}
        for outcome in found.ranked
    }
    test = found.test
    finding = Finding(
        found.recommended.label, found.verdict, found.split, test.k, measured, test.answers, test.multilabel
    )
    return Results(found.rows, found.provenance), finding


class Kept:
    """A folder with two files for each set: NAME.safetensors, the calibrator to use, and NAME.json, what was measured.

    A set for which none is recommended has only the second. NAME is that of the set, without its suffix.

    refit    the calibrators are fitted on everything, the test part included
    options  as `compare` takes them
    """

    def __init__(self, folder: PathLike, *, refit: bool, **options: Any) -> None:
        self.folder, self.refit, self.options = Path(folder), refit, options
        self.found: list[str] = []  # the sets that were in the folder already
        self._names: dict[str, str] = {}

    def compared(self, name: str, given: Set) -> tuple[Results, Finding]:
        """The comparison on a set: from the folder if it has the same data and settings, else a new one."""
        suffix = suffix_of(Path(name), tuple(FORMATS)) or ""
        stem = re.sub(r"[^\w.-]+", "_", name[: len(name) - len(suffix)])
        if self._names.setdefault(stem, name) != name:
            raise InputError(f"{name} and {self._names[stem]} would both be kept as {stem}; rename one of them")
        asked = self._asked(given)
        path, calibrator = (self.folder / f"{stem}.{kind}" for kind in ("json", "safetensors"))
        if path.exists():
            with reading(path):
                about = json.loads(path.read_text(encoding="utf-8"))
                if about["asked"] == asked and (about["finding"]["recommended"] == BASELINE or calibrator.exists()):
                    self.found.append(name)
                    return _read(about)
        found = compare(given, **self.options)
        results, finding = reduced(found)
        make_folder(self.folder)
        if found.recommends:
            found.calibrator(refit=self.refit).save(calibrator)
        else:
            calibrator.unlink(missing_ok=True)  # from other data or settings
        # Written last: a set that has it is complete.
        write_text(path, results.to_json(asked=asked, finding=asdict(finding)))
        return results, finding

    def _asked(self, given: Set) -> dict[str, Any]:
        """Everything that the result depends on."""
        options = defaults_of(compare) | self.options
        how = {name: options[name] for name in READING}
        fit, test, _ = fit_and_test(given, None, options["seed"], **how)
        chosen = chosen_methods(options["methods"], by_group=options["by_group"] or fit.multilabel)
        return {
            "fit": fit.fingerprint,
            "test": test.fingerprint,
            "methods": [method.label for method in chosen],
            "refit": self.refit,
            "version": temperance.__version__,
            **{name: options[name] for name in ("n_bins", "bootstrap", "seed")},
        }


def _read(about: dict[str, Any]) -> tuple[Results, Finding]:
    """The results that `Results.to_json` wrote; null stands for a number that is not finite."""
    rows = tuple(Row(**row | {name: _number(row[name]) for name in ("value", "low", "high")}) for row in about["rows"])
    finding = about["finding"]
    measured = {
        method: {name: _number(value) for name, value in values.items()}
        for method, values in finding["measured"].items()
    }
    return Results(rows, Provenance(**about["provenance"])), Finding(**finding | {"measured": measured})


def _number(value: float | None) -> float:
    return math.nan if value is None else value
