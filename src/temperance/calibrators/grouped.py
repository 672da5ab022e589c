"""A calibrator whose correction differs between groups of samples, as far as the samples show that groups differ."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Unpack

import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR
from temperance.calibrators._fit.solvers import Problem, minimise
from temperance.calibrators.base import Calibrator, Shared, calibrator, make_calibrator
from temperance.errors import InputError, plural
from temperance.objectives import counting
from temperance.settings import NameOf

# No group makes predictions less than a tenth as sharp as the base does.
LEAST_SLOPE = -0.9

# Groups differ by more than chance if Σ (s² − I) is this many of its standard errors above 0: in simulations of ten to
# a thousand groups that do not differ, of 3 to 100 samples each, 2 to 7 % were that far above it.
CRITICAL = 2.0


class Spread(NamedTuple):
    """The variance between groups of their slopes and of their shifts, 0 where groups do not differ."""

    slopes: float
    shifts: float


@calibrator(family="combination", preserves_argmax=False, takes_weights=True, takes_groups=True, min_samples=4)
class Grouped(Calibrator):
    """A shared calibrator, and a correction for each group of samples that shrinks where the group has few samples.

    log p ∝ (1 + b_g) log q + a_g, where q are the probabilities of `base`, fitted to all samples, and g is the group of
    a sample: a subject, a hospital, a language. b_g says how much sharper the group's predictions should be, a_g shifts
    each class. Both minimise the NLL plus Σ_g b_g² / (2 σ_b²) + ‖a_g‖² / (2 σ_a²), so a small group stays near the
    base and a large one has a correction of its own.

    The variances σ² between groups are estimated by their moments, from the first two derivatives s_g and I_g of the
    log-likelihood at b = a = 0: if groups do not differ, s_g varies by I_g, and any more is due to the groups,
    E s_g² = I_g + σ² I_g². So σ² = Σ (s_g² − I_g) / Σ I_g², for a_g with the sum of squares and the trace in place of
    s_g² and I_g. Where it could be chance, it is 0: then the groups share the slope, or the shifts, of the base.

    The trap: groups must be known when the calibrator is used. A group that the fit part did not have gets the base
    alone, and so does every sample if it was fitted without groups. Where groups cannot be given, as in scikit-learn's
    `predict_proba`, in a pool of `auto` and in an exported network, use the base.

    base  the calibrator that all groups share
    """

    slopes: Tensor
    shifts: Tensor

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
        log_probs, n_groups = self._shared_log_probs(logits), int(groups.max()) + 1
        spread = _spread(log_probs, labels, counts, groups, n_groups)
        slopes, shifts = _corrections(log_probs, labels, weights, groups, n_groups, spread)
        self._keep("slopes", slopes)
        self._keep("shifts", shifts)
        self.info |= {"spread_of_slopes": math.sqrt(spread.slopes), "spread_of_shifts": math.sqrt(spread.shifts)}
        about = _about(n_groups, spread)
        self.info["verdict"] = " ".join(filter(None, (self.info.get("verdict"), about)))

    def _calibrate(self, logits: Tensor) -> Tensor:
        return self._shared._calibrate(logits)

    def _calibrate_groups(self, logits: Tensor, groups: Tensor) -> Tensor:
        # A row of zeros at the end is what a group that is not known gets.
        slopes, shifts = (torch.cat([each, torch.zeros_like(each[:1])]) for each in (self.slopes, self.shifts))
        return _corrected(self._shared_log_probs(logits), slopes[groups], shifts[groups])

    @property
    def n_parameters(self) -> int:
        """How many numbers it learnt, without those that all groups share with the base."""
        own = [self.slopes, self.shifts] if self.group_names else []
        return self._shared.n_parameters + sum(each.numel() for each in own if bool(each.any()))

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


def _corrected(log_probs: Tensor, slopes: Tensor, shifts: Tensor) -> Tensor:
    """Log-probabilities (n, k) with a slope (n,) and shifts (n, k) for each row."""
    return (log_probs * (1 + slopes[:, None]) + shifts).log_softmax(1)


def _spread(log_probs: Tensor, labels: Tensor, counts: Tensor, groups: Tensor, n_groups: int) -> Spread:
    """The variances between groups, by their moments; see `Grouped`."""
    probs = log_probs.exp()
    of_label = log_probs.gather(1, labels[:, None]).squeeze(1)
    mean = (probs * log_probs).sum(1)
    deviation = log_probs - mean[:, None]
    variance = (probs * deviation.square()).sum(1)
    slope_tails = float(counts @ ((probs * deviation.pow(4)).sum(1) - 3 * variance.square()))
    slope = torch.bincount(groups, counts * (of_label - mean), minlength=n_groups)
    slope_information = torch.bincount(groups, counts * variance, minlength=n_groups)
    shift_excess = shift_size = shift_tails = 0.0
    sizes = torch.bincount(groups, minlength=n_groups).tolist()
    for rows in torch.split(groups.argsort(stable=True), sizes):
        p, each = probs[rows], counts[rows][:, None]
        missing = -(p * each).sum(0)
        missing += torch.bincount(labels[rows], counts[rows], minlength=p.shape[1])
        information = (p * each).sum(0).diag() - p.T @ (p * each)
        shift_excess += float(missing.square().sum() - information.trace())
        shift_size += float(information.square().sum())
        shift_tails += float(counts[rows] @ _tails_of_label(p))
    slope_excess = float((slope.square() - slope_information).sum())
    slope_size = float(slope_information.square().sum())
    return Spread(_variance(slope_excess, slope_size, slope_tails), _variance(shift_excess, shift_size, shift_tails))


def _tails_of_label(probs: Tensor) -> Tensor:
    """E‖e‖⁴ − (tr V)² − 2 tr V² of each row; e is the one-hot label minus the probabilities, V its covariance. (n,)"""
    squares = probs.square().sum(1)
    fourth = (probs * (1 - 2 * probs + squares[:, None]).square()).sum(1)
    return fourth - (1 - squares).square() - 2 * (squares - 2 * probs.pow(3).sum(1) + squares.square())


def _variance(excess: float, size: float, tails: float) -> float:
    """Σ (s² − I) / Σ I², or 0 if chance explains it.

    If groups do not differ, the variance of s² is 2 I² plus the sum of its samples' fourth cumulants, the `tails`. They
    matter where groups are small or mistakes rare: without them, groups that do not differ did in up to 27 % of draws.
    """
    return excess / size if excess > CRITICAL * math.sqrt(max(2 * size + tails, 0.0)) else 0.0


def _corrections(
    log_probs: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor, n_groups: int, spread: Spread
) -> tuple[Tensor, Tensor]:
    """The slope of each group (g,) and its shifts (g, k): the most likely ones, given the variances between groups."""
    k, objective = log_probs.shape[1], counting("nll", weights)
    # A row of parameters for each group, without those that all groups share.
    widths = [1 if spread.slopes else 0, k if spread.shifts else 0]
    if not any(widths):
        return log_probs.new_zeros(n_groups), log_probs.new_zeros(n_groups, k)

    def of_groups(theta: Tensor) -> tuple[Tensor, Tensor]:
        slopes, shifts = torch.split(theta.view(n_groups, -1), widths, dim=1)
        return slopes.sum(1), shifts if widths[1] else shifts.new_zeros(n_groups, k)

    def forward(rows: Tensor, theta: Tensor) -> Tensor:
        mine = rows[:, k].long()
        slopes, shifts = of_groups(theta)
        return _corrected(rows[:, :k], slopes[mine], shifts[mine])

    def of_each(slope: float, shift: float) -> Tensor:
        row = log_probs.new_tensor([slope] * widths[0] + [shift] * widths[1])
        return row.repeat(n_groups)

    strength = of_each(spread.slopes, spread.shifts).reciprocal() / (2 * objective.n_samples(labels))
    problem = Problem(
        objective,
        forward,
        torch.cat([log_probs, groups[:, None]], 1),
        labels,
        k=k,
        penalty=lambda theta: (strength * theta.square()).sum(),
    )
    found = minimise(problem, of_each(0.0, 0.0), low=of_each(LEAST_SLOPE, -math.inf))
    return of_groups(found.parameters)


def _about(n_groups: int, spread: Spread) -> str:
    """How much groups differ, in a sentence."""
    said = []
    if spread.slopes:
        said.append(f"by about {100 * math.sqrt(spread.slopes):.0f} % in how sharp predictions should be")
    if spread.shifts:
        said.append(f"by about {math.sqrt(spread.shifts):.2f} in the log-odds of a class")
    if n_groups == 1:
        return "There is one group, so it has the correction of all samples."
    if not said:
        return f"The {plural(n_groups, 'group')} do not differ by more than chance, so all share one correction."
    return f"The corrections of {plural(n_groups, 'group')} differ {' and '.join(said)}."
