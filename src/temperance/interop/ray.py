"""Ray: files and data sets are measured and calibrated where they are, on one machine or on many.

    from temperance.interop import ray as cluster

    found = cluster.evaluate("predictions/", address="ray://head:10001")
    found = cluster.evaluate(ray.data.read_parquet("s3://bucket/predictions/"))

Workers read the files, so every machine must see them under the same path. A task that is lost with its worker is run
again. The statistics that come back are small, and are added up in the order of the files, so that a result does not
depend on the number of workers.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from temperance.calibrators.base import Calibrator
from temperance.errors import FileError, InputError, TemperanceError, optional
from temperance.files import PathLike, reason
from temperance.jobs import application, blocks, comparison
from temperance.jobs.comparison import Comparison
from temperance.jobs.evaluation import Evaluation
from temperance.jobs.outcomes import Method, Outcome, Work
from temperance.jobs.statistics import Statistics, total
from temperance.predictions import Predictions, read_predictions, write_predictions
from temperance.predictions.checks import MARK, ColumnNames, Positive, Wanted, as_positive
from temperance.predictions.columns import find_columns
from temperance.predictions.core import Origin
from temperance.predictions.disk import is_folder_name, read_file, shard_folder
from temperance.predictions.frames import column_names, of_table
from temperance.predictions.parquet import n_row_groups
from temperance.predictions.remote import as_url
from temperance.progress import Progress, no_progress

with optional("Ray", "ray", "temperance.interop.ray (--ray)"):
    import ray
    import ray.data

# Small files are measured together, so that a task is worth its overhead; parts of large ones have at least this size.
TASK_ROWS = 1 << 20

# How many tasks wait for each processor of the cluster: results are taken in order, so finished ones wait for others.
WAITING = 3

# Seconds that cancelled tasks have to stop.
STOP_SECONDS = 60.0


class Failed(NamedTuple):
    """A worker's error, to be raised in this process."""

    kind: type[TemperanceError]
    message: str
    flags: dict[str, str]

    @classmethod
    def of(cls, error: TemperanceError) -> Failed:
        return cls(FileError if isinstance(error, FileError) else InputError, str(error), error.flags)

    def error(self) -> TemperanceError:
        return self.kind(self.message, flags=self.flags)


# ------------------------------------------------------------------------------------------------------------ the jobs


def evaluate(
    data: PathLike | Predictions | Any,
    *,
    address: str | None = None,
    split: str | None = None,
    bootstrap: int = 500,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress = no_progress,
    **options: Any,
) -> Evaluation:
    """As `temperance.evaluate`, for a file, a folder, a pattern or a `ray.data.Dataset`.

    A task measures a file, several small files, or a part of a large .parquet file; of a data set, a block.

    address  of the cluster; by default the one that is running or that RAY_ADDRESS names, or else a local one
    options  as `statistics` takes them: metrics, calibrator, n_bins, by_group, columns, positive, ignore_index, answers
    """
    inspect.signature(blocks.statistics).bind(data, **options)  # a wrong name is refused here, not by the workers
    reading = {name: options.pop(name, None) for name in ("columns", "positive", "ignore_index")}
    reading["answers"] = options.pop("answers", False)
    measuring = options | {"intervals": bootstrap > 0, "seed": seed}
    resampling: dict[str, Any] = {"bootstrap": bootstrap, "level": level, "seed": seed}
    with _cluster(address):
        if isinstance(data, ray.data.Dataset):
            measured = data.map_batches(
                _measured_table, fn_args=(reading | measuring,), batch_format="pyarrow", batch_size=None
            )
            return blocks.combine(
                (_value(row["found"]) for row in measured.iter_rows()), source="a Ray data set", **resampling
            )
        found = data if isinstance(data, Predictions) else read_predictions(data, split, **reading)
        found.need_labels()
        if found.multilabel:
            raise InputError("samples with several labels are measured in one process; leave out Ray")
        calls = [(origins, measuring) for origins in _together(found)]
        return blocks.combine(_run(_measure, calls, progress, "measuring files"), source=found.source, **resampling)


def apply(
    calibrator: Calibrator,
    data: PathLike | Predictions | Any,
    output: PathLike | None = None,
    *,
    address: str | None = None,
    columns: Mapping[str, str] | None = None,
    positive: Positive | None = None,
    answers: bool = False,
    again: bool = False,
    progress: Progress = no_progress,
) -> Any:
    """As `temperance.apply`: a folder is written as a new folder `output`, file by file, whole or not at all.

    A `ray.data.Dataset` becomes another one, with `probs` (of answers `confidence`) in place of its scores, and needs
    no output. It is computed when it is used.
    """
    reading: dict[str, Any] = {"columns": columns, "positive": positive, "answers": answers}
    if isinstance(data, ray.data.Dataset):
        return data.map_batches(
            _calibrated_table, fn_args=(calibrator, reading, again), batch_format="pyarrow", batch_size=None
        )
    found = data if isinstance(data, Predictions) else read_predictions(data, labels="optional", **reading)
    application.apply(calibrator, found, again=again)  # refuses what cannot be calibrated
    if output is None or not is_folder_name(output):
        raise InputError(
            f"workers write a folder, with a file for each that is read; output must be a new folder, got {output}",
            flags={"output": "-o"},
        )
    with _cluster(address), shard_folder(output, found) as targets:
        held = ray.put(calibrator)
        calls = [(held, origin, target, again) for origin, target in zip(_origins(found), targets, strict=True)]
        for _ in _run(_calibrate, calls, progress, "calibrating files"):
            pass
    return None


