"""Checks of a set of predictions: shapes and types, before any value is read."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import as_labels_are, one_column
from temperance.errors import InputError
from temperance.settings import of_kind, one_of, plain

Text = npt.NDArray[np.str_]

# Whether a file must have labels or may have them, or whether its labels are not read and may be anything.
Labels = Literal["required", "optional", "ignored"]

# The label of the positive class of a binary classifier.
Positive = int | str

# The key, column or metadata entry that says which calibrator made a file's probabilities.
MARK = "calibrated_by"

# Errors list at most this many names.
MOST_NAMES = 12

# The columns or keys that a caller can name.
COLUMNS = ("logits", "probs", "label", "group", "weight")


@dataclass(frozen=True)
class ColumnNames:
    """The caller's own names of columns or keys.

    Scores may also be a pattern, `logit_*`, or a list, `no,maybe,yes`; groups may be a list, `sex,race`.
    """

    logits: str | None = None
    probs: str | None = None
    label: str | None = None
    group: str | None = None
    weight: str | None = None

    @classmethod
    def of(cls, names: Mapping[str, str] | None) -> "ColumnNames":
        """The names as they are given in Python: {"logits": "logit_*", "label": "y"}."""
        if not isinstance(names, Mapping | None):
            raise InputError(f'columns must be a dictionary, such as {{"label": "y"}}; got {names!r}')
        for key, name in (names or {}).items():
            one_of("columns", key, COLUMNS)
            if not isinstance(name, str) or not name:
                raise InputError(f"columns must give the name of a column for each key; {key} is {name!r}")
        found = cls(**(names or {}))
        if found.logits is not None and found.probs is not None:
            raise InputError(
                f"columns must name logits or probs, not both; got {found.logits} and {found.probs}",
                flags={"columns must name": "name"},
            )
        return found

    @property
    def scores(self) -> str | None:
        """The name, pattern or list of the scores."""
        return self.logits or self.probs

    @property
    def kind(self) -> str:
        return "probs" if self.probs else "logits"

    def under(self, prefix: str, known: list[str]) -> "ColumnNames":
        """The names of one of several sets: each with the set's prefix, where there is such a key."""

        def of_set(name: str) -> str:
            return prefix + name if prefix + name in known else name

        named = {key: name for key, name in vars(self).items() if name is not None}
        return replace(self, **{key: ",".join(map(of_set, _listed(name, known))) for key, name in named.items()})

    def named(self, known: list[str], what: str) -> str | None:
        """The column that the caller named as label or weight, if one was named."""
        name: str | None = getattr(self, what)
        if name is not None:
            _check_known([name], known, what)
        return name

    def groups(self, known: list[str], *usual: str) -> tuple[str, ...]:
        """The columns of the groups: those that the caller named, else the one with a usual name; or none."""
        if self.group is None:
            found = only_one(known, *usual)
            return () if found is None else (found,)
        names = _listed(self.group, known)
        _check_known(names, known, "group")
        return tuple(dict.fromkeys(names))

    def matching(self, known: list[str]) -> list[str]:
        """The columns of scores that the caller asked for, in the order of a list, else in that of the file."""
        wanted = self.scores or ""
        if wanted in known:
            return [wanted]
        if "," in wanted:
            found = _listed(wanted, known)
            _check_known(found, known, self.kind)
            return found
        others = (self.label, self.weight, *_listed(self.group or "", known))
        found = [name for name in known if fnmatchcase(name, wanted) and name not in others]
        if not found:
            hint = "" if "*" in wanted else f". A pattern has a star: {wanted}*"
            raise InputError(
                f"no column matches {self.kind} {wanted!r}; found {excerpt(known)}{hint}",
                flags={f"matches {self.kind}": f"matches --{self.kind}"},
            )
        return found


def _listed(names: str, known: list[str]) -> list[str]:
    """The names in a list with commas; a known name that has a comma itself is one name."""
    return [names] if names in known else [name.strip() for name in names.split(",")]


def _check_known(names: list[str], known: list[str], what: str) -> None:
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise InputError(f"there is no column {missing!r} for {what}; found {excerpt(known)}")


# What answers are called in files: how sure the model is of each, and whether it is right.
CONFIDENCE, CORRECT = "confidence", "correct"

