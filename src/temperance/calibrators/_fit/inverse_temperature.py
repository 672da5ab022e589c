"""How a temperature is found, as s = 1 / T: by Newton steps for convex objectives, with a prior if samples are few."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from temperance.arrays import CORE_BLOCK_VALUES, block_rows, blocks
from temperance.calibrators._fit.descent import TOLERANCE
from temperance.calibrators._fit.solvers import Problem, StreamedProblem, minimise, sample_weight, settle, train
from temperance.calibrators._fit.streaming import Streamed
from temperance.errors import plural
from temperance.objectives import Nll, Objective
from temperance.threads import one_thread

# Temperatures stay within these bounds, times the unit of the logits.
LOW, HIGH = 1e-2, 1e2
S_LOW, S_HIGH = 1 / HIGH, 1 / LOW

# Within a row, ordinary logits differ by this much, and by no more than this.
ORDINARY, MOST = 16.0, 256.0

# The prior of the temperature: it is around 1.5, because networks are over-confident. The standard deviation of its
# logarithm is 1 above and 1/2 below, because few networks are underconfident, and samples without a mistake must not
# lead to certainty. A handful of mistakes outweighs this prior.
TYPICAL = math.log(1.5)
SPREAD_ABOVE, SPREAD_BELOW = 1.0, 0.5

# The samples determine the temperature if the standard error of its logarithm is at most this. Above it, twice or half
# the temperature would fit about as well, and the prior is used too.
UNSURE = 0.8
ENOUGH_INFORMATION = UNSURE**-2

# The first steps use every 32nd row, then every 8th, if those are enough rows to locate the optimum roughly; two steps
# over all rows then suffice.
EVERY, ENOUGH_ROWS = (32, 8), 500

LOG2_E = math.log2(math.e)


def unit_of(logits: Tensor) -> float:
    """A power of two that brings logits on a very large scale to an ordinary one; 1 for all others.

    >>> unit_of(torch.tensor([[4.0, 0.0], [1.0, 9.0]])), unit_of(torch.tensor([[4e4, 0.0], [1e4, 9e4]]))
    (1.0, 2048.0)
    """
    some = logits[:: max(1, len(logits) // (4 * ENOUGH_ROWS))]
    spread = float((some.amax(1) - some.amin(1)).median())
    return 1.0 if spread <= MOST else 2.0 ** round(math.log2(spread / ORDINARY))


def fit_inverse_temperature(
    objective: Objective, logits: Tensor, labels: Tensor, solver: str = "exact"
) -> tuple[float, dict[str, Any]]:
    """The s = 1 / T that minimises an objective, and the record of how it was found.

    If the samples do not determine it, a prior is used; the record then has a `caution`, a sentence for the user.
    """
    unit = unit_of(logits)
    inverse, info = _fit_ordinary(objective, logits if unit == 1 else logits / unit, labels, solver)
    largest, smallest = (math.isclose(inverse, bound) for bound in (S_LOW, S_HIGH))
    if largest:
        info["caution"] = (
            f"the best temperature is above {HIGH * unit:g}, the largest allowed. The labels may belong to other rows, "
            "or the logits may be saturated: check the labels, and use logits that were not clipped"
        )
    if smallest:
        info["caution"] = (
            f"the best temperature is below {LOW * unit:g}, the smallest allowed. The logits are tiny: multiply them "
            "all by the same number"
        )
    return inverse / unit, info | {"at_bound": largest or smallest}


@one_thread()  # even for many samples: torch's threads wait for each other after each of many operations
def _fit_ordinary(objective: Objective, logits: Tensor, labels: Tensor, solver: str) -> tuple[float, dict[str, Any]]:
    """The same for logits on an ordinary scale."""
    if solver == "released":
        found = train(Problem(objective, divided, logits, labels), logits.new_ones(1))
        inverse, info = float(1 / found.parameters), found.info
    elif objective.convex:
        inverse, info = _convex(objective, logits, labels)
    else:
        inverse, info = _any_shape(objective, logits, labels)
    # A released optimiser has no bounds: its T can pass infinity and become negative, and so can s.
    inverse = _within_bounds(inverse)
    no_mistake = math.isclose(inverse, S_HIGH) and bool((logits.argmax(1) == labels).all())
    if no_mistake or _undetermined(logits, inverse, objective.counts):
        inverse, info = _likeliest(objective, logits, labels)
        info["caution"] = _too_few(logits, labels)
    return inverse, info


def stream_inverse_temperature(objective: Callable[[], Objective], stream: Streamed) -> tuple[float, dict[str, Any]]:
    """Like `fit_inverse_temperature`, for more rows than memory holds; so many always determine the temperature.

    `objective` makes a fresh one. The rows in memory give the starting point, unless the objective adapts its weights.
    """
    unit = unit_of(stream.logits)
    start, whole = 1 / unit, objective()
    if not whole.adapts:
        start, _ = fit_inverse_temperature(objective(), stream.logits, stream.labels)
    problem = StreamedProblem(whole, lambda rows, log_inverse: (rows * log_inverse.exp()).log_softmax(1), stream)
    begin = torch.tensor([math.log(start)], dtype=torch.float64)
    found = minimise(problem, begin, low=math.log(S_LOW / unit), high=math.log(S_HIGH / unit))
    return _within_bounds(math.exp(float(found.parameters)) * unit) / unit, found.info


def _within_bounds(inverse: float) -> float:
    return min(max(inverse, S_LOW), S_HIGH)


def caution_of(record: dict[str, Any]) -> dict[str, Any]:
    """The caution of a temperature's record, if any, for the record of a method that builds on it."""
    return {"caution": record["caution"]} if "caution" in record else {}


