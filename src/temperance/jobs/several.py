"""Several sets of predictions in one call: each is measured as if alone, and one table shows them all."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from temperance.errors import InputError, SeveralErrors, TemperanceError, plural
from temperance.files import PathLike, check_folder
from temperance.jobs.comparison import chosen_methods, compare
from temperance.jobs.evaluation import Evaluation, evaluate
from temperance.jobs.kept import Finding, Kept, reduced
from temperance.jobs.measuring import chosen_metrics
from temperance.jobs.outcomes import BASELINE
from temperance.jobs.results import Provenance, Results, Row, log_name, shown
from temperance.jobs.standings import Standing, standings
from temperance.metrics import METRICS
from temperance.predictions import Predictions, read_predictions
from temperance.predictions.checks import excerpt
from temperance.predictions.given import READING, Set
from temperance.progress import Progress, no_progress
from temperance.showing import listed, number_table, paragraphs, percent

if TYPE_CHECKING:
    from rich.table import Table

Sets = Sequence[Set] | Mapping[str, Set]
Found = TypeVar("Found")

COLUMN, FEWEST_COLUMNS = 16, 3  # the width of a metric's column, and the fewest columns in any terminal


@dataclass(frozen=True, repr=False)
class SeveralSets(Results):
    """The measurements of several sets. The `source` of a row names the set.

    failures  the sets that could not be measured, and why
    """

    failures: dict[str, TemperanceError]

    @property
    def names(self) -> tuple[str, ...]:
        """The sets that were measured."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """How many sets, and how many are missing."""
        missing = f" · {plural(len(self.failures), 'other')} could not be measured" if self.failures else ""
        return f"{plural(len(self.names), 'set')}{missing}"

    def raise_failures(self) -> None:
        """Raise one error that names every set that could not be measured, if there are any."""
        if not self.failures:
            return
        each = [("" if name in str(why) else f"{name}: ", why) for name, why in self.failures.items()]
        total = plural(len(self.names) + len(self.failures), "set")
        raise SeveralErrors(f"{len(self.failures)} of {total} could not be measured", each)

    def to_json(self, **extra: Any) -> str:
        return super().to_json(failures={name: str(error) for name, error in self.failures.items()}, **extra)


@dataclass(frozen=True, repr=False)
class Evaluations(SeveralSets):
    """Several sets of predictions, measured with the same metrics; `each` has the evaluation of every set."""

    each: dict[str, Evaluation]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.each)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that every set was measured with."""
        first = next(iter(self.each.values()))
        return tuple(row.metric for row in first.rows if not row.group)

    def metric_title(self, name: str) -> str:
        """What a metric is called, as in the evaluation of each set."""
        return next(iter(self.each.values())).metric_title(name)

    def ranks(self, metric: str) -> dict[str, int]:
        """The rank of each set by a metric, 1 for the best; equal sets share one. Empty if no value is better."""
        lower = METRICS[metric].lower_is_better
        values = {name: found.row(metric).value for name, found in self.each.items()}
        if lower is None:
            return {}
        return {
            name: 1 + sum(other < value if lower else other > value for other in values.values())
            for name, value in values.items()
            if value == value
        }

    def to_dict(self, prefix: str = "") -> dict[str, float]:
        """Every value by its name, as experiment trackers log them: `a.npz/ece`."""
        each = (found.to_dict(f"{prefix}{log_name(name)}/") for name, found in self.each.items())
        return {name: value for values in each for name, value in values.items()}

    def to_json(self, **extra: Any) -> str:
        return super().to_json(verdicts={name: found.verdict for name, found in self.each.items()}, **extra)

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        room = width - max(map(len, self.names)) - 14
        tabled = self.metrics[: max(FEWEST_COLUMNS, room // COLUMN)]
        ranks = {metric: self.ranks(metric) for metric in tabled}
        table = number_table("set", "samples", *map(self.metric_title, tabled))
        for name, found in self.each.items():
            cells = []
            for metric in tabled:
                rank = f" ({ranks[metric][name]})" if name in ranks[metric] else ""
                cells.append(f"{shown(found.row(metric).value, percent=METRICS[metric].percent)}{rank}")
            table.add_row(Text(name), f"{found.n_counted:,}", *cells)
        yield Text(self.title, style="bold")
        yield table
        more = len(self.metrics) - len(tabled)
        left_out = f" JSON, CSV and the report have {plural(more, 'more metric')}." if more else ""
        yield Text(f"In brackets: the rank among the sets, 1 is the best.{left_out}", style="dim")
        yield ""
        for name, found in self.each.items():
            yield Text.assemble((name, "bold"), f": {gist(found)}")


@dataclass(frozen=True, repr=False)
class Comparisons(SeveralSets):
    """Every method on several sets: where the methods stand over all of them, and what to use for each.

    kept  the sets that were not compared again, because a folder had them already
    """

    findings: dict[str, Finding]
    kept: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.findings)

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Every method over all sets, the lowest mean rank by NLL first."""
        return standings({name: found.measured for name, found in self.findings.items()}, seed=self.provenance.seed)

    @property
    def verdict(self) -> str:
        """In plain words: which method ranks first, and where it does harm."""
        first, n = self.standings[0], len(self.names)
        if len(self.standings) == 1:
            return "Nothing to rank: no calibrator could be fitted."
        equal = [standing.method for standing in self.standings if standing.rank.value == first.rank.value]
        names = listed([f"{method} (no calibration)" if method == BASELINE else method for method in equal])
        low, high = first.rank.low, first.rank.high
        bounds = "" if math.isnan(low) else f" ({100 * first.rank.level:g} % interval {low:.1f} to {high:.1f})"
        rank, its = ("ranks", "its") if len(equal) == 1 else ("rank", "their")
        text = [
            f"By NLL, {names} {rank} first over {plural(n, 'set')}: {its} mean rank among {len(self.standings)} "
            f"methods is {first.rank.value:.1f}{bounds}."
        ]
        if len(equal) == 1 and first.method != BASELINE:
            harmed = round(first.harm.value * n)
            text.append(f"It has a higher NLL than no calibration on {harmed or 'none'} of them.")
        text.append("The recommendation for a set rests on the tests of that set alone.")
        return " ".join(text)

    def to_dict(self, prefix: str = "") -> dict[str, float]:
        """Every value by its name, as experiment trackers log them: `a.npz/temperature/ece`."""
        return {
            prefix + log_name(name, method, metric): value
            for name, finding in self.findings.items()
            for method, measured in finding.measured.items()
            for metric, value in measured.items()
        }

    def to_json(self, **extra: Any) -> str:
        return super().to_json(
            verdict=self.verdict,
            sets={
                name: {key: value for key, value in vars(finding).items() if key != "measured"}
                for name, finding in self.findings.items()
            },
            standings=[asdict(standing) for standing in self.standings],
            **extra,
        )

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        yield Text(self.title, style="bold")
        yield self._standings_table()
        yield Text(
            "wins: the comparisons with other methods that it wins by NLL; harm: the sets where its NLL is higher than "
            "without calibration.",
            style="dim",
        )
        yield ""
        yield self._sets_table()
        yield from paragraphs(self.verdict)

    def _standings_table(self) -> Table:
        from rich.text import Text

        accuracy = [name for name in ("accuracy",) if name in self.standings[0].means]
        table = number_table("method", "mean rank", "wins", "harm", "NLL", "ECE", *accuracy, "seconds")
        for standing in self.standings:
            means, rank = standing.means, standing.rank
            between = "" if math.isnan(rank.low) else f" ({rank.low:.1f} … {rank.high:.1f})"
            table.add_row(
                Text(standing.method),
                f"{rank.value:.1f}{between}",
                percent(standing.wins.value, 0),
                percent(standing.harm.value, 0),
                shown(means["nll"], percent=False),
                shown(means["ece"], percent=True),
                *(shown(means[name], percent=True) for name in accuracy),
                f"failed on {plural(standing.failures, 'set')}" if standing.failures else f"{means['seconds']:.2f}",
            )
        return table

    def _sets_table(self) -> Table:
        from rich.text import Text

        table = number_table("set", "classes", "NLL", "ECE")
        table.add_column("recommended", no_wrap=True)
        for name, finding in self.findings.items():
            before, after = (finding.measured[method] for method in (BASELINE, finding.recommended))
            table.add_row(
                Text(name),
                "–" if finding.one_score else f"{finding.k:,}",
                f"{before['nll']:.4f} → {after['nll']:.4f}",
                f"{shown(before['ece'], percent=True)} → {shown(after['ece'], percent=True)}",
                Text(finding.recommended),
            )
        return table


def evaluate_each(
    sets: Sets, *, split: str | None = None, progress: Progress = no_progress, **options: Any
) -> Evaluations:
    """`evaluate` on several sets of predictions: files, or `Predictions` by name.

    A set that cannot be measured is in `failures`, and the others are measured.

    split    which set of a file that has both, "val" or "test"
    options  as `evaluate` takes them: metrics, n_bins, bootstrap, columns, …
    """
    chosen_metrics(options.get("metrics", ()))
    how = {name: options.pop(name) for name in READING if name in options}

    def measure(_: str, given: Set) -> Evaluation:
        return evaluate(given if isinstance(given, Predictions) else read_predictions(given, split, **how), **options)

    found, failures = _each(sets, measure, progress)
    rows, provenance = _together(found.values())
    return Evaluations(rows, provenance, failures, found)


def compare_each(
    sets: Sets,
    *,
    folder: PathLike | None = None,
    refit: bool = False,
    progress: Progress = no_progress,
    **options: Any,
) -> Comparisons:
    """`compare` on several sets of predictions, each fitted on one part of it and measured on another.

    Files with val and test parts keep them, others are halved at random. A set that cannot be measured is in
    `failures`, and the others are measured.

    folder   gets the recommended calibrator of each set, NAME.safetensors, and its measurements, NAME.json, as soon as
             they are there; a set whose NAME.json has the same data and settings is not compared again
    refit    fit the kept calibrators on all samples
    options  as `compare` takes them: methods, n_bins, bootstrap, jobs, …
    """
    chosen_methods(options.get("methods", ()))
    if folder is not None:
        check_folder(folder)
    elif refit:
        raise InputError("refit changes the calibrators that are kept: name a folder for them")
    kept = Kept(folder, refit=refit, **options) if folder is not None else None

    def measure(name: str, given: Set) -> tuple[Results, Finding]:
        return kept.compared(name, given) if kept else reduced(compare(given, **options))

    found, failures = _each(sets, measure, progress)
    rows, provenance = _together(result for result, _ in found.values())
    findings = {name: finding for name, (_, finding) in found.items()}
    return Comparisons(rows, provenance, failures, findings, tuple(kept.found) if kept else ())


def _each(
    sets: Sets, measure: Callable[[str, Set], Found], progress: Progress
) -> tuple[dict[str, Found], dict[str, TemperanceError]]:
    """The measurements of each set, and the errors of those that could not be measured."""
    given = sets_by_name(sets)
    found: dict[str, Found] = {}
    failures: dict[str, TemperanceError] = {}
    for name, each in given.items():
        progress(len(found) + len(failures), len(given), name)
        try:
            found[name] = measure(name, each)
        except TemperanceError as error:
            failures[name] = error
    if not given:
        raise InputError("there must be at least one set of predictions")
    if not found:
        raise next(iter(failures.values()))
    return found, failures


def gist(found: Evaluation) -> str:
    """The first sentence of the verdict, and that the labels look wrong if they do."""
    first = f"{found.verdict.partition('. ')[0].rstrip('.')}."
    return f"{first} The labels look wrong; evaluate this set alone to see why." if found.unrelated else first


def set_names(sets: Iterable[Set]) -> list[str]:
    """A name for each set: its path within the folder that holds all of them, numbered where two are the same.

    If only the root folder holds all of them, that is the whole path.

    >>> set_names(["runs/a/test.npz", "runs/b/test.npz"])
    ['a/test.npz', 'b/test.npz']
    """
    paths = [Path(given.source if isinstance(given, Predictions) else given) for given in sets]
    parents = {path.absolute().parent for path in paths}
    folder = os.path.commonpath(parents) if parents else ""
    found: list[str] = []
    for path in paths:
        whole = path.absolute()
        name = plain = (whole if folder == whole.anchor else whole.relative_to(folder)).as_posix()
        while name in found:
            name = f"{plain} ({len(found) + 1})"
        found.append(name)
    return found


def sets_by_name(sets: Sets) -> dict[str, Set]:
    """The sets with their names; anything but several sets is refused."""
    if isinstance(sets, Set) or not isinstance(sets, Iterable):
        raise InputError(
            "sets must be a list of files or Predictions, or a dictionary of these by name; got "
            f"{excerpt([repr(sets)])}. For each file of a folder, pass temperance.predictions.each_file([FOLDER])"
        )
    several = list(sets.values() if isinstance(sets, Mapping) else sets)
    for each in several:
        if not isinstance(each, Set):
            raise InputError(f"each set must be a file or a Predictions; got {type(each).__name__}")
    return dict(zip(sets if isinstance(sets, Mapping) else set_names(several), several, strict=True))


def _together(results: Iterable[Results]) -> tuple[tuple[Row, ...], Provenance]:
    """All rows, and the provenance of all: every input, and the settings that are the same for each set."""
    several = list(results)
    first = several[0].provenance
    same = {
        name: value
        for name, value in first.settings.items()
        if all(each.provenance.settings.get(name) == value for each in several)
    }
    inputs = {name: digest for each in several for name, digest in each.provenance.inputs.items()}
    return tuple(row for each in several for row in each.rows), Provenance.of(inputs, same, first.seed)