def compare(*sets: Any, address: str | None = None, **options: Any) -> Comparison:
    """As `temperance.compare`; each method is fitted and measured by a task of its own, on data that all share."""

    def run_all(work: Work, methods: Sequence[Method]) -> Iterator[Outcome]:
        with _cluster(address):
            held = ray.put(work)
            yield from _run(_fit, [(held, method) for method in methods])

    return comparison.compare(*sets, run_all=run_all, **options)


# ----------------------------------------------------------------------------------------------------- what workers do


def _errors_returned(task: Callable[..., Any]) -> Callable[..., Any]:
    """The task, with its errors as return values: Ray would bury their sentence in a traceback."""

    @functools.wraps(task)
    def run(*given: Any) -> Any:
        try:
            return task(*given)
        except TemperanceError as error:
            return Failed.of(error)

    return run


@_errors_returned
def _measure(origins: Sequence[Origin], how: dict[str, Any]) -> Statistics:
    return total(blocks.statistics(read_file(*origin), **how) for origin in origins)


@_errors_returned
def _calibrate(calibrator: Calibrator, origin: Origin, target: Path, again: bool) -> None:
    write_predictions(target, application.apply(calibrator, read_file(*origin), again=again))


@_errors_returned
def _fit(work: Work, method: Method) -> Outcome:
    return work.run(method)


def _measured_table(table: Any, how: dict[str, Any]) -> dict[str, list[Any]]:
    """The statistics of a block of a data set; an empty block has none."""
    return {"found": [_measure_block(table, how)] if table.num_rows else []}


@_errors_returned
def _measure_block(table: Any, how: dict[str, Any]) -> Statistics:
    return blocks.statistics(table, **how)


def _calibrated_table(table: Any, calibrator: Calibrator, reading: dict[str, Any], again: bool) -> Any:
    import pyarrow

    if not table.num_rows:
        return table
    names = column_names(table) or []
    wanted = Wanted(
        labels="optional",
        positive=as_positive(reading["positive"]),
        columns=ColumnNames.of(reading["columns"]),
        answers=reading["answers"],
    )
    if MARK in names and not again:
        raise InputError("the data set is calibrated already; to do it a second time, pass again=True")
    found = application.apply(calibrator, of_table(table, names, wanted))
    scores = pyarrow.array(found.written(found.scores).numpy().reshape(-1))
    if not found.answers:
        scores = pyarrow.FixedSizeListArray.from_arrays(scores, found.k)
    kept = table.drop_columns([name for name in names if name in {*find_columns(names, wanted).scores, MARK}])
    if found.kind in kept.column_names:
        raise InputError(f"the column {found.kind} collides with a new one; rename or remove it")
    mark = pyarrow.array([calibrator.name] * found.n)
    return kept.append_column(found.kind, scores).append_column(MARK, mark)


# ---------------------------------------------------------------------------------------------------- what is done here


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """A cluster to run on: the one this process uses already, or one that it leaves at the end."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"there is no Ray cluster at {address or os.environ.get('RAY_ADDRESS', 'this machine')!r}: {reason(error)}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _origins(data: Predictions) -> list[Origin]:
    """The files for workers to read, by their full paths."""
    if data.decimals is not None:
        raise InputError(
            "normalise must see the decimals of all rows before it changes any, which workers cannot; leave it out",
            flags={"normalise": "--normalise"},
        )
    shards = data.shards or (data,)
    if any(shard.origin is None for shard in shards):
        raise InputError("Ray's workers read files; give a path, or a ray.data.Dataset")
    return [
        # A remote file is fetched by the worker that reads it.
        Origin(Path(shard.source) if as_url(shard.source) else shard.origin.path.resolve(), shard.origin.wanted)
        for shard in shards
        if shard.origin is not None
    ]


def _together(data: Predictions) -> Iterator[list[Origin]]:
    """The files of each task: small ones together, large ones in parts."""
    some: list[Origin] = []
    rows = 0
    for origin, shard in zip(_origins(data), data.shards or (data,), strict=True):
        parts = _parts(origin, shard.n)
        for part in parts:
            some.append(part)
            rows += shard.n // len(parts)
            if rows >= TASK_ROWS:
                yield some
                some, rows = [], 0
    if some:
        yield some


def _parts(origin: Origin, n: int) -> list[Origin]:
    """A large .parquet file in parts; a remote file, and one of another format, as a whole."""
    if n < 2 * TASK_ROWS or origin.path.suffix.lower() != ".parquet" or as_url(origin.path):
        return [origin]
    m = min(n // TASK_ROWS, n_row_groups(origin.path))
    return [origin._replace(wanted=replace(origin.wanted, part=(i, m))) for i in range(m)]


def _run(
    task: Callable[..., Any], calls: Sequence[tuple[Any, ...]], progress: Progress = no_progress, what: str = ""
) -> Iterator[Any]:
    """What the tasks return, in the order of the calls. At any time only a few tasks wait for each processor."""
    remote = ray.remote(task)
    most = WAITING * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[Any] = deque()
    remaining = iter(calls)
    try:
        for done in range(1, len(calls) + 1):
            waiting.extend(remote.remote(*call) for call in islice(remaining, most + 1 - len(waiting)))
            yield _value(ray.get(waiting.popleft()))
            progress(done, len(calls), what)
    except ray.exceptions.RayError as error:
        raise TemperanceError(f"a task was lost on the Ray cluster: {reason(error)}") from error
    finally:
        for each in waiting:
            ray.cancel(each)
        if waiting:
            # Running tasks must have stopped before their folder is removed.
            ray.wait(list(waiting), num_returns=len(waiting), timeout=STOP_SECONDS)


def _value(returned: Any) -> Any:
    if isinstance(returned, Failed):
        raise returned.error()
    return returned
