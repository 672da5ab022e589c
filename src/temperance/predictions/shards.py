"""A folder of files, or the files that match a pattern, as one set of predictions: one file after the other."""

import glob
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from temperance.errors import FileError
from temperance.predictions.checks import excerpt
from temperance.predictions.core import Extras, Predictions
from temperance.predictions.remote import as_url, is_hidden, remote_paths
from temperance.predictions.rows import Chunk, regrouped


def files_in(path: Path, suffixes: Sequence[str]) -> list[Path] | None:
    """The files of a folder and of its sub-folders, or those that match a pattern, sorted; None if this is one file."""
    url = as_url(path)
    if url is not None:
        found = remote_paths(url)
        if found is None:
            return None
    elif path.is_dir():
        inside = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix())
        found = [file for file in inside if not is_hidden(file.relative_to(path))]
    elif glob.has_magic(str(path)) and not path.exists():
        found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
    else:
        return None
    files = [file for file in found if (url or file.is_file()) and suffix_of(file, suffixes)]
    if not files:
        what = "is a folder without a file" if path.is_dir() else "matches no file"
        raise FileError(f"{path} {what} of predictions; the formats are {', '.join(suffixes)}")
    return files


def shard_paths(path: Path, suffixes: Sequence[str]) -> list[Path] | None:
    """The files of a folder or a pattern, all of one format because they are one set; None if this is one file."""
    files = files_in(path, suffixes)
    kinds = {suffix_of(file, suffixes): file for file in files or ()}
    if len(kinds) > 1:
        names, suffix = excerpt(file.name for file in kinds.values()), next(iter(kinds))
        deep = "**/" * any(file.parent != path for file in kinds.values())
        one = path.with_suffix(suffix or "") if glob.has_magic(path.name) else f"{path}/{deep}*{suffix}"
        raise FileError(f"{path} has files of different formats ({names}); choose with a pattern, in quotes: '{one}'")
    return files


def suffix_of(path: Path, suffixes: Sequence[str]) -> str | None:
    """The format of a file, by its name."""
    return next((suffix for suffix in suffixes if path.name.lower().endswith(suffix)), None)


def joined(source: Path | str, shards: Sequence[Predictions]) -> Predictions:
    """Predictions in several files; rows are read file by file, and errors name the file."""
    first = shards[0]
    for shard in shards[1:]:
        _check_same(first, shard)
    starts = [0, *accumulate(shard.n for shard in shards)]

    def read(rows: int) -> Iterator[Chunk]:
        return regrouped((chunk for shard in shards for chunk in shard.chunks(rows)), rows)

    def images() -> npt.NDArray[np.int64]:
        found, first = [], 0
        for shard in shards:
            assert shard._images is not None
            found.append(first + shard._images())
            first = int(found[-1].max()) + 1
        return np.concatenate(found)

    def place(row: int) -> str:
        i = bisect_right(starts, row) - 1
        return f"{shards[i]._place(row - starts[i])} of {shards[i].source}"

    return replace(
        first,
        source=str(source),
        n=starts[-1],
        origin=None,
        shards=tuple(shards),
        space=first.space if all(shard.space == first.space for shard in shards) else (),
        _read=read,
        _place=place,
        _images=None if first._images is None else images,
        other_split=next((shard.other_split for shard in shards if shard.other_split), None),
    )


def _check_same(one: Predictions, other: Predictions) -> None:
    """Refuse files that cannot be parts of one set."""
    said = {
        "kind": (f"{one.kind}", f"{other.kind}"),
        "k": (f"{one.k} classes", f"{other.k} classes"),
        "class_names": tuple(f"the classes {excerpt(each.class_names or ())}" for each in (one, other)),
        "has_labels": tuple("labels" if each.has_labels else "no labels" for each in (one, other)),
        "has_groups": tuple("groups" if each.has_groups else "no groups" for each in (one, other)),
        "has_weights": tuple("weights" if each.has_weights else "no weights" for each in (one, other)),
        "of_pixels": tuple("the pixels of images" if each.of_pixels else "samples (n, k)" for each in (one, other)),
        "split": tuple(f"a {each.split} set" if each.split else "one set" for each in (one, other)),
        "calibrated_by": tuple(f"predictions calibrated by {each.calibrated_by or 'nothing'}" for each in (one, other)),
    }
    for attribute, (here, there) in said.items():
        if getattr(one, attribute) != getattr(other, attribute):
            raise FileError(
                f"files of one set must be alike: {one.source} has {here}, but {other.source} has {there}; "
                "leave one out with a pattern, or correct it",
                flags={", or correct it": ", correct it, or take each file by itself with --each"},
            )


def joined_extras(extras: Sequence[Extras], shards: Sequence[Predictions]) -> Extras:
    """What several files hold besides their predictions: rows one after the other, anything else once."""
    found: Extras = {}
    for name in extras[0]:
        if any(name not in each for each in extras):
            raise FileError(f"{name} is not in every file, so one file cannot hold it; write a folder")
        arrays = [each[name] for each in extras]
        if all(
            array.shape[:1] == (shard.n // math.prod(shard.space),) for array, shard in zip(arrays, shards, strict=True)
        ):
            found[name] = np.concatenate(arrays)
        elif all(np.array_equal(arrays[0], array) for array in arrays):
            found[name] = arrays[0]
        else:
            raise FileError(f"{name} differs from file to file, so one file cannot hold it; write a folder")
    return found