def divided(rows: Tensor, temperature: Tensor) -> Tensor:
    """Log-probabilities of logits divided by a temperature, or by one for each class."""
    return (rows / temperature).log_softmax(1)


# --------------------------------------------------------------------------------------------------------- few samples


def likeliest_inverse_temperature(objective: Objective, logits: Tensor, labels: Tensor) -> tuple[float, dict[str, Any]]:
    """The s = 1 / T of the largest posterior, given samples and prior, and the record of how it was found."""
    unit = unit_of(logits)
    inverse, info = _likeliest(objective, logits if unit == 1 else logits / unit, labels)
    return inverse / unit, info


@one_thread()
def _likeliest(objective: Objective, logits: Tensor, labels: Tensor) -> tuple[float, dict[str, Any]]:
    """The same for logits on an ordinary scale."""
    weight = sample_weight(objective, labels, logits.shape[1])
    if objective.convex and not objective.adapts:
        return _convex(objective, logits, labels, prior=weight)

    def surprise(log_temperature: Tensor) -> Tensor:
        away = log_temperature - TYPICAL
        return weight * (away / torch.where(away > 0, SPREAD_ABOVE, SPREAD_BELOW)).square().sum() / 2

    problem = Problem(objective, lambda rows, t: divided(rows, t.exp()), logits, labels, penalty=surprise)
    found = minimise(problem, logits.new_tensor([TYPICAL]), low=math.log(LOW), high=math.log(HIGH))
    return _within_bounds(math.exp(-float(found.parameters))), found.info


def _slopes_of_prior(s: float) -> tuple[float, float]:
    """The first two derivatives in s of the prior's negative log-density, (ln T − TYPICAL)² / 2 variance."""
    away = -math.log(s) - TYPICAL
    variance = prior_spread(-math.log(s)) ** 2
    return -away / (variance * s), (1 + away) / (variance * s * s)


def prior_spread(log_temperature: float) -> float:
    """The prior's standard deviation of ln T, on this side of what is typical."""
    return SPREAD_ABOVE if log_temperature > TYPICAL else SPREAD_BELOW


def _undetermined(logits: Tensor, s: float, counts: Tensor | None) -> bool:
    """Whether the samples say too little about T: their Fisher information about ln T, s² Σ_i Var_i(z), is small.

    Usually the first few rows suffice.
    """
    information, differ = 0.0, False
    step = ENOUGH_ROWS
    for first, rows in zip(range(0, len(logits), step), torch.split(logits, step), strict=True):
        probs = (rows * s).softmax(1)
        away = (rows - (probs * rows).sum(1, keepdim=True)) * s
        variance = (probs.sqrt() * away).square()
        if counts is not None:
            variance = variance * counts[first : first + step, None]
        information += float(variance.sum())
        if information >= ENOUGH_INFORMATION:
            return False
        differ = differ or bool((rows != rows[:, :1]).any())
    return differ  # if all logits are equal, T makes no difference


