"""Labels as class numbers: numbers of any type, one-hot rows, class names, the two labels of a binary classifier."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import class_numbers, flatten, to_tensor, whole_numbers
from temperance.errors import InputError
from temperance.predictions.checks import CORRECT, Positive, Wanted, excerpt

# The label of a sample that has none.
NO_LABEL = -1

# How text says whether an answer is right.
RIGHT = dict.fromkeys(("true", "right", "correct", "yes", "1", "1.0"), 1)
RIGHT |= dict.fromkeys(("false", "wrong", "incorrect", "no", "0", "0.0"), 0)

Values = Tensor | npt.NDArray[Any]


def no_labels(n: int) -> Tensor:
    """The labels of samples that have none. (n,)"""
    return torch.full((n,), NO_LABEL)


def label_rows(labels: Values, shape: tuple[int, ...]) -> Values:
    """Labels that go with scores (n, k, *space), one for each row (n · space,); one-hot ones are (n · space, k)."""
    if len(shape) == 2:
        return labels
    return flatten(to_tensor(labels, "labels")) if tuple(labels.shape) == shape else labels.reshape(-1)


def label_numbers(
    labels: Values,
    scores: Tensor,
    class_names: tuple[str, ...] | None,
    wanted: Wanted,
    *,
    first_row: int = 0,
) -> Tensor:
    """Labels as int64 class numbers (n,) for scores (n, k); text is looked up among the class names.

    A number outside 0 … k − 1 is not a class of this model; it is refused later, by measuring and fitting.
    """
    if wanted.answers:
        return _is_right(labels, wanted.ignore_index, first_row).to(scores.device)
    if wanted.multilabel:
        return _applies(labels, wanted.ignore_index, first_row).to(scores.device)
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "U" and class_names is not None:
        return looked_up(labels.reshape(-1), class_names, first_row)
    if wanted.positive is not None:
        return _is_positive(labels, wanted.positive, wanted.ignore_index, first_row).to(scores.device)
    return class_numbers(labels, tuple(scores.shape), first_row=first_row)


def looked_up(labels: npt.NDArray[Any], class_names: tuple[str, ...], first_row: int = 0) -> Tensor:
    """The index of each label (n,) among the class names."""
    number_of = places_among(class_names)
    names, place = np.unique(labels, return_inverse=True)
    numbers = np.array([number_of(name) for name in names.tolist()], dtype=np.int64)[place.reshape(-1)]
    if (numbers < 0).any():
        row = int((numbers < 0).argmax())
        raise unknown_label(str(labels[row]), first_row + row, class_names)
    return torch.from_numpy(numbers)


def places_among(class_names: tuple[str, ...]) -> Callable[[str], int]:
    """A function that gives the index of a label among the class names, or NO_LABEL.

    Where the classes are `not spam` and `spam`, every label but spam belongs to the first; not Spam, which means spam.
    """
    known = {name: i for i, name in enumerate(class_names)}
    if len(class_names) != 2 or class_names[0] != f"not {class_names[1]}":
        return lambda label: known.get(label, NO_LABEL)
    unclear = {"", class_names[1].strip().casefold()}
    return lambda label: known.get(label, NO_LABEL if label.strip().casefold() in unclear else 0)


def unknown_label(label: str, row: int, class_names: tuple[str, ...] | None) -> InputError:
    """The error for a label that is neither a class number nor a class name."""
    if not label:
        return InputError(f"row {row} has no label; fill it in, or leave the row out", row=row)
    names = f" or one of the class names {excerpt(class_names)}" if class_names else ", since the classes have no names"
    came = f"row {row} has {excerpt([repr(label)])}"
    return InputError(f"labels must be class numbers{names}; {came}{_pattern(label, class_names or ())}", row=row)


def _pattern(label: str, class_names: tuple[str, ...]) -> str:
    """What to do about columns such as `prob cat` where the label is cat."""
    for before in (name.removesuffix(label) for name in class_names if label and name.endswith(label)):
        if before and all(name.startswith(before) for name in class_names):
            classes = excerpt([name.removeprefix(before) for name in class_names])
            return f". Name the columns by a pattern, '{before}*', and the classes are {classes}"
    return ""


def _is_right(labels: Values, ignore_index: int | None, first_row: int) -> Tensor:
    """1 for a right answer, 0 for a wrong one, and ignored ones as they are. (n,)"""
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "U":
        words, place = np.unique(labels.reshape(-1), return_inverse=True)
        known = [RIGHT.get(word.strip().lower(), NO_LABEL) for word in words.tolist()]
        numbers = torch.from_numpy(np.array(known, np.int64)[place.reshape(-1)])
    else:
        numbers = whole_numbers(to_tensor(labels, CORRECT).reshape(-1), first_row)
    other = (numbers != 0) & (numbers != 1)
    if ignore_index is not None:
        other &= numbers != ignore_index
    if bool(other.any()):
        row = int(other.nonzero()[0])
        raise InputError(
            f"{CORRECT} must be 1 for a right answer and 0 for a wrong one, or true and false; row {first_row + row} "
            f"has {excerpt([repr(labels.reshape(-1)[row].item())])}",
            row=first_row + row,
        )
    return numbers


def _applies(labels: Values, ignore_index: int | None, first_row: int) -> Tensor:
    """1 for a label that applies, 0 for one that does not, and unknown ones as they are. (n · L,)"""
    given = to_tensor(labels, "labels").reshape(-1)
    missing = given.isnan()
    if bool(missing.any()):
        row, mark = first_row + int(missing.nonzero()[0]), -1 if ignore_index is None else ignore_index
        remedy = f" and pass ignore_index={mark}"
        raise InputError(
            f"labels must be 1 where a label applies and 0 where it does not; row {row} has nan. If that means that "
            f"this is unknown, write {mark} in its place{remedy if ignore_index is None else ''}",
            row=row,
            flags={remedy: f" and add --ignore-index {mark}"},
        )
    numbers = whole_numbers(given, first_row)
    other = (numbers != 0) & (numbers != 1)
    if ignore_index is not None:
        other &= numbers != ignore_index
    if bool(other.any()):
        row = int(other.nonzero()[0])
        found = int(numbers[row])
        remedy = f"pass ignore_index={found}"
        unknown = f". If {found} means that this is unknown, {remedy}" if ignore_index is None else ""
        raise InputError(
            f"labels must be 1 where a label applies and 0 where it does not; row {first_row + row} has {found}"
            f"{unknown}",
            row=first_row + row,
            flags={remedy: f"add --ignore-index {found}"},
        )
    return numbers


def _is_positive(labels: Values, positive: Positive, ignore_index: int | None, first_row: int) -> Tensor:
    """1 for the positive label, 0 for the others, and ignored ones as they are. (n,)"""
    if ignore_index in (0, 1):
        raise InputError(
            f"ignore_index={ignore_index} is one of the classes 0 and 1 of a binary classifier; mark rows without a "
            "label by another number",
            flags={f"ignore_index={ignore_index}": f"--ignore-index {ignore_index}"},
        )
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "U":
        some = excerpt([repr(label) for label in np.unique(labels)[:3].tolist()])
        raise InputError(
            f"labels are text ({some}): name the positive one, positive=…", flags={"positive=…": "--positive LABEL"}
        )
    numbers = whole_numbers(to_tensor(labels, "labels").reshape(-1), first_row)
    if isinstance(positive, str):
        raise InputError(
            f"positive={positive!r} is text, but the labels are numbers; name one of these",
            flags={f"positive={positive!r}": f"--positive {positive}"},
        )
    is_positive = numbers == positive
    is_ignored = torch.zeros_like(is_positive) if ignore_index is None else numbers == ignore_index
    if positive == 1:
        other = ~(is_positive | is_ignored | (numbers == 0) | (numbers == -1))
        if bool(other.any()):
            row = int(other.nonzero()[0])
            label = int(numbers[row])
            raise InputError(
                f"labels of a binary classifier must be 1 and 0, or 1 and -1; row {first_row + row} has {label}. "
                f"If another label is the positive one, name it: positive={label}",
                row=first_row + row,
                flags={f"positive={label}": f"--positive {label}"},
            )
    return numbers.where(is_ignored, is_positive.long())
