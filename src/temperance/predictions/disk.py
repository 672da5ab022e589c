"""Reading and writing files of predictions; the suffix names the format."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from temperance.errors import FileError, InputError
from temperance.files import PathLike, atomic_folder, atomic_write, check_new_folder, check_writable, reading
from temperance.predictions import csv, held, npz, parquet, records, safetensors
from temperance.predictions.checks import MARK, ColumnNames, Labels, Positive, Wanted, as_positive
from temperance.predictions.core import Extras, Origin, Predictions
from temperance.predictions.dense import refuse_none, without
from temperance.predictions.keyed import keyed_label
from temperance.predictions.labels import places_among
from temperance.predictions.remote import as_url, local_copy
from temperance.predictions.shards import files_in, joined, joined_extras, shard_paths, suffix_of
from temperance.settings import of_kind, one_of


class Format(Protocol):
    """The functions of a format's module."""

    def read(self, path: Path, wanted: Wanted) -> Predictions: ...

    def write(self, path: Path, predictions: Predictions, extras: Extras) -> None: ...

    def extras(self, origin: Origin) -> Extras:
        """What a file holds besides its predictions."""
        ...

    def rewrite(self, origin: Origin, path: Path, predictions: Predictions) -> None:
        """Write a copy of a file of this format, with these predictions in place of its own."""
        ...


FORMATS: dict[str, Format] = {
    ".npz": npz,
    ".safetensors": safetensors,
    ".parquet": parquet,
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), csv),
    **dict.fromkeys((".jsonl", ".json"), records),
    **dict.fromkeys(held.SUFFIXES, held),
}


# Tables that other programs write and that are not read.
TABLES = (".xlsx", ".xls", ".ods", ".txt", ".feather", ".dta", ".sav")


def read_predictions(
    path: PathLike,
    split: str | None = None,
    *,
    labels: Labels = "required",
    positive: Positive | None = None,
    normalise: bool = False,
    columns: Mapping[str, str] | None = None,
    ignore_index: int | None = None,
    answers: bool = False,
    multilabel: bool = False,
) -> Predictions:
    """Open a file of predictions; its rows stay in the file until they are needed.

    The file has `logits` or `probs`, `labels`, and optionally `class_names`, `groups` and `weights`. A .npz or
    .safetensors file may have two such sets instead, with `val_` and `test_` before these names; `split` ("val" or
    "test") chooses one, by default the test set. The folder of a training run stands for the predictions in it.

    Any other folder, and a pattern such as "part-*.parquet", stand for all their files as one set, sub-folders
    included, sorted by name. With fsspec all of these may be URLs, such as s3://bucket/predictions/.

    Dense arrays, (n, k, h, w) with labels (n, h, w), become rows, a few images at a time.

    labels        "required"; "optional": read them if there are any (see `has_labels` of the result); "ignored"
    positive      for a binary classifier with one column, the logit or probability of this label; usually positive=1
    normalise     accept probabilities that were rounded; see `Predictions.normalised`
    columns       your own names of columns or keys, {"logits": "logit_*", "label": "y"}; keys are logits, probs, label,
                  group and weight. The value for scores is a name, a pattern, or a list with commas in the order of the
                  classes; that for group may be a list, "sex,race": the groups are their combinations
    ignore_index  leave out rows with this label, such as unlabelled pixels
    answers       the file has a model's answers: `confidence`, between 0 and 1, and whether each is `correct`. Name
                  other columns as probs and label
    multilabel    a sample can have several labels: `probs` or `logits` (n, L), and `labels` (n, L) of 0 and 1, which
                  say whether each applies; `class_names` are the names of the labels. A row is one label of a sample,
                  and its group is the label's name
    """
    path = _of_run(Path(path))
    of_kind("labels", labels, Labels)
    if labels == "ignored" and ignore_index is not None:
        raise InputError("labels are not read here, so no row can be left out by its label: leave out ignore_index")
    if split is not None:
        one_of("split", split, ("val", "test"))
    wanted = Wanted(
        split,
        labels,
        as_positive(positive),
        ColumnNames.of(columns),
        ignore_index,
        answers=answers,
        multilabel=multilabel,
    )
    paths = shard_paths(path, tuple(FORMATS))
    files = [read_file(each, wanted) for each in ([path] if paths is None else paths)]
    if ignore_index is not None:
        # Files whose labels are all ignored are left out; without any others they are refused.
        files = [file for file in files if file.n] or files[:1]
    found = files[0] if paths is None else joined(as_url(path) or path, files)
    if ignore_index is not None:
        refuse_none(found, ignore_index)
    return found.normalised() if normalise else found