def _too_few(logits: Tensor, labels: Tensor) -> str:
    """Why a prior is used, in words that suit every method that starts from a temperature."""
    n, right = len(labels), int((logits.argmax(1) == labels).sum())
    rows = plural(n, "sample")
    if right == n:
        reason = f"in {rows} there is no mistake, so the best fit would make every prediction certain"
        remedy = "fit on more samples, until some are predicted wrong"
    elif right == 0:
        reason = f"in {rows} no prediction is right, so the best fit would turn every prediction into a guess"
        remedy = "fit on more samples, until some are predicted right"
    else:
        reason = f"{rows} say too little about how confident predictions should be"
        remedy = "fit on more samples"
    return f"{reason}. So the fit leans on what other models needed, which is to be somewhat less confident; {remedy}"


# --------------------------------------------------------------------------------------------------- convex objectives


def _convex(
    objective: Objective, logits: Tensor, labels: Tensor, *, prior: float = 0.0
) -> tuple[float, dict[str, Any]]:
    """The s that minimises a convex objective, with a prior of this weight, and the record of how it was found."""
    n, k = logits.shape
    record: dict[str, Any] = {}

    def solve(start: float) -> tuple[float, dict[str, Any]]:
        weights = objective.weights(labels, k)
        first_time = not record
        for every in EVERY:
            if first_time and n >= every * ENOUGH_ROWS:
                some = slice(None, None, every)
                rough, _ = _newton(objective, logits[some], labels[some], weights[some] * every, start, 1e-3, prior)
                start = start if rough in (S_LOW, S_HIGH) else rough
        found, info = _newton(objective, logits, labels, weights, start, TOLERANCE / 10, prior)
        record.update(info)
        return found, record

    def reweigh(s: float) -> float:
        losses = torch.cat([objective.losses((rows * s).log_softmax(1), y) for rows, y, _ in blocks(logits, labels)])
        return objective.reweigh(losses, labels, k)

    if not objective.adapts:
        return solve(1.0)
    inverse, settled = settle(reweigh, solve, 1.0)
    return inverse, settled | objective.info


def _newton(
    objective: Objective, logits: Tensor, labels: Tensor, weights: Tensor, s: float, tolerance: float, prior: float
) -> tuple[float, dict[str, Any]]:
    """Where the slope in s is zero: Newton steps, with a bracket in case they leave it.

    `prior` is the weight of the prior. Without it the slope is non-decreasing in s.
    """
    below, above = 0.0, math.inf  # values of s where the slope is known to be negative, and positive
    # Rows that fit into the cache are kept for all steps.
    kept = list(centred_rows(objective, logits, labels, weights)) if len(logits) <= core_rows(logits) else None
    for steps in range(1, 101):
        _, slope, second, *higher = derivatives(kept or centred_rows(objective, logits, labels, weights), s)
        prior_slope, prior_second = _slopes_of_prior(s)
        slope, second = slope + prior * prior_slope, second + prior * prior_second
        step = _root(slope, second, *higher)
        below, above = (below, s) if slope > 0 else (s, above)
        small = abs(slope) <= tolerance
        if slope == 0 or s == (S_LOW if slope > 0 else S_HIGH):
            break
        if small and abs(step) < 0.01 * s:
            # The last step is not checked: this close to the optimum it can only help.
            s = _within_bounds(s + step)
            break
        inside = max(below, S_LOW) < s + step < min(above, S_HIGH)
        if inside and not small and steps <= 20:
            s += step
        elif below == 0:
            s = S_LOW
        elif above == math.inf:
            s = S_HIGH
        else:
            s = math.sqrt(below * above)
    at_bound = s in (S_LOW, S_HIGH)
    return s, {"converged": at_bound or abs(slope) <= TOLERANCE, "gradient": abs(slope), "steps": steps}