# What a calibrator that was fitted on answers calls its two classes, and one that was fitted on several labels.
ANSWER_CLASSES = ("wrong", "right")
LABEL_CLASSES = ("does not apply", "applies")


@dataclass(frozen=True)
class Wanted:
    """How the caller wants a file to be read; see `read_predictions`.

    answers     one score for each row, the confidence in an answer; its label says whether the answer is right
    multilabel  a score for each label of a sample, (n, L), and 0 or 1 for each: does the label apply?
    part        (i, m): the i-th of m parts of a .parquet file, in which case only its row groups are read
    """

    split: str | None = None
    labels: Labels = "required"
    positive: Positive | None = None
    columns: ColumnNames = ColumnNames()
    ignore_index: int | None = None
    part: tuple[int, int] = (0, 1)
    answers: bool = False
    multilabel: bool = False

    @property
    def renumbers(self) -> bool:
        """Are labels written as 0 and 1, because the positive label of a binary classifier is a number?"""
        return isinstance(self.positive, int)

    @property
    def one_score(self) -> bool:
        """Does a row have one score: that of the positive class, the confidence in an answer, or that of a label?"""
        return self.positive is not None or self.answers or self.multilabel

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the scores may be called."""
        return (CONFIDENCE,) if self.answers else ("logits", "probs")

    @property
    def own_kind(self) -> str:
        """What the scores are that the caller named."""
        return CONFIDENCE if self.answers else self.columns.kind

    @property
    def label_names(self) -> tuple[str, ...]:
        """What the labels may be called."""
        return (CORRECT,) if self.answers else ("label", "labels")

    def __post_init__(self) -> None:
        of_kind("ignore_index", plain(self.ignore_index), int | None)
        if self.ignore_index is not None and not -(1 << 63) <= self.ignore_index < 1 << 63:
            raise InputError(
                f"ignore_index must be a label, which is less than 2^63; got {self.ignore_index}",
                flags={"ignore_index": "--ignore-index"},
            )
        if (self.answers or self.multilabel) and self.positive is not None:
            raise InputError(
                f"{'answers' if self.answers else 'several labels'} have no positive class: leave out positive",
                flags={"leave out positive": "leave out --binary and --positive"},
            )
        if self.answers and self.multilabel:
            raise InputError(
                "predictions are answers or have several labels, not both: leave out answers or multilabel",
                flags={"leave out answers or multilabel": "leave out --answers or --multilabel"},
            )
        if self.multilabel and self.ignore_index in (0, 1):
            raise InputError(
                f"ignore_index={self.ignore_index} says whether a label applies; mark unknown ones by another number",
                flags={f"ignore_index={self.ignore_index}": f"--ignore-index {self.ignore_index}"},
            )
        if self.answers and self.columns.logits is not None:
            raise InputError(
                "answers have a confidence between 0 and 1, not logits; name its column as probs",
                flags={"name its column as probs": "name its column with --probs"},
            )


@dataclass(frozen=True)
class Described:
    """What a file says about an array: its shape, NumPy's letter for its kind, and its type as the format names it."""

    shape: tuple[int, ...]
    kind: str
    dtype: str


def described(values: Tensor | npt.NDArray[Any]) -> Described:
    """The description of an array in memory."""
    if isinstance(values, Tensor):
        kinds = {torch.bool: "b"} | dict.fromkeys((torch.uint8, torch.uint16, torch.uint32, torch.uint64), "u")
        other = "f" if values.is_floating_point() else "c" if values.is_complex() else "i"
        return Described(tuple(values.shape), kinds.get(values.dtype, other), str(values.dtype).removeprefix("torch."))
    return Described(values.shape, values.dtype.kind, str(values.dtype))


