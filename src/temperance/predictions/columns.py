"""Tables (.parquet and .csv): which columns hold scores, labels, groups and weights, and which hold anything else."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from temperance.arrays import SEVERAL_LABELS
from temperance.errors import InputError
from temperance.predictions.checks import (
    CONFIDENCE,
    CORRECT,
    MARK,
    ColumnNames,
    Wanted,
    as_class_names,
    excerpt,
    is_whole_number,
    only_one,
)
from temperance.predictions.core import Origin, Predictions
from temperance.predictions.dense import image_numbers
from temperance.predictions.rows import Chunk


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table of predictions: `scores` is one column of lists, or one column for each class."""

    name: str  # what errors call the scores: logits, probs or confidence
    scores: tuple[str, ...]
    is_list: bool
    labels: str | None
    groups: tuple[str, ...]
    mark: str | None
    class_names: tuple[str, ...] | None
    weights: str | None
    label_columns: tuple[str, ...] = ()  # of several labels, a column for each in the order of the scores

    @property
    def from_logits(self) -> bool:
        return self.name == "logits"

    @property
    def used(self) -> list[str]:
        """The columns of the predictions, each once: that of the labels can also be one of groups."""
        named = (name for name in (self.labels, self.weights) if name is not None)
        return list(dict.fromkeys([*self.scores, *self.label_columns, *self.groups, *named]))

    def others(self, names: Iterable[str]) -> list[str]:
        """The columns to carry over: those that are not predictions, and those of which each combination is a group."""
        joined = set(self.groups) - {self.labels, self.weights} if len(self.groups) > 1 else set()
        return [name for name in names if name in joined or (name not in self.used and name != self.mark)]

    def opened(
        self,
        path: Path,
        wanted: Wanted,
        class_names: tuple[str, ...] | None,
        n: int,
        k: int,
        *,
        read: Callable[[int], Iterator[Chunk]],
        place: Callable[[int], str],
        marks: Iterable[str],
        space: tuple[int, ...] = (),
    ) -> Predictions:
        """The predictions of a table with these columns; `read` gives its rows, `marks` are its calibrators' names.

        `space` is (L,) where each of its n lines has L labels, each of which is a row.
        """
        return Predictions(
            str(path),
            None,
            self.from_logits,
            n * math.prod(space),
            k,
            has_labels=self.labels is not None or bool(self.label_columns),
            has_groups=bool(self.groups) or wanted.multilabel,
            class_names=class_names,
            calibrated_by=", ".join(sorted(filter(None, marks))) or None,
            origin=Origin(path, wanted),
            _read=read,
            _place=place,
            has_weights=self.weights is not None,
            space=space,
            _images=image_numbers(n, space),
            answers=wanted.answers,
            multilabel=wanted.multilabel,
            grouped_by=self.groups,
        )


def find_columns(names: Iterable[str], wanted: Wanted) -> TableColumns:
    """The columns of the predictions: `logits_0 … logits_{k-1}`, or `logits_<class name>`; `label`; perhaps `group`
    and `weight`.

    Or `probs` in place of `logits`. Classes are in the order of their numbers, or of the columns if they have names. A
    binary classifier has one column of scores, `logits` or `logits_<anything>`; answers have `confidence` and
    `correct`.
    """
    known = list(names)
    if wanted.split is not None:
        raise InputError(
            f"a table holds one set of predictions, not a {wanted.split} set next to another; leave out the split, or "
            "keep val_ and test_ sets in a .npz or .safetensors file",
            flags={"the split": "--split"},
        )
    if len(set(known)) < len(known):
        twice = next(name for i, name in enumerate(known) if name in known[:i])
        raise InputError(f"the column {excerpt([repr(twice)])} occurs more than once; keep one")
    own = wanted.columns
    what, scores = _score_columns(known, wanted) if own.scores is None else (wanted.own_kind, own.matching(known))
    if wanted.multilabel:
        return _label_columns(known, what, scores, wanted)
    labels = None
    if wanted.labels != "ignored":
        labels = own.named(known, "label") or only_one(known, *wanted.label_names)
    if not scores or (labels is None and wanted.labels == "required"):
        raise _missing(known, scores, wanted)
    is_list, class_names = False, None
    if wanted.one_score:
        if len(scores) > 1:
            given, flag = ("answers=True", "--answers") if wanted.answers else ("positive=…", "--binary")
            one = "the confidence of answers" if wanted.answers else f"{what}, the score of the positive class"
            raise InputError(f"{given} means one column of {one}; found {excerpt(scores)}", flags={given: flag})
    elif (own.scores or what) in scores:
        is_list = True
        if len(scores) > 1:
            other = next(name for name in scores if name != what)
            raise InputError(f"there is both the column {what} and {other}; keep the lists or the single columns")
    else:
        scores, class_names = _in_order(what, scores, own)
    groups = own.groups(known, "group", "groups")
    weights = own.named(known, "weight") or only_one(known, "weight", "weights")
    mark = MARK if MARK in known else None
    return TableColumns(what, tuple(scores), is_list, labels, groups, mark, class_names, weights)


