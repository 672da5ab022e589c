"""The samples to fit on, the samples to measure on, and how they were chosen."""

from pathlib import Path
from typing import Any

from temperance.arrays import no_weight
from temperance.errors import InputError, plural
from temperance.predictions import Predictions, read_pair, read_predictions
from temperance.predictions.given import Set


def fit_and_test(fit: Set, test: Set | None, seed: int, **how: Any) -> tuple[Predictions, Predictions, str]:
    """The part to fit on, the part to measure on, and words that say how they were chosen."""
    if test is not None:
        fit_part = counting(fit) if isinstance(fit, Predictions) else read_for_fitting(fit, **how)
        test_part = counting(test if isinstance(test, Predictions) else read_predictions(test, **how))
        _check_pair(fit_part, test_part)
        return (
            fit_part,
            test_part,
            f"fitted on {plural(fit_part.n_counted, fit_part.row_name)}, measured on {test_part.n_counted:,} others",
        )
    whole = fit if isinstance(fit, Predictions) else read_predictions(fit, **how)
    if not isinstance(fit, Predictions) and whole.other_split is not None:
        return own_parts(fit, **how)
    whole = counting(whole)
    first, second = whole.halves(seed)
    what = "its images split at random" if whole.of_pixels else "split at random"
    return (
        first,
        second,
        f"{what}: fitted on {plural(first.n_counted, whole.row_name)}, measured on the other {second.n_counted:,}",
    )


def own_parts(path: str | Path, **how: Any) -> tuple[Predictions, Predictions, str]:
    """The val and the test part of a file that has both, and words that say so."""
    val, held_out = map(counting, read_pair(path, **how))
    _check_pair(val, held_out)
    fitted, measured = (plural(part.n_counted, f"{part.split} {part.row_name}") for part in (val, held_out))
    return val, held_out, f"fitted on its {fitted}, measured on its {measured}"


def read_for_fitting(path: str | Path, **how: Any) -> Predictions:
    """The predictions of a file that count; if it holds two sets, those to fit on."""
    found = read_predictions(path, **how)
    return counting(found if found.split is None else read_predictions(path, "val", **how))


def _check_pair(fit: Predictions, test: Predictions) -> None:
    if fit.has_weights != test.has_weights:
        only = "fit" if fit.has_weights else "test"
        raise InputError(f"either both sets must have weights, or neither; only the {only} set has them")
    if fit.kind != test.kind and (fit.answers or test.answers):
        raise InputError(f"both sets must be answers, or neither; got {fit.kind} and {test.kind}")
    if fit.multilabel != test.multilabel:
        raise InputError("both sets must have several labels for each sample, or neither; only one of them has")
    if fit.multilabel and len(fit.label_names) != len(test.label_names):
        fitted, given = len(fit.label_names), len(test.label_names)
        raise InputError(f"the two sets must have the same labels; got {fitted} and {given}")
    if fit.k != test.k:
        raise InputError(f"the two sets must have the same classes; got {fit.k} and {test.k}")
    for j, (one, other) in enumerate(zip(fit.class_names or (), test.class_names or (), strict=False)):
        if one != other:
            classes, which = ("labels", "label") if fit.multilabel else ("classes", "class")
            raise InputError(
                f"the two sets must have the same {classes}; {which} {j} is {one!r} in one, {other!r} in the other"
            )
    if fit.fingerprint == test.fingerprint:
        raise InputError(
            "the two sets are the same; a calibrator must be measured on samples that it was not fitted on"
        )


def counting(data: Predictions) -> Predictions:
    """The rows that count: where there are weights, those whose weight is above 0."""
    weights = data.weights if data.has_weights else None
    if weights is None or bool((weights > 0).all()):
        return data
    if not bool(weights.any()):
        with data.located():
            raise no_weight()
    return data.select(weights > 0)


def counted(n: int, row_name: str, *, weights: bool) -> str:
    """The number of rows in words; with weights: 950 samples with weights above 0."""
    return f"{plural(n, row_name)}{' with weights above 0' * weights}"