def read_file(path: Path, wanted: Wanted) -> Predictions:
    """Open one file; the result's `origin` is enough to open it again, perhaps in another process."""
    url = as_url(path)
    if url is not None:
        return replace(read_file(local_copy(url), wanted), source=url)
    with reading(path):
        found = _format_of(path).read(path, wanted)
        return found if wanted.ignore_index is None else without(found, wanted.ignore_index)


def _of_run(path: Path) -> Path:
    """The file of predictions, if this is the folder of a training run."""
    inside = path / "predictions.npz"
    return inside if inside.is_file() else path


def each_file(paths: Iterable[PathLike]) -> list[Path]:
    """Every file of predictions by itself: named files, and those in folders or matched by patterns.

    In the folder of a training run only the predictions count.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        inside = files_in(_of_run(path), tuple(FORMATS))
        found += (
            [_of_run(path)]
            if inside is None
            else [file for file in inside if _of_run(file.parent) in (file, file.parent)]
        )
    return found


def read_pair(path: PathLike, **how: Any) -> tuple[Predictions, Predictions]:
    """The val_ and the test_ set of a file that holds both: one to fit, one to measure what was fitted.

    `how` is passed on to `read_predictions`.
    """
    val, test = (read_predictions(path, split, **how) for split in ("val", "test"))
    return val, test


def check_output(path: PathLike) -> None:
    """Refuse a path that predictions cannot be written to, before any work is done."""
    if is_folder_name(path):
        check_new_folder(path)
    else:
        check_writable(path)
        if _format_of(path) is held:
            raise FileError(f"{path} cannot be written: {held.ONLY_READ}")


def is_folder_name(path: PathLike) -> bool:
    """Is this the name of a folder, with a file for each file that is read? File names have a suffix."""
    return not Path(path).suffix or Path(path).is_dir()


def write_predictions(path: PathLike, predictions: Predictions) -> None:
    """Write predictions to a file, whole or not at all; reading them back gives the same values.

    Predictions that were read from a folder may be written as one, whose name has no suffix: a file for each, of the
    same name.

    All other contents of the file that they were read from are carried over. In the same format, every other column,
    key and entry keeps its value and its place. Contents that another format cannot hold are refused.

    Types may widen: a .csv has only float64, and bfloat16 becomes float32 in .npz and .parquet.
    """
    if is_folder_name(path):
        with shard_folder(path, predictions) as targets:
            for target, shard in zip(targets, predictions.shards, strict=True):
                _write_file(_format_of(target), target, shard)
        return
    chosen = _format_of(path)
    with atomic_write(path) as temporary:
        try:
            _write_file(chosen, temporary, predictions)
        except UnicodeEncodeError as error:
            raise InputError(f"{path} cannot be written: the name {error.object!r} is not valid Unicode") from None


def _write_file(chosen: Format, path: Path, predictions: Predictions) -> None:
    origin = predictions.origin
    _check_rows(chosen, predictions)
    if origin is not None and _format_of(origin.path) is chosen:
        chosen.rewrite(origin, path, predictions)
        return
    found = extras_of(predictions)
    read_as = Wanted(answers=predictions.answers, multilabel=predictions.multilabel)
    groups = () if predictions.multilabel else ("group", "groups")
    taken = (*read_as.kinds, *read_as.label_names, *groups, "weight", "weights", "class_names", MARK)
    for name in found:
        if name in taken:
            raise InputError(f"{name} collides with the new {name}; rename or remove it")
        if _is_table(chosen) and not predictions.answers and name.startswith(("logits_", "probs_")):
            raise InputError(f"{name} would be read as a column of scores; rename or remove it")
    chosen.write(path, predictions, _text_labels(predictions, chosen) | found)


def _check_rows(chosen: Format, predictions: Predictions) -> None:
    """Refuse rows that a file of this format cannot hold as they were read."""
    for read in filter(None, (part.origin for part in (predictions, *predictions.shards))):
        if read.wanted.ignore_index is not None:
            raise InputError(
                f"rows with the label {read.wanted.ignore_index} were left out, so the file cannot be written again. "
                "A row needs no label to be calibrated: read the file without ignore_index"
            )
    if predictions.multilabel and not predictions.space:
        raise InputError("some labels of these samples were left out, so there is no array of them to write")
    if predictions.shards and predictions.of_pixels and not predictions.space:
        raise InputError("images of different sizes are not one array; write a folder")
    if predictions.of_pixels and predictions.space and _is_table(chosen):
        raise InputError(
            "a table has a row for each sample, and these are arrays of pixels; write .npz or .safetensors"
        )


def _is_table(chosen: Format) -> bool:
    return chosen not in (npz, safetensors)


def extras_of(predictions: Predictions) -> Extras:
    """What files hold besides their predictions: every other array by name, rows in the order of the files."""
    shards = predictions.shards or (predictions,)
    extras = [_format_of(shard.origin.path).extras(shard.origin) for shard in shards if shard.origin is not None]
    return joined_extras(extras, shards) if extras else {}


def _text_labels(predictions: Predictions, chosen: Format) -> Extras:
    """Labels that are text in the files that were read, under their name in a new file that can hold text."""
    shards = predictions.shards or (predictions,)
    origins = [shard.origin for shard in shards if shard.origin is not None]
    names = predictions.class_names
    numbers = chosen is safetensors or predictions.of_pixels or predictions.multilabel or not predictions.has_labels
    if numbers or names is None or not origins:
        return {}
    place, found = places_among(names), []
    for origin in origins:
        read = _format_of(origin.path).extras
        own = read(origin)
        every = read(origin._replace(wanted=replace(origin.wanted, labels="ignored")))
        (labels,) = (array for name, array in every.items() if name not in own)
        if labels.dtype.kind != "U" or any(place(label) < 0 for label in np.unique(labels).tolist()):
            return {}  # numbers, or some of them
        found.append(labels)
    return {keyed_label(predictions) if chosen is npz else predictions.label_name: np.concatenate(found)}


@contextmanager
def shard_folder(path: PathLike, predictions: Predictions) -> Iterator[list[Path]]:
    """A path for each file that was read, of the same name, in a folder that appears when the block ends."""
    if not predictions.shards:
        raise FileError(
            f"{path} must be a file in one of the formats {', '.join(FORMATS)}; only a folder is written as a folder"
        )
    sources = [Path(shard.source) for shard in predictions.shards]
    read = Path(predictions.source)
    base = read if read.is_dir() else Path(os.path.commonpath([source.parent for source in sources]))
    if Path(path).resolve().is_relative_to(base.resolve()):
        raise FileError(f"{path} is inside the folder that is read; name a folder outside it")
    with atomic_folder(path) as temporary:
        targets = [temporary / source.relative_to(base) for source in sources]
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        yield targets
        # Remove what a killed process left unfinished.
        for left in {file for file in temporary.rglob("*") if file.is_file()}.difference(targets):
            left.unlink()


def write_pair(path: PathLike, val: Predictions, test: Predictions) -> None:
    """Write the validation and the test set of one model to one .npz file, for `read_pair` and the command line."""
    if Path(path).suffix.lower() != ".npz":
        raise FileError(f"a pair of sets is written as .npz; got {path}")
    if val.class_names != test.class_names or val.k != test.k:
        raise InputError("the validation and the test set must have the same classes")
    with atomic_write(path) as temporary:
        npz.write_pair(temporary, val, test)


def _format_of(path: PathLike) -> Format:
    suffix = suffix_of(Path(path), tuple(FORMATS))
    if suffix is None:
        given = Path(path).suffix.lower()
        table = "; save the table as .csv" if given in TABLES else ""
        raise FileError(
            f"{path} must be a file in one of the formats {', '.join(FORMATS)}; its suffix is {given!r}{table}"
        )
    return FORMATS[suffix]