def _label_columns(known: list[str], what: str, scores: list[str], wanted: Wanted) -> TableColumns:
    """The columns of several labels: a column of scores for each, and a column `label_<name>` of 0 and 1."""
    own = wanted.columns
    if not scores:
        raise _missing(known, scores, wanted)
    if scores in ([what], [own.scores]):
        raise InputError(f"several labels have a column each, {what}_NAME and label_NAME; {scores[0]} is one column")
    ordered, names = _in_order(what, scores, own)
    weights = own.named(known, "weight") or only_one(known, "weight", "weights")
    truth: list[str] = []
    if wanted.labels != "ignored":
        pattern = own.label or "label_*"
        if pattern.count("*") == 1:
            truth = [pattern.replace("*", name) for name in names or map(str, range(len(ordered)))]
        else:
            truth = [name.strip() for name in pattern.split(",")]
        missing = [name for name in truth if name not in known]
        if len(truth) != len(ordered) or (missing and (wanted.labels == "required" or len(missing) < len(truth))):
            came = (
                f"there is no column {missing[0]!r}" if missing else f"there are {len(truth)} for {len(ordered)} labels"
            )
            remedy = 'name yours by a pattern, columns={"label": "y_*"}'
            raise InputError(
                f"several labels need a column of 0 and 1 beside each of {excerpt(ordered)}; {came}. Found "
                f"{excerpt(known)}; {remedy}",
                flags={remedy: "name yours by a pattern, --label 'y_*'"},
            )
        truth = [] if missing else truth
    mark = MARK if MARK in known else None
    return TableColumns(what, tuple(ordered), False, None, (), mark, names, weights, tuple(truth))


def _missing(known: list[str], scores: list[str], wanted: Wanted) -> InputError:
    """What a table would need, and how to name columns that have other names."""
    needed = wanted.labels == "required"
    if scores and not wanted.answers and any(name.startswith("label_") for name in known):
        own = flag = ". If a sample can have several labels, pass multilabel=True"
        expected = f"expected the column {wanted.label_names[0]} beside {excerpt(scores)}"
    elif scores:
        own, flag = '. Name yours with columns={"label": NAME}', ". Name yours with --label NAME"
        expected = f"expected the column {wanted.label_names[0]} beside {excerpt(scores)}"
    elif wanted.answers:
        own = '. Name yours with columns={"probs": NAME' + ', "label": NAME' * needed + "}"
        flag = f". Name yours with --probs NAME{' --label NAME' * needed}"
        expected = f"expected the columns {CONFIDENCE} and {CORRECT}" if needed else f"expected the column {CONFIDENCE}"
    elif {CONFIDENCE, CORRECT} <= set(known) and wanted.labels != "ignored":
        own, flag = (f". If these are a model's answers, {how}" for how in ("pass answers=True", "add --answers"))
        expected = f"expected a column of logits or probs for each class{', and label' * needed}"
    elif wanted.multilabel:
        own = '. Name yours by a pattern, columns={"probs": "p_*"' + ', "label": "y_*"' * needed + "}"
        flag = ". Name yours by a pattern, --probs 'p_*'" + " --label 'y_*'" * needed
        beside = ", and a column label_NAME beside it" * needed
        expected = f"expected a column probs_NAME (or logits_NAME) for each label{beside}"
    else:
        stem = "" if wanted.one_score else _stem(known)
        names, pattern = (f'"{stem}*"', f"'{stem}*'") if stem else ("NAMES", "NAMES")
        unnamed = needed and not set(wanted.label_names) & set(known)
        columns = f'{{"logits": {names}' + ', "label": NAME' * unnamed + "}"
        own = f'. Name yours with columns={columns}, or "probs" for "logits"'
        flag = f". Name yours with --logits {pattern}{' --label NAME' * unnamed}, or --probs for --logits"
        several = "the columns logits_0, logits_1, … (or probs_0, probs_1, …), one for each class"
        one = "the column logits (or probs), the score of the positive class"
        expected = f"expected {several if wanted.positive is None else one}{', and label' * needed}"
    return InputError(
        f"{expected}; found {excerpt(known)}{_hint(known, wanted) or own}", flags={own: flag} | SEVERAL_LABELS
    )