def check_set(
    name: str,
    scores: Described,
    labels: Described | None,
    groups: Sequence[Described],
    class_names: tuple[str, ...] | None,
    wanted: Wanted,
    weights: Described | None = None,
) -> tuple[int, int, tuple[int, ...]]:
    """Check that these arrays can be one set of samples; return the numbers of samples and classes, and the space.

    The space is () for scores (n, k), (h, w) for those of every pixel, (n, k, h, w), and (L,) for those of L labels.
    """
    if scores.kind not in "fiu":
        raise InputError(f"{name} must be floating-point numbers; got {scores.dtype}")
    if len(scores.shape) == 1 and scores.kind in "iu" and not wanted.one_score:
        raise as_labels_are(name, *scores.shape)
    n, k, space = _shape(name, scores.shape, wanted)
    if 0 in (n, k, *space):
        raise InputError(f"{name} must have at least one row and one column; got shape {scores.shape}")
    if labels is not None:
        _check_labels(labels, name, scores.shape, (n, k, *space), class_names, wanted)
    check_groups(groups, n, name)
    if weights is not None:
        of_rows = (n,) if wanted.multilabel else (n, *space)
        if weights.shape != of_rows:
            each = "pixel" if len(of_rows) > 1 else "row"
            raise InputError(f"weights must have shape {of_rows}, one for each {each} of {name}; got {weights.shape}")
        if weights.kind not in "fiub":
            raise InputError(f"weights must be numbers of at least 0; got {weights.dtype}")
    columns = space[0] if wanted.multilabel else k
    if class_names is not None and len(class_names) != columns:
        raise InputError(
            f"class_names must have {columns} names, one for each column of {name}; got {len(class_names)}"
        )
    return n, k, space


