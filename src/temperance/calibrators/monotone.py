"""A smooth monotone map of the top confidence, the other classes kept in proportion.

In log-odds the map is piecewise linear, one slope between two knots; neighbouring slopes are pulled together and all of
them a little to 1, so that with few samples it is close to no map at all.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.calibrators.solvers import descend

# Log-odds beyond these say no more than that the network is certain.
LIMIT = 16.0

# Where the knots lie: the share of samples below each. Errors sit where the network is sure, and most samples too.
KNOTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SAMPLES_PER_KNOT = 40
ROUGHNESS, DISTANCE = 5.0, 1.0
FLATTEST = 0.02
STILL_FIRST = 1e-6


@dataclass(frozen=True)
class MonotoneMap:
    """knots (m,) in log-odds, slopes (m + 1,) between and beyond them, and a shift."""

    knots: Tensor
    slopes: Tensor
    shift: Tensor

    def log_odds(self, before: Tensor) -> Tensor:
        """The mapped log-odds of log-odds. (n,)"""
        return _segments(before, self.knots) @ self.slopes + self.shift

    def apply(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities with the top confidence mapped; the most probable class stays the most probable."""
        top, index = log_probs.max(1, keepdim=True)
        rest = log_probs.scatter(1, index, -torch.inf).logsumexp(1, keepdim=True)
        second = log_probs.scatter(1, index, -torch.inf).amax(1, keepdim=True)
        mapped = self.log_odds((top - rest).squeeze(1).clamp(-LIMIT, LIMIT))[:, None]
        # Lower, the second class, which takes its share of what the first one gives up, would come first.
        mapped = torch.maximum(mapped, second - rest + STILL_FIRST)
        others = log_probs + (F.logsigmoid(-mapped) - rest)
        return others.scatter(1, index, F.logsigmoid(mapped))


def top_log_odds(log_probs: Tensor) -> Tensor:
    """ln(c / (1 − c)) of the top confidence c, exact also near 1. (n,)"""
    top, index = log_probs.max(1, keepdim=True)
    rest = log_probs.scatter(1, index, -torch.inf).logsumexp(1, keepdim=True)
    return (top - rest).squeeze(1).clamp(-LIMIT, LIMIT)


def fit_monotone(log_odds: Tensor, correct: Tensor) -> MonotoneMap:
    """The map of confidences under which what happened is most likely, less the penalties."""
    n = len(log_odds)
    wanted = KNOTS[:: max(1, len(KNOTS) * SAMPLES_PER_KNOT // max(n, 1))]
    at = torch.quantile(log_odds, log_odds.new_tensor(wanted))
    knots = at[torch.cat([at.new_ones(1), at.diff()]) > 0]
    design = torch.cat([_segments(log_odds, knots), torch.ones_like(log_odds)[:, None]], 1)
    happened = correct.to(log_odds.dtype)
    identity = torch.ones_like(design[0])
    identity[-1] = 0
    lowest = torch.full_like(identity, FLATTEST)
    lowest[-1] = -torch.inf

    def value(theta: Tensor) -> tuple[float, Tensor]:
        mapped = design @ theta
        away, bends = theta - identity, theta[1:-1] - theta[:-2]
        loss = F.softplus(mapped).sum() - (mapped * happened).sum()
        gradient = design.T @ (mapped.sigmoid() - happened) + 2 * DISTANCE * away
        gradient[1:-1] += 2 * ROUGHNESS * bends
        gradient[:-2] -= 2 * ROUGHNESS * bends
        penalty = ROUGHNESS * bends.square().sum() + DISTANCE * away.square().sum()
        return float(loss + penalty) / n, gradient / n

    theta = descend(value, identity, low=lowest, still=1e-10).parameters
    return MonotoneMap(knots, theta[:-1], theta[-1])


def _segments(log_odds: Tensor, knots: Tensor) -> Tensor:
    """How far each value goes into each stretch between knots; the stretches of a row sum to the value. (n, m + 1)"""
    first = torch.minimum(log_odds, knots[0])
    between = (log_odds[:, None] - knots).clamp_min(0)
    inner = torch.minimum(between[:, :-1], knots.diff())
    return torch.cat([first[:, None], inner, between[:, -1:]], 1)