def _stem(known: list[str]) -> str:
    """What most columns begin with, before a class: `p_` of p_cat, p_dog and id; empty if no two begin alike.

    >>> _stem(["id", "p_cat", "p_dog", "label"]), _stem(["id", "class1", "class2"]), _stem(["cat", "dog", "label"])
    ('p_', 'class', '')
    """
    found = Counter(start[0] for name in known if (start := re.match(r".+?([_\-. :]|(?=\d+$))", name)))
    stem, times = max(found.items(), key=lambda each: each[1], default=("", 0))
    return stem if times > 1 else ""


def _hint(known: list[str], wanted: Wanted) -> str:
    if len(known) == 1 and "\t" in known[0]:
        return ". Cells are separated by tabs: call the file .tsv"
    if len(known) == 1 and "," in known[0]:
        return ". Cells are separated by commas: call the file .csv"
    if len(known) == 1 and (";" in known[0] or "|" in known[0]):
        return ". Cells must be separated by commas, and decimals need a point"
    stripped = [name.strip() for name in known]
    if _usual(stripped, wanted) > _usual(known, wanted):
        return ". Remove the spaces around names"
    lower = [name.lower() for name in stripped]
    return ". Names must be in lower case" if _usual(lower, wanted) > _usual(known, wanted) else ""


def _usual(known: list[str], wanted: Wanted) -> int:
    """How many of these columns need not be named."""
    names = (*wanted.kinds, *wanted.label_names)
    return sum(name in names or name.startswith(("logits_", "probs_")) for name in known)


def _score_columns(known: list[str], wanted: Wanted) -> tuple[str, list[str]]:
    """Whether these are logits, probs or a confidence, and their columns."""
    if wanted.answers:
        return CONFIDENCE, [name for name in known if name == CONFIDENCE]
    logits, probs = (
        [name for name in known if name == what or name.startswith(f"{what}_")] for what in ("logits", "probs")
    )
    if logits and probs:
        raise InputError(f"there is both {logits[0]} and {probs[0]}; keep logits or probs, or name those to read")
    return ("logits", logits) if logits else ("probs", probs)


def _in_order(what: str, columns: list[str], own: ColumnNames) -> tuple[list[str], tuple[str, ...] | None]:
    """The columns of scores in the order of their classes or labels, and the names of these, if they have any."""
    if own.scores is not None:
        return _in_own_order(columns, own)
    return _in_class_order({column: column.removeprefix(f"{what}_") for column in columns})


def _in_own_order(columns: list[str], own: ColumnNames) -> tuple[list[str], tuple[str, ...] | None]:
    """The caller's columns in the order of their classes; a pattern's star stands for the class."""
    pattern = own.scores or ""
    if len(columns) == 1:
        raise InputError(
            f"{own.kind} {pattern!r} matches one column, {columns[0]}; a classifier has one for each class, at least "
            "two. If it is the score of a binary classifier's positive class, pass positive=1",
            flags={"pass positive=1": "add --binary"},
        )
    if "," in pattern:
        return columns, as_class_names(columns)
    if "[" in pattern or "?" in pattern or pattern.count("*") > 1:
        return _in_class_order({column: column for column in columns})
    before, after = pattern.split("*")
    return _in_class_order({column: column.removeprefix(before).removesuffix(after) for column in columns})


