"""The edge: lists, NumPy arrays, data frames and tensors become checked tensors here, once, and nowhere else.

Callers say what they have (`as_logits`, `as_probs`, `from_logits=True`); nothing is guessed from the values. Below the
edge everything is torch and trusted. Dense predictions (n, k, *space) with labels (n, *space) become rows.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.compiled import RowExtremes, row_extremes
from temperance.errors import InputError, NothingCountsError
from temperance.numerics import bounds
from temperance.settings import of_kind, plain

ArrayLike: TypeAlias = Tensor | npt.ArrayLike

# How far a row of probabilities may be from summing to one. Generous enough for values rounded to four decimals in a
# text file, far too small for logits, scores or independent (multilabel) probabilities to pass.
SUM_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3, torch.float64: 1e-3}

# A probability of zero counts as this in logarithms. Logits need no such floor.
LOG_FLOOR = 1e-12

# What a group whose name is empty is called.
NO_NAME = "(no name)"

# The usual marks of pixels and tokens without a label: in masks, and in torch.
NO_LABEL = (255, -100)

# What the command line says where several labels are meant: a command that cannot take them has no such option.
SEVERAL_LABELS = {
    "pass multilabel=True": "add --multilabel",
    ", pass multilabel=True": ", use evaluate, compare, fit or apply, which can take them",
}

# Repeating rows by their weights may make at most this many.
MOST_REPEATED = 1 << 26

# Rows are taken in blocks of about this many values, so that the passes over a block after the first find it in cache.
BLOCK_VALUES = {"cpu": 1 << 19, "cuda": 1 << 26}

# The same for blocks that are read a dozen times or more, which should stay in the cache of one core.
CORE_BLOCK_VALUES = {"cpu": 1 << 17, "cuda": 1 << 26}


def to_tensor(values: ArrayLike, name: str) -> Tensor:
    """Any array as a detached tensor on its own device, without a copy where possible."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_meta:
            raise InputError(f"{name} must be a dense tensor with values; got {values.layout} on {values.device}")
        return values.detach()
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        hint = ". Predictions.of takes class names: pass class_names too" if name == "labels" else ""
        raise InputError(f"{name} must be an array of numbers; got dtype {array.dtype}{hint}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        # A read-only array (a memory-mapped file) is fine here: nothing writes to its input.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)


def combination_names(columns: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    """The names of combinations of text (n, c), such as "Female & White"; an empty text has a word. (n,)"""
    names, *others = np.where(columns == "", NO_NAME, columns).T
    found: npt.NDArray[np.str_] = names
    for each in others:
        found = np.char.add(np.char.add(found, " & "), each)
    return found


def as_array(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Lists, NumPy arrays and data frames as a NumPy array, of numbers or text where possible."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(f"{name} has masked values; leave out these rows, or fill them: {name}.filled(…)")
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} must be a rectangular array; its rows differ in length") from None
    except (TypeError, RuntimeError):
        # A list of tensors that NumPy cannot read: on a GPU, or with a gradient.
        raise InputError(f"{name} must be an array; make one of a list of tensors with torch.stack") from None
    # A column of a data frame may hold numbers or text as Python objects.
    kinds = (str, bool, int, float, np.number, np.bool_)
    if array.dtype.kind == "O" and all(isinstance(value, kinds) for value in array.flat):
        array = np.array(array.tolist())
    return array


def as_scores(values: ArrayLike, name: str) -> Tensor:
    """Logits or probabilities as a float tensor (n, k) or (n, k, *space); the values are not checked yet."""
    scores = to_tensor(values, name)
    if scores.ndim == 1:
        raise one_column(name, shape_of(scores)) if scores.is_floating_point() else as_labels_are(name, len(scores))
    if scores.ndim < 2:
        raise InputError(f"{name} must have shape (n, k) or (n, k, ...); got shape {shape_of(scores)}")
    if not scores.is_floating_point():
        if scores.dtype == torch.bool or scores.is_complex():
            raise InputError(f"{name} must be floating-point numbers; got {scores.dtype}")
        scores = scores.double()
    if scores.dtype not in SUM_TOLERANCE:
        scores = scores.float()
    if scores.numel() == 0:
        raise InputError(f"{name} is empty: its shape is {shape_of(scores)}")
    return scores


def one_column(name: str, shape: tuple[int, ...], *, or_else: str = "") -> InputError:
    """The error for scores of a single class, as binary classifiers give them; it says how to make two columns."""
    pair = "[0 * z, z]" if name.endswith("logits") else "[1 - p, p]"
    both = f"numpy.stack({pair}, axis=1)" if len(shape) == 1 else f"numpy.concatenate({pair}, axis=1)"
    remedy = f"stack both columns: {both}{or_else}"
    return InputError(
        f"{name} must have a row for each sample and a column for each class; got shape {shape}. "
        f"For a binary classifier {remedy}",
        flags={remedy: "add --binary"},
    )


def as_labels_are(name: str, n: int) -> InputError:
    """The error for whole numbers in place of scores, as where predictions and labels change places."""
    remedy = "give predictions first, then labels"
    return InputError(
        f"{name} must have a row for each sample and a column for each class; got {n:,} whole numbers, as labels are: "
        f"{remedy}",
        flags={remedy: "store scores under this name"},
    )


def as_labels(
    labels: ArrayLike,
    scores: Tensor,
    *,
    ignore_index: int | None = None,
    name: str = "logits",
    first_row: int = 0,
) -> Tensor:
    """Labels as int64 class numbers that fit `scores`, on its device; `ignore_index` is allowed, too.

    `name` is what errors call the scores, `first_row` what they count rows from.
    """
    if ignore_index is not None:
        of_kind("ignore_index", plain(ignore_index), int)
    checked = class_numbers(labels, shape_of(scores), first_row=first_row).to(scores.device)
    k = scores.shape[1]
    low, high = bounds(checked)
    if low >= 0 and high < k:
        return checked
    wrong = (checked < 0) | (checked >= k)
    if ignore_index is not None:
        wrong &= checked != ignore_index
    if bool(wrong.any()):
        if k == 1:
            raise one_column(name, shape_of(scores))
        counted = checked if ignore_index is None else checked[checked != ignore_index]
        hint, flags = "", {}
        low, high = bounds(checked[wrong])
        if bounds(counted) == (1, k):
            hint = ". They seem to count from 1: subtract 1"
        elif low == high and low in NO_LABEL and ignore_index is None:
            remedy = f"pass ignore_index={low}"
            hint, flags = f". If {low} means no label, {remedy}", {remedy: f"add --ignore-index {low}"}
        raise _at(wrong, first_row, f"labels must lie in 0 … {k - 1} for {k} classes", checked, hint, flags)
    return checked


def as_weights(weights: ArrayLike, shape: tuple[int, ...], *, first_row: int = 0) -> Tensor:
    """Weights, one for each label (n, *space), as float64: finite and at least 0. Same shape."""
    given = to_tensor(weights, "weights")
    if given.ndim == len(shape) + 1 and given.shape[-1] == 1:
        given = given.squeeze(-1)
    if given.shape != shape:
        raise InputError(f"weights must have shape {shape}, one for each label; got {shape_of(given)}")
    if given.is_complex():
        raise InputError(f"weights must be numbers of at least 0; got {given.dtype}")
    given = given.double()
    wrong = ~(torch.isfinite(given) & (given >= 0))
    if bool(wrong.any()):
        raise _at(wrong, first_row, "weights must be finite numbers of at least 0", given)
    return given


def no_weight() -> NothingCountsError:
    """The error if no row has a weight above 0."""
    return NothingCountsError("every weight is 0: there is nothing to measure. At least one must be above 0")


def repeated_rows(name: str, weights: Tensor, remedy: str) -> Tensor:
    """Each row's index, repeated by its weight, a whole number; errors name the method. (n,) → (Σ w,)"""
    if (size := float(weights.sum())) > MOST_REPEATED:
        raise InputError(
            f"{name} counts samples one by one, and these weights stand for {size:.3g} of them, which is too many. "
            f"{remedy}"
        )
    return torch.repeat_interleave(weights.long())


def class_numbers(labels: ArrayLike, shape: tuple[int, ...], *, first_row: int = 0) -> Tensor:
    """Labels as int64 (n, *space) for scores of shape (n, k, *space): whole numbers of any type, or one-hot rows.

    The numbers are not checked against k.
    """
    given = to_tensor(labels, "labels")
    n, k, *space = shape
    if given.shape == shape and k > 1:
        given = from_one_hot(given, first_row)
    elif given.ndim == len(space) + 2 and given.shape[1] == 1 and given.shape[0] == n:
        given = given.squeeze(1)
    if given.shape != (n, *space):
        raise InputError(f"labels must have shape {(n, *space)} to fit predictions {shape}; got {shape_of(given)}")
    return whole_numbers(given, first_row)


def whole_numbers(labels: Tensor, first_row: int = 0) -> Tensor:
    """Labels of any type as int64, if they are whole numbers. Same shape."""
    if labels.is_complex():
        raise InputError(f"labels must be class numbers; got {labels.dtype}")
    if labels.dtype == torch.uint64 and bool((labels.view(torch.int64) < 0).any()):
        raise _at(labels.view(torch.int64) < 0, first_row, "labels must be class numbers, below 2^63", labels)
    if labels.is_floating_point():
        labels = labels.double()
        # Written so that NaN fails; float64 holds every whole number up to this one.
        whole = (labels == labels.round()) & (labels.abs() <= 1 << 53)
        if not bool(whole.all()):
            raise _at(~whole, first_row, "labels must be class numbers, which are integers", labels)
    return labels.to(torch.int64)


def from_one_hot(labels: Tensor, first_row: int = 0) -> Tensor:
    """The class numbers (n, *space) of one-hot labels (n, k, *space); anything else of this shape is refused."""
    is_one = labels == 1
    soft = ~(is_one | (labels == 0))
    if bool(soft.any()):
        row = int(soft.nonzero()[0, 0])
        some = ", ".join(f"{value:.4g}" for value in labels[row].reshape(-1)[:4].tolist())
        remedy = "pass labels.argmax(1)"
        raise InputError(
            f"labels must be one class for each sample; row {first_row + row} has shares of several ({some}, …). "
            f"Soft labels can be trained on, but not measured or calibrated against; {remedy} if that is what you mean",
            row=first_row + row,
            flags={remedy: "store labels.argmax(1)"},
        )
    count = is_one.sum(1)
    if not bool((count == 1).all()):
        place = tuple((count != 1).nonzero()[0].tolist())
        row = first_row + place[0]
        raise InputError(
            f"labels must be one class for each sample; row {row} has {int(count[place])} ones. "
            "If a sample can have several labels, pass multilabel=True",
            row=row,
            flags=SEVERAL_LABELS,
        )
    return is_one.to(torch.uint8).argmax(1)


def _at(
    wrong: Tensor, first_row: int, expected: str, labels: Tensor, hint: str = "", flags: Mapping[str, str] | None = None
) -> InputError:
    """The error for the first wrong label or weight, with its place."""
    place = tuple(int(i) for i in wrong.nonzero()[0])
    row = first_row + place[0] if len(place) == 1 else None
    where = f"position {place}" if row is None else f"row {row}"
    return InputError(f"{expected}; {where} has {labels[place].item()}{hint}", row=row, flags=flags)


def check_probs(rows: Tensor, labels: Tensor | None = None, *, first_row: int = 0, tolerance: float) -> RowExtremes:
    """The extremes of rows, after making sure that every row is a probability distribution."""
    found = row_extremes(rows, labels)
    # Written so that NaN fails: every comparison with it is false.
    if found.low >= -1e-6 and 1 - found.lightest <= tolerance and found.heaviest - 1 <= tolerance:
        return found
    refuse_non_finite(rows, "probs", first_row)
    total = rows.sum(1, dtype=torch.float64)
    bad = ((rows.amin(1) < -1e-6) | ((total - 1).abs() > tolerance)).nonzero()
    if not len(bad):
        return found  # only the sum in the rows' own dtype was off
    if rows.shape[1] == 1:
        raise one_column("probs", shape_of(rows))
    i = int(bad[0])
    what = f"contains {float(rows[i].amin()):.4g}" if float(rows[i].amin()) < 0 else f"sums to {float(total[i]):.6g}"
    hint = "If these are logits, pass from_logits=True"
    rounding = min(max(1, rows.shape[1] / 2), 5)  # of percentages without decimals
    if bool((rows >= 0).all()) and bool(((total - 100).abs() <= rounding).all()):
        hint = "If these are percentages, divide them by 100"
    elif bool(((rows >= 0) & (rows <= 1)).all()):
        hint += (
            ". If they are rounded, divide each row by its sum. "
            "Independent probabilities, one sigmoid for each class, are not a distribution over classes"
        )
    raise InputError(
        f"probs must be rows of non-negative numbers that sum to 1; row {first_row + i} {what}. {hint}",
        row=first_row + i,
        flags={
            "pass from_logits=True": "store them under the name logits, or name them with --logits",
            "divide each row by its sum": "add --normalise",
        },
    )


def check_logits(rows: Tensor, first_row: int = 0) -> None:
    """Make sure that no logit is NaN or infinite."""
    low, high = rows.aminmax()
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        refuse_non_finite(rows, "logits", first_row)


def refuse_non_finite(rows: Tensor, name: str, first_row: int = 0) -> None:
    """Raise, naming the place, if any value is NaN or infinite."""
    bad = ~torch.isfinite(rows)
    if bool(bad.any()):
        i, j = (int(v) for v in bad.nonzero()[0])
        value = float(rows[i, j])
        hint = "; give the log of a zero probability as a large negative number" if value == -math.inf else ""
        row = first_row + i
        raise InputError(f"{name} must be finite; row {row}, class {j} is {value}{hint}", row=row)


def refuse_probs(logits: Tensor, remedy: str) -> None:
    """Refuse probabilities: as logits they would be silently wrong. A single row may sum to 1 by chance."""

    def are_probs(rows: Tensor) -> bool:
        return bool(rows.amin() >= 0) and bool(((rows.sum(1) - 1).abs() <= 1e-4).all())

    # The first few rows nearly always decide it.
    if len(logits) > 1 and are_probs(logits[:8]) and are_probs(logits):
        raise InputError(
            f"these logits are probabilities (rows sum to 1): {remedy}",
            flags={remedy: "store them under the name probs, or name them with --probs"},
        )


def as_logits(values: ArrayLike) -> Tensor:
    """Logits as a checked float tensor (n, k) or (n, k, *space)."""
    logits = as_scores(values, "logits")
    check_logits(flatten(logits))
    return logits


def as_probs(values: ArrayLike) -> Tensor:
    """Probabilities as a checked float tensor (n, k) or (n, k, *space)."""
    probs = as_scores(values, "probs")
    check_probs(flatten(probs), tolerance=SUM_TOLERANCE[probs.dtype])
    return probs


def checked_logits(scores: Tensor, *, from_logits: bool, first_row: int = 0) -> Tensor:
    """Checked rows of logits, or of log-probabilities made from probabilities: a calibrator treats them alike."""
    step = block_rows(scores.shape[1], scores.device)
    for start in range(0, len(scores), step):
        rows = scores[start : start + step]
        if from_logits:
            check_logits(rows, first_row + start)
        else:
            check_probs(rows, first_row=first_row + start, tolerance=SUM_TOLERANCE[scores.dtype])
    return scores if from_logits else log_probs(scores)


def log_probs(probs: Tensor) -> Tensor:
    """Probabilities as float64 log-probabilities.

    A zero counts as `LOG_FLOOR`, as in the metrics, or as the smallest positive probability if that is smaller. Counted
    as the smallest float64, it would outweigh everything else in a fit.
    """
    values = probs.double()
    return values.clamp_min(float(values.where(values > 0, LOG_FLOOR).min().clamp_max(LOG_FLOOR))).log()


def flatten(scores: Tensor) -> Tensor:
    """(n, k, *space) as rows (n · space, k)."""
    return scores if scores.ndim == 2 else scores.movedim(1, -1).reshape(-1, scores.shape[1])


def unflatten(rows: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `flatten` for predictions of this shape; rows may have any number of columns."""
    return rows if len(shape) == 2 else rows.reshape(shape[0], *shape[2:], -1).movedim(-1, 1)


def block_rows(width: int, device: torch.device, values: Mapping[str, int] = BLOCK_VALUES) -> int:
    """How many rows of `width` values make a block; `values` gives its size for each type of device."""
    return max(1, values.get(device.type, values["cpu"]) // width)


def blocks(scores: Tensor, labels: Tensor, *, step: int | None = None) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Rows and labels in blocks that stay in cache, or of `step` samples, each with the index of its first sample."""
    found = weighted_blocks(scores, labels, None, step=step)
    return ((rows, y, start) for rows, y, _, start in found)


def weighted_blocks(
    scores: Tensor, labels: Tensor, weights: Tensor | None, *, ignore_index: int | None = None, step: int | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor | None, int]]:
    """As `blocks`, without ignored labels and with weights where there are weights."""
    if step is None:
        step = block_rows(scores[0].numel(), scores.device)
    for start in range(0, len(scores), step):
        rows, y = flatten(scores[start : start + step]), labels[start : start + step].reshape(-1)
        w = None if weights is None else weights[start : start + step].reshape(-1)
        if ignore_index is not None and bool((y == ignore_index).any()):
            keep = y != ignore_index
            rows, y, w = rows[keep], y[keep], None if w is None else w[keep]
        if len(y):
            yield rows, y, w, start


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
