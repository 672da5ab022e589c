"""What each decision costs if each class is the true one, and the decision that costs the least.

With probabilities p and costs C the expected cost of decision d is Σ_j p_j C[j, d]. With two classes it is a straight
line in the probability of the second, so the cheapest decision changes at fixed thresholds: with a cost of a for a
false alarm and m for a miss, act above a / (a + m).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, to_tensor
from temperance.errors import InputError, plural
from temperance.files import reading
from temperance.jobs.verdict import as_class
from temperance.predictions import Predictions
from temperance.predictions.checks import as_number, excerpt
from temperance.predictions.csv_parsing import lines_of
from temperance.predictions.frames import column_names
from temperance.settings import NonNegative, of_kind

CostsLike = str | Path | ArrayLike | Mapping[str, Mapping[str, float] | Sequence[float]]

LEAVE, ACT, USE, ABSTAIN = "do not act", "act", "use the answer", "abstain"
CLASS_COLUMNS = ("", "class", "label")  # heads of a first column that names the classes
BLOCK_VALUES = 1 << 22  # expected costs that are held at a time
ROUNDING = 1e-13  # expected costs that differ by less are equal, in units of the largest cost
FLAGS = {
    "false_alarm and miss": "--false-alarm and --miss",
    "false_alarm and abstain": "--false-alarm and --abstain",
    "costs=": "--costs FILE.csv",
}


class Stretch(NamedTuple):
    """The probabilities of the second of two classes for which a decision is the cheapest."""

    decision: int
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Costs:
    """What a decision costs if a class is the true one. (classes, decisions)

    said  the decisions are words of this module, which a sentence needs no verb for
    """

    values: Tensor
    classes: tuple[str, ...]
    decisions: tuple[str, ...]
    said: bool = False

    def __post_init__(self) -> None:
        n_decisions = self.values.shape[1]
        if not bool(self.values.isfinite().all()):
            row, column = (~self.values.isfinite()).nonzero()[0].tolist()
            raise InputError(
                f"every cost must be a finite number; that of {self.decisions[column]!r} for the class "
                f"{self.classes[row]!r} is {float(self.values[row, column])}"
            )
        if n_decisions < 2:
            raise InputError(f"the costs must have at least two decisions; got {excerpt(self.decisions)}")
        if len(set(self.decisions)) < n_decisions:
            twice = next(name for name in self.decisions if self.decisions.count(name) > 1)
            raise InputError(f"every decision must have a name of its own; {twice!r} is there twice")
        if bool((self.values == self.values[:, :1]).all()):
            raise InputError(
                "every decision costs the same whatever the class, so there is nothing to decide; correct the costs"
            )

    @cached_property
    def of_class(self) -> tuple[int, ...] | None:
        """The decision that stands for each class, if there is one for each: the one of its name."""
        if self.said:
            return (0, 1) if LEAVE in self.decisions else None
        places = {name: d for d, name in enumerate(self.decisions)}
        return tuple(places[name] for name in self.classes) if set(self.classes) <= set(places) else None

    @cached_property
    def dominated(self) -> Tensor:
        """Decisions that are never taken. (decisions,)

        With two classes, these are all that are not in the rule. With more, they are those that another decision is
        never dearer than, whatever the class, and at times cheaper.
        """
        if self.rule:
            return ~torch.isin(torch.arange(len(self.decisions)), torch.tensor([part.decision for part in self.rule]))
        found = []
        for column in self.values.T:
            row = int(column.argmin())
            others = self.values[:, self.values[row] <= column[row]]  # few, if any, are left
            found.append(bool(((others <= column[:, None]).all(0) & (others < column[:, None]).any(0)).any()))
        return torch.tensor(found)

    @property
    def live(self) -> Tensor:
        """The decisions that may be taken. (decisions,)"""
        return ~self.dominated

    @property
    def never(self) -> tuple[str, ...]:
        """The names of decisions that are never taken."""
        return tuple(name for name, never in zip(self.decisions, self.dominated.tolist(), strict=True) if never)

    @property
    def reach(self) -> float:
        """The most that another decision can save or lose for one sample."""
        least, most = self.values[:, self.live].aminmax(dim=1)
        return float((most - least).max())

    def cheapest(self, probs: Tensor) -> Tensor:
        """The decision with the least expected cost for each row of probabilities (n, k). (n,)

        Of decisions that cost the same it is the first; with two classes, that of the rule: the lower one, at a
        threshold.
        """
        if self.rule:
            p = probs[:, 1].cpu().contiguous()
            starts = torch.tensor([part.low for part in self.rule[1:]], dtype=torch.float64)
            decisions = torch.tensor([part.decision for part in self.rule])
            return decisions[torch.searchsorted(as_precise(starts, p), p)]
        prices = self.values.to(probs.device)
        equal = ROUNDING * float(self.values.abs().max())
        found = []
        for block in torch.split(probs, max(1, BLOCK_VALUES // max(self.values.shape))):
            expected = (block.double() @ prices).cpu()
            expected[:, self.dominated] = torch.inf
            least = expected <= expected.amin(1, keepdim=True) + equal
            found.append(torch.from_numpy(least.numpy().argmax(1)))  # NumPy promises the first of equals
        return torch.cat(found)

    @cached_property
    def rule(self) -> tuple[Stretch, ...]:
        """With two classes: the cheapest decision by the probability of the second, from 0 to 1. Otherwise empty."""
        if len(self.classes) != 2:
            return ()
        lines = list(zip(*self.values.tolist(), strict=True))
        order = sorted(range(len(lines)), key=lambda d: (*lines[d], d))
        found, low, now = [], 0.0, order[0]
        while True:
            # A line that ends lower crosses this one where both cost the same.
            falls = [(d, lines[now][1] - lines[d][1]) for d in order if lines[d][1] < lines[now][1]]
            crossings = [
                (rise / (rise + fall), lines[d][1], d) for d, fall in falls for rise in [lines[d][0] - lines[now][0]]
            ]
            high, _, following = min(crossings, default=(1.0, 0.0, now))
            found.append(Stretch(now, low, high))
            if following == now:
                return tuple(found)
            low, now = high, following

    def named(self, decision: int) -> str:
        """A decision in a sentence: act, spam, class 3."""
        name = self.decisions[decision]
        return as_class(name) if name in self.classes else name

    def phrase(self, decision: int) -> str:
        """A decision as what to do: act, choose spam."""
        return self.decisions[decision] if self.said else f"choose {self.named(decision)}"

    def always(self, decision: int) -> str:
        """A decision for all samples: always act, never act, always choose spam."""
        phrase = self.phrase(decision)
        return "never act" if phrase == LEAVE else f"always {phrase}"


def as_precise(thresholds: Tensor, probs: Tensor) -> Tensor:
    """Thresholds as precise as probabilities, so that 0.8 in float32 is not above 80 %; 1 is above all of them."""
    kind = probs.dtype
    return thresholds.to(kind).clamp(max=1 - torch.finfo(kind).eps / 2)


def costs_for(
    data: Predictions,
    costs: CostsLike | None,
    false_alarm: float | None,
    miss: float | None,
    abstain: float | None,
) -> Costs:
    """The costs as the caller gives them: a matrix, or the short form for two classes or for answers."""
    classes = data.classes or tuple(map(str, range(data.k)))
    short = {"false_alarm": false_alarm, "miss": miss, "abstain": abstain}
    if costs is not None:
        if any(value is not None for value in short.values()):
            raise InputError(
                "give a matrix, costs=, or single costs such as false_alarm and miss, not both", flags=FLAGS
            )
        return _matrix(costs, classes, named=data.classes is not None)
    if data.k != 2:
        raise InputError(f"the costs of {data.k:,} classes are a matrix; give it as costs=", flags=FLAGS)
    needed = "false_alarm and abstain" if data.answers else "false_alarm and miss"
    if false_alarm is None or (abstain if data.answers else miss) is None:
        raise InputError(f"the costs are missing; give {needed}, or a matrix, costs=", flags=FLAGS)
    for name, value in short.items():
        if value is not None and name != "abstain":
            of_kind(name, value, NonNegative)
    of_kind("abstain", abstain, float | None)
    if data.answers and miss is not None:
        raise InputError(
            "an answer that is not used costs what it takes to ask someone else: give false_alarm and abstain, and "
            "leave out miss",
            flags={"leave out miss": "leave out --miss", **FLAGS},
        )
    columns = {USE: (false_alarm, 0.0)} if data.answers else {LEAVE: (0.0, miss), ACT: (false_alarm, 0.0)}
    if abstain is not None:
        columns[ABSTAIN] = (abstain, abstain)
    return Costs(torch.tensor(list(columns.values()), dtype=torch.float64).T, classes, tuple(columns), said=True)


def _matrix(given: CostsLike, classes: tuple[str, ...], *, named: bool) -> Costs:
    """A matrix of costs from a file, a dictionary of decisions or an array."""
    if isinstance(given, str | Path):
        with reading(given):
            return _from_csv(Path(given), classes, named=named)
    if isinstance(given, Mapping):
        return _from_mapping(given, classes, named=named)
    if column_names(given) is not None:
        raise InputError("costs must be an array, a dictionary or a .csv file; pass a table as table.to_dict()")
    values = to_tensor(given, "costs").double().cpu()
    if values.ndim != 2 or len(values) != len(classes):
        raise InputError(
            f"costs must have a row for each of the {len(classes):,} classes and a column for each decision; got the "
            f"shape {tuple(values.shape)}"
        )
    n_decisions = values.shape[1]
    own = classes if n_decisions >= len(classes) else ()
    return Costs(values, classes, (*own, *(f"decision {d}" for d in range(len(own), n_decisions))))


def _from_mapping(given: Mapping[Any, Any], classes: tuple[str, ...], *, named: bool) -> Costs:
    """{decision: {class: cost}}, or {decision: costs in the order of the classes}."""
    columns = []
    for decision, column in given.items():
        if isinstance(column, Mapping):
            place = _places([str(name) for name in column], classes, named=named)
            values = to_tensor(list(column.values()), f"costs of {decision!r}").double()
            column = values[torch.tensor(place)]
        columns.append(to_tensor(column, f"costs of {decision!r}").double().cpu())
        if columns[-1].shape != (len(classes),):
            raise InputError(
                f"costs of {decision!r} must be a number for each of the {len(classes):,} classes; got the shape "
                f"{tuple(columns[-1].shape)}"
            )
    if not columns:
        raise InputError("the costs must have at least two decisions; got nothing")
    return Costs(torch.stack(columns, 1), classes, tuple(map(str, given)))


def _from_csv(path: Path, classes: tuple[str, ...], *, named: bool) -> Costs:
    """A header of decisions and a row for each class, in their order, or in any order with a first column of names."""
    if path.name.lower().removesuffix(".gz")[-4:] not in (".csv", ".tsv"):
        raise InputError("a matrix of costs is a .csv file: a header of decisions, and a row for each class")
    lines = [(number, [cell.strip() for cell in cells]) for number, cells in lines_of(path)]
    header, rows = lines[0][1], lines[1:]
    if len(header) == 1 and ";" in header[0]:
        raise InputError("the cells of a matrix of costs must be separated by commas, and decimals need a point")
    for number, cells in rows:
        if len(cells) != len(header):
            raise InputError(f"line {number} has {plural(len(cells), 'cell')}, and the header has {len(header)}")
    first = [cells[0] for _, cells in rows]
    # Classes that are numbers look like costs; where the other columns are of all classes, they are names.
    numbered = sorted(first) == sorted(classes) and header[0] not in classes and {*classes} <= {*header[1:]}
    by_name = header[0].lower() in CLASS_COLUMNS or numbered or any(as_number(cell) is None for cell in first)
    values = [[_number(cell, number) for cell in cells[by_name:]] for number, cells in rows]
    order: Iterable[int] = range(len(classes))
    if by_name:
        order = _places(first, classes, named=named)
    elif len(rows) != len(classes):
        raise InputError(
            f"expected a header of decisions and a row for each of the {len(classes):,} classes; got "
            f"{plural(len(rows), 'row')} below the header {excerpt(header)}"
        )
    matrix = torch.from_numpy(np.array([values[i] for i in order], dtype=np.float64).reshape(len(classes), -1))
    return Costs(matrix, classes, tuple(header[by_name:]))


def _places(given: Sequence[str], classes: tuple[str, ...], *, named: bool) -> list[int]:
    """The place of each class among the given names; all must be there, once."""
    places = {name: i for i, name in enumerate(given)}
    missing = [name for name in classes if name not in places]
    other = [name for name in given if name not in classes]
    hint = "" if named else ". The predictions have no names for their classes, so they are numbers from 0"
    if missing:
        raise InputError(f"there are no costs for the class {missing[0]!r}; got {excerpt(given)}{hint}")
    if other:
        raise InputError(f"{other[0]!r} is not a class; the classes are {excerpt(classes)}{hint}")
    if len(given) > len(places):
        twice = next(name for name in given if given.count(name) > 1)
        raise InputError(f"there must be one row for each class; {twice!r} is there twice")
    return [places[name] for name in classes]


def _number(cell: str, line: int) -> float:
    found = as_number(cell)
    if found is None:
        raise InputError(f"line {line}: a cost must be a number; got {cell!r}")
    return float(found)