def _in_class_order(classes: dict[str, str]) -> tuple[list[str], tuple[str, ...] | None]:
    """The columns in the order of their classes, which have numbers or names."""
    columns = list(classes)
    numbered = [column for column in columns if is_whole_number(classes[column])]
    if not numbered:
        return columns, as_class_names(classes.values())
    if len(numbered) < len(columns):
        other = next(column for column in columns if column not in numbered)
        raise InputError(
            f"classes have numbers or names, not both: {excerpt([numbered[0]])} and {excerpt([other])}; rename one"
        )
    ordered = sorted(columns, key=lambda column: int(classes[column]))
    if [int(classes[column]) for column in ordered] != list(range(len(columns))):
        raise InputError(
            f"classes must be numbered 0 … {len(columns) - 1}; found {excerpt(ordered)}. "
            "If these are class names, keep them as class_names in a .npz, .safetensors or .parquet file"
        )
    return ordered, None


class NewColumn(NamedTuple):
    """A column of a table with new predictions: an old column, or one with new values."""

    name: str
    kind: Literal["old", "score", "scores", "label", "mark"]
    old: str = ""
    of_class: int = 0


def with_new_scores(
    names: Iterable[str], columns: TableColumns, wanted: Wanted, predictions: Predictions
) -> list[NewColumn]:
    """The columns of a table whose scores are replaced; all others stay where they are."""
    what, classes = predictions.kind, predictions.class_names or tuple(map(str, range(predictions.k)))
    found = []
    for name in names:
        if name in columns.scores and wanted.answers:
            found.append(NewColumn(name, "score", of_class=1))
        elif name in columns.scores and wanted.multilabel:
            j = columns.scores.index(name)
            found.append(NewColumn(f"{what}_{predictions.label_names[j]}", "score", of_class=j))
        elif name in columns.scores and columns.is_list and not isinstance(wanted.positive, str):
            found.append(NewColumn(what, "scores"))
        elif name in columns.scores and wanted.positive is not None:
            found += [NewColumn(f"{what}_{each}", "score", of_class=j) for j, each in enumerate(classes)]
        elif name in columns.scores:
            j = columns.scores.index(name)
            is_usual = name.startswith(f"{columns.name}_")
            each = name.removeprefix(f"{columns.name}_") if is_usual else (columns.class_names or classes)[j]
            found.append(NewColumn(f"{what}_{each}", "score", of_class=j))
        elif name == columns.labels and wanted.renumbers:
            found.append(NewColumn(name, "label"))
        elif name != columns.mark:
            found.append(NewColumn(name, "old", old=name))
    found += [] if predictions.calibrated_by is None else [NewColumn(MARK, "mark")]
    new = {column.name for column in found if column.kind != "old"}
    for column in found:
        if column.kind == "old" and column.name in new:
            raise InputError(f"the column {column.old} collides with a new one; rename or remove it")
    return found


def label_columns(predictions: Predictions) -> list[str]:
    """The columns of labels: one, or one for each of several labels; none without labels."""
    if not predictions.has_labels:
        return []
    if predictions.multilabel:
        return [f"label_{each}" for each in predictions.label_names]
    return [predictions.label_name]


def class_columns(predictions: Predictions) -> tuple[str, ...]:
    """The columns of scores: `probs_` and the name of each class, or its number; the confidence of answers is one."""
    if predictions.answers:
        return (CONFIDENCE,)
    numbers = tuple(map(str, range(len(predictions.label_names) if predictions.multilabel else predictions.k)))
    classes = predictions.class_names or numbers
    if classes != numbers and any(map(is_whole_number, classes)):
        raise InputError(
            f"class names that are numbers, like {next(filter(is_whole_number, classes))!r}, cannot be told from class "
            "numbers in column names; write .parquet, .npz or .safetensors"
        )
    return tuple(f"{predictions.kind}_{each}" for each in classes)
