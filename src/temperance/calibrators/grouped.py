"""A calibrator whose correction differs between groups of samples, as far as the samples show that groups differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Annotated, Unpack

import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR
from temperance.calibrators._fit.solvers import Problem, minimise
from temperance.calibrators._fit.spread import Partition, Spread, spreads_between
from temperance.calibrators.base import Calibrator, Shared, calibrator, make_calibrator
from temperance.calibrators.groups import UNKNOWN, combination_numbers
from temperance.errors import InputError, plural
from temperance.objectives import counting
from temperance.settings import NameOf

# No groups of a sample make predictions less than a tenth as sharp as the base does.
LEAST_SLOPE = -0.9


@calibrator(family="combination", preserves_argmax=False, takes_weights=True, takes_groups=True, min_samples=4)
class Grouped(Calibrator):
    """A shared calibrator, and a correction for each group of samples that shrinks where the group has few samples.

    log p ∝ (1 + b_g) log q + a_g, where q are the probabilities of `base`, fitted to all samples, and g is the group of
    a sample: a subject, a hospital, a language. b_g says how much sharper the group's predictions should be, a_g shifts
    each class. Both minimise the NLL plus Σ_g b_g² / (2 σ_b²) + ‖a_g‖² / (2 σ_a²), so a small group stays near the
    base and a large one has a correction of its own.

    Groups can overlap: with several columns, such as sex and profession, a sample is in a group of each, and in one for
    their combination. Then b and a are the sums over its groups. So a combination of few samples, or a new one, has the
    corrections of its columns. For sets that overlap in other ways, give a column of yes and no for each.

    The variances σ² between groups are estimated by their moments, from the first two derivatives s_g and I_g of the
    log-likelihood at b = a = 0: if groups do not differ, s_g varies by I_g, and any more is due to the groups,
    E s_g² = I_g + σ² I_g². So σ² = Σ (s_g² − I_g) / Σ I_g², for a_g with the sum of squares and the trace in place of
    s_g² and I_g. Where it could be chance, it is 0: then the groups share the slope, or the shifts, of the base.
    Several columns and their combinations have variances of their own, which are the solution of such equations.

    The trap: groups must be known when the calibrator is used. A group that the fit part did not have gets the base
    alone, and so does every sample if it was fitted without groups. Where groups cannot be given, as in scikit-learn's
    `predict_proba`, in a pool of `auto` and in an exported network, use the base.

    base  the calibrator that all groups share
    """

    slopes: Tensor  # of the groups of all columns, then of the combinations
    shifts: Tensor
    combinations: Tensor  # with several columns only: the groups of each combination

    def __init__(
        self, *, base: Annotated[str, NameOf("a calibrator", make_calibrator)] = "auto", **shared: Unpack[Shared]
    ) -> None:
        super().__init__(**shared)
        self.base = base

    def _check_settings(self) -> None:
        if make_calibrator(self.base).takes_groups:
            raise InputError(f"the base of {self.name} must be a calibrator that all groups share; got {self.base}")

    @property
    def _one_by_one(self) -> str:
        return make_calibrator(self.base)._one_by_one

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        shared = make_calibrator(self.base)
        shared._fit_rows(logits, labels, weights)
        self.add_module("shared", shared)
        self.info = dict(shared.info)

    def _fit_to_groups(self, logits: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor) -> None:
        counts = torch.ones_like(logits[:, 0]) if weights is None else weights
        log_probs, partitions = self._shared_log_probs(logits), _columns(groups)
        if len(partitions) > 1:
            numbers = combination_numbers(groups)
            partitions.append(Partition(numbers, int(numbers.max()) + 1))
            combinations = groups.new_zeros(partitions[-1].n_groups, groups.shape[1])
            combinations[numbers] = groups
            self._keep("combinations", combinations)
        spreads = spreads_between(log_probs, labels, counts, partitions)
        slopes, shifts = _corrections(log_probs, labels, weights, partitions, spreads)
        self._keep("slopes", slopes)
        self._keep("shifts", shifts)
        # A sample has a correction from each partition.
        spread = Spread(*(sum(each) for each in zip(*spreads, strict=True)))
        self.info |= {"spread_of_slopes": math.sqrt(spread.slopes), "spread_of_shifts": math.sqrt(spread.shifts)}
        about = _about(partitions, spread)
        self.info["verdict"] = " ".join(filter(None, (self.info.get("verdict"), about)))

    def _calibrate(self, logits: Tensor) -> Tensor:
        return self._shared._calibrate(logits)

    def _calibrate_groups(self, logits: Tensor, groups: Tensor) -> Tensor:
        numbers = list(groups.T)
        if len(numbers) > 1:
            numbers.append(self._combinations_of(groups))
        # A row of zeros at the end is what a group that is not known gets.
        slopes, shifts = (torch.cat([each, torch.zeros_like(each[:1])]) for each in (self.slopes, self.shifts))
        own = ([values[each] for each in numbers] for values in (slopes, shifts))
        return _corrected(self._shared_log_probs(logits), *map(_total, own))

    def _combinations_of(self, groups: Tensor) -> Tensor:
        """The number of each row's combination of groups (n, c), after those of all groups, or UNKNOWN."""
        m = len(self.combinations)
        numbers = combination_numbers(torch.cat([self.combinations, groups]))
        places = torch.full_like(numbers, UNKNOWN)
        places[numbers[:m]] = torch.arange(len(self.slopes) - m, len(self.slopes), device=numbers.device)
        return places[numbers[m:]]

    @property
    def n_parameters(self) -> int:
        """How many numbers it learnt, without those that all groups share with the base."""
        if not self.group_columns:
            return self._shared.n_parameters
        sizes = [len(names) for names in self.group_columns]
        sizes += [len(self.combinations)] if len(sizes) > 1 else []
        own = [part for each in (self.slopes, self.shifts) for part in torch.split(each, sizes)]
        return self._shared.n_parameters + sum(part.numel() for part in own if bool(part.any()))

    @property
    def _shared(self) -> Calibrator:
        found = self._modules["shared"]
        assert isinstance(found, Calibrator)
        return found

    def _shared_log_probs(self, logits: Tensor) -> Tensor:
        return self._shared._calibrate(logits).clamp_min(math.log(LOG_FLOOR))

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        shared = make_calibrator(self.base)
        shared.info = self.info
        of_shared = {name: tensor for name, tensor in tensors.items() if name.startswith("shared.")}
        shared._restore({name.removeprefix("shared."): tensor for name, tensor in of_shared.items()})
        self.add_module("shared", shared)
        super()._restore({name: tensor for name, tensor in tensors.items() if name not in of_shared})