def columns_of(groups: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """The columns of groups (n, c), such as sex and race, or the only one (n,)."""
    return list(groups.T) if groups.ndim == 2 and groups.size else [groups]


def check_groups(groups: Iterable[Described], n: int, name: str) -> None:
    """Check that these columns can be groups of n samples; `name` is that of the scores."""
    for each in groups:
        if each.shape != (n,):
            raise InputError(f"groups must have shape {(n,)}, one for each row of {name}; got {each.shape}")
        if each.kind not in "Uiub":
            raise InputError(
                f"groups must be text or integers; got {each.dtype}. Pass groups.astype(str)",
                flags={"Pass groups": "Store groups"},
            )


def _shape(name: str, shape: tuple[int, ...], wanted: Wanted) -> tuple[int, int, tuple[int, ...]]:
    """The numbers of samples and classes, and the space."""
    if not shape:
        raise InputError(f"{name} must have shape (n, k), or (n, k, h, w) for every pixel; got {shape}")
    if wanted.multilabel:
        if len(shape) != 2:
            raise InputError(f"{name} of several labels must have shape (n, L), a column for each label; got {shape}")
        return shape[0], 2, shape[1:]
    if wanted.one_score:
        if len(shape) == 2 and shape[1] != 1:
            if wanted.answers:
                raise InputError(f"answers have one {name} each, so it must have shape {shape[:1]}; got {shape}")
            raise InputError(
                f"positive=… means that {name} is one column, the score of the positive class; got shape {shape}",
                flags={"positive=…": "--binary"},
            )
        return shape[0], 2, shape[2:] if shape[1:2] == (1,) else shape[1:]
    if len(shape) == 1 or shape[1] == 1:
        raise one_column(name, shape, or_else=", or pass positive=1")
    return shape[0], shape[1], shape[2:]


def _check_labels(
    labels: Described,
    name: str,
    given: tuple[int, ...],
    shape: tuple[int, ...],
    class_names: tuple[str, ...] | None,
    wanted: Wanted,
) -> None:
    """Check labels against scores of the shape `given`, which stand for predictions of `shape`, (n, k, *space)."""
    n, k, *space = shape
    if wanted.multilabel and (labels.shape != given or labels.kind not in "biuf"):
        raise InputError(
            f"labels must be 0 and 1 for each label of each sample, in the shape {given} of {name}; got {labels.dtype} "
            f"of shape {labels.shape}"
        )
    is_one_hot = labels.shape == shape and labels.kind in "biuf" and not wanted.one_score
    if labels.shape not in ((n, *space), (n, 1, *space)) and not is_one_hot:
        if space and labels.shape == given[:-1]:
            remedy = f"pass numpy.moveaxis({name}, -1, 1)"
            raise InputError(
                f"{name} must have shape (n, k, *space), with the classes in the second axis; got {given}, and labels "
                f"{labels.shape} say that the classes are last: {remedy}",
                flags={remedy: remedy.replace("pass", "store")},
            )
        if not space and labels.shape == (k,) and k > n:
            remedy = f"pass {name}.T"
            raise InputError(
                f"{name} must have a row for each sample and a column for each class; got shape {shape}, and labels "
                f"{labels.shape} say that rows and columns are swapped: {remedy}",
                flags={remedy: remedy.replace("pass", "store")},
            )
        each = ", a label for each pixel," if space else ""
        raise InputError(f"labels must have shape {(n, *space)}{each} to fit predictions {shape}; got {labels.shape}")
    if labels.kind == "U":
        if class_names is None and not wanted.one_score:
            of_arrays = " (Predictions.of takes them)"
            raise InputError(
                f"labels are text, but there are no class names to match them; give class_names too{of_arrays}, or "
                "numbers",
                flags={of_arrays: ""},
            )
    elif labels.kind == "S":
        raise InputError("labels are bytes; store them as text, which NumPy's labels.astype(str) makes of them")
    elif labels.kind not in "biuf":
        raise InputError(f"labels must be class numbers; got {labels.dtype}")


def as_class_names(names: Iterable[Any]) -> tuple[str, ...]:
    """Class names as distinct, non-empty strings."""
    # A string would pass as a sequence of one-letter names.
    given = [names] if isinstance(names, str) else list(names)
    if not given or not all(isinstance(name, str) and name for name in given):
        raise InputError(f"class_names must be non-empty strings, one for each class; got {excerpt(map(repr, given))}")
    found = tuple(np.array(given, dtype=np.str_).tolist())
    if len(set(found)) < len(found):
        twice = next(name for i, name in enumerate(found) if name in found[:i])
        raise InputError(f"class_names must be distinct; {excerpt([repr(twice)])} occurs more than once")
    return found


def as_positive(value: object) -> Positive | None:
    """The label of the positive class: a whole number, true or false, or text."""
    if value is None or (isinstance(value, str) and value):
        return value
    try:
        whole = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        whole = None
    if whole is None or whole != value:
        raise InputError(f"positive must be a label, a whole number or text; got {value!r}")
    return int(whole)


def binary_names(names: tuple[str, ...] | None, wanted: Wanted) -> tuple[str, ...] | None:
    """The class names; where the positive label of a binary classifier is text, it names both. Answers have none."""
    positive = wanted.positive
    if not isinstance(positive, str):
        return None if wanted.answers else names
    if names is not None and names[1:] != (positive,):
        raise InputError(
            f"the positive class {positive!r} must be the second of class_names; got {excerpt(names)}. "
            "Correct or remove them"
        )
    return names or (f"not {positive}", positive)


def only_one(known: Iterable[str], *names: str) -> str | None:
    """The spelling of a name that is known, if any; two known spellings are refused."""
    found = [name for name in names if name in known]
    if len(found) > 1:
        raise InputError(f"there is both {found[0]} and {found[1]}; keep one, or name the one to read")
    return found[0] if found else None


def names_from_json(name: str, text: str | bytes) -> list[str]:
    """A list of names from a file's metadata."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
        raise InputError(f"{name} in the metadata must be a JSON list of strings")
    return names


def as_number(text: str) -> float | None:
    """The number that a text spells, an int if possible. Unlike Python, other programs do not read 1_000 as a number.

    >>> as_number("12"), as_number("1e3"), as_number("1_000")
    (12, 1000.0, None)
    """
    kinds: tuple[Callable[[str], float], ...] = () if "_" in text else (int, float)
    for kind in kinds:
        with suppress(ValueError):
            return kind(text)
    return None


def is_whole_number(text: str) -> bool:
    """Is this a number written without a point or an exponent?"""
    return isinstance(as_number(text), int)


def excerpt(names: Iterable[str]) -> str:
    """Names as a sentence lists them: a long list is cut short, and so is a long name, which a broken file can have.

    >>> excerpt(["", "cat", "dog"])
    "'', cat, dog"
    """
    known = [f"{name[:40]}…" if len(name) > 40 else name or "''" for name in names]
    rest = f", … ({len(known)} in all)" if len(known) > MOST_NAMES else ""
    return ", ".join(known[:MOST_NAMES]) + rest if known else "nothing"