def centred_rows(
    objective: Objective, logits: Tensor, labels: Tensor, weights: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Block by block: the logits minus the largest of their row, the target's score minus that, and the weights."""
    for rows, y, first in near_blocks(logits, labels):
        top = rows.amax(1)
        yield rows - top[:, None], objective.target(rows, y) - top, weights[first : first + len(y)]


def derivatives(centred: Iterable[tuple[Tensor, Tensor, Tensor]], s: float) -> list[float]:
    """Σ_i c_i (log Σ_j exp(s z_ij) − s t_i), t the target's score, and its first four derivatives in s.

    The derivatives of log Σ exp are the cumulants of z under softmax(s z), here from the moments of x = z − max z.
    """
    found = []
    for x, target, weights in centred:
        powers = (x * (s * LOG2_E)).exp2_()  # half the time of exp on a CPU
        ones = x.new_ones(x.shape[1])
        norm = powers @ ones  # much faster than sum(1) over few columns
        m1, m2, m3, m4 = ((powers.mul_(x) @ ones).div_(norm) for _ in range(4))
        square = m1 * m1
        cumulants = torch.stack(
            [
                norm.log() - s * target,
                m1 - target,
                m2 - square,
                m3 - 3 * m1 * m2 + 2 * m1 * square,
                m4 - 4 * m1 * m3 - 3 * m2 * m2 + 12 * square * m2 - 6 * square * square,
            ]
        )
        found.append(cumulants @ weights)
    return torch.stack(found).sum(0).tolist()


def _root(slope: float, second: float, third: float, fourth: float) -> float:
    """The step to the zero of a slope with these derivatives; the Newton step if the higher ones mislead."""
    if second <= 0:
        return -math.copysign(math.inf, slope)
    newton = -slope / second
    step = newton
    for _ in range(4):
        rise = second + step * (third + step * fourth / 2)
        if rise <= 0:
            return newton
        step -= (slope + step * (second + step * (third / 2 + step * fourth / 6))) / rise
    return step if abs(step - newton) <= abs(newton) else newton


# ---------------------------------------------------------------------------------------------------- other objectives


def _any_shape(objective: Objective, logits: Tensor, labels: Tensor) -> tuple[float, dict[str, Any]]:
    """The best of several local optima: the best of a coarse grid over some rows, then a descent over all rows.

    A calibration error can be just as small where everything is certain, so its descent starts at the optimum of NLL.
    """

    def forward(rows: Tensor, log_inverse: Tensor) -> Tensor:
        return (rows * log_inverse.exp()).log_softmax(1)

    if objective.whole:
        best = logits.new_tensor(math.log(_convex(Nll(), logits, labels)[0]))
    else:
        best = _best_of_grid(objective, forward, logits, labels)
    found = minimise(
        Problem(objective, forward, logits, labels), best[None], low=math.log(S_LOW), high=math.log(S_HIGH)
    )
    return math.exp(float(found.parameters)), found.info


def _best_of_grid(
    objective: Objective, forward: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor
) -> Tensor:
    """The best ln s of a coarse grid of s over [0.01, 100], judged on some rows."""
    every = max(1, len(logits) // (4 * ENOUGH_ROWS))
    some = Problem(objective, forward, logits[::every], labels[::every])
    grid = torch.arange(-18, 19, dtype=torch.float64, device=logits.device) / 18 * math.log(S_HIGH)
    weights = objective.weights(labels, logits.shape[1])[::every]
    values = torch.stack([weights @ some.losses(u) for u in grid])
    # Of equal values, take the one nearest the middle: T = 1 where it makes no difference.
    middle_first = (torch.arange(37) - 18).abs().argsort(stable=True)
    return grid[middle_first][values[middle_first].argmin()]


def near_blocks(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Rows, labels and the index of the first row, in blocks that stay in a core's own cache."""
    return blocks(logits, labels, step=core_rows(logits))


def core_rows(logits: Tensor) -> int:
    """How many rows stay in a core's own cache."""
    return block_rows(logits.shape[1], logits.device, CORE_BLOCK_VALUES)