def _columns(groups: Tensor) -> list[Partition]:
    """The groups of each column, counted from 0 again; their numbers (n, c) go on from column to column."""
    found = []
    for column in groups.T:
        first = int(column.min())
        found.append(Partition(column - first, int(column.max()) + 1 - first))
    return found


def _corrected(log_probs: Tensor, slopes: Tensor, shifts: Tensor) -> Tensor:
    """Log-probabilities (n, k) with a slope (n,) and shifts (n, k) for each row."""
    return (log_probs * (1 + slopes[:, None]) + shifts).log_softmax(1)


def _corrections(
    log_probs: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    partitions: Sequence[Partition],
    spreads: Sequence[Spread],
) -> tuple[Tensor, Tensor]:
    """The slope of each group (g,) and its shifts (g, k): the most likely ones, given the variances between groups.

    The groups are those of all partitions, one after the other. The corrections of a sample's groups add up.
    """
    k, objective = log_probs.shape[1], counting("nll", weights)
    # A row of parameters for each group, without those that all groups share.
    widths = [[1 if spread.slopes else 0, k if spread.shifts else 0] for spread in spreads]
    sizes = [partition.n_groups for partition in partitions]
    lengths = [n * sum(width) for n, width in zip(sizes, widths, strict=True)]
    if not any(lengths):
        return log_probs.new_zeros(sum(sizes)), log_probs.new_zeros(sum(sizes), k)

    def of_groups(theta: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for values, n, width in zip(torch.split(theta, lengths), sizes, widths, strict=True):
            slopes, shifts = torch.split(values.view(n, sum(width)), width, dim=1)
            yield slopes.sum(1), shifts if width[1] else shifts.new_zeros(n, k)

    def forward(rows: Tensor, theta: Tensor) -> Tensor:
        numbers = rows[:, k:].long().T
        own = [(slopes[mine], shifts[mine]) for (slopes, shifts), mine in zip(of_groups(theta), numbers, strict=True)]
        return _corrected(rows[:, :k], *map(_total, zip(*own, strict=True)))

    def of_each(of_spread: Callable[[Spread], Sequence[float]]) -> Tensor:
        rows = []
        for n, width, spread in zip(sizes, widths, spreads, strict=True):
            slope, shift = of_spread(spread)
            rows.append(log_probs.new_tensor([slope] * width[0] + [shift] * width[1]).repeat(n))
        return torch.cat(rows)

    strength = of_each(lambda spread: spread).reciprocal() / (2 * objective.n_samples(labels))
    problem = Problem(
        objective,
        forward,
        torch.cat([log_probs, *(partition.of_sample[:, None] for partition in partitions)], 1),
        labels,
        k=k,
        penalty=lambda theta: (strength * theta.square()).sum(),
    )
    least = LEAST_SLOPE / max(1, sum(width[0] for width in widths))
    found = minimise(problem, of_each(lambda _: (0.0, 0.0)), low=of_each(lambda _: (least, -math.inf)))
    slopes, shifts = zip(*of_groups(found.parameters), strict=True)
    return torch.cat(slopes), torch.cat(shifts)


def _total(several: Sequence[Tensor]) -> Tensor:
    """The sum of tensors."""
    return reduce(torch.add, several)


def _about(partitions: Sequence[Partition], spread: Spread) -> str:
    """How much groups differ, in a sentence."""
    *columns, last = (partition.n_groups for partition in partitions)
    which = plural(last, "group")
    if columns:
        which = f"{plural(sum(columns), 'group')} in {len(columns)} columns and {plural(last, 'combination')}"
    said = []
    if spread.slopes:
        said.append(f"by about {100 * math.sqrt(spread.slopes):.0f} % in how sharp predictions should be")
    if spread.shifts:
        said.append(f"by about {math.sqrt(spread.shifts):.2f} in the log-odds of a class")
    if last == 1:
        return "There is one group, so it has the correction of all samples."
    if not said:
        return f"The {which} do not differ by more than chance, so all share one correction."
    return f"The corrections of {which} differ {' and '.join(said)}."
