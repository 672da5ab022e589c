"""Binary maps of the log-odds with two or three parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from temperance.calibrators._fit.logistic import TOLERANCE, Features, LogisticFit, fit_logistic
from temperance.calibrators._fit.reduction import BinaryCalibrator
from temperance.calibrators.base import calibrator


class LogisticCalibrator(BinaryCalibrator):
    """A binary calibrator that is a logistic regression; `info` says whether it found the optimum."""

    def _record(self, fit: LogisticFit) -> LogisticFit:
        worst = max(float(fit.remaining.max()), self.info.get("remaining", 0.0))
        self.info |= {"converged": worst <= TOLERANCE, "remaining": worst}
        return fit

    def _fit_rising(self, x: Tensor, target: Tensor, weights: Tensor, features: Features) -> Tensor:
        """The best coefficients (m, 3) of three features; the first two must not be negative."""
        best, _ = self._solve(x, target, weights, features, [0, 1, 2])
        wrong = (best[:, :2] < 0).any(1)
        if bool(wrong.any()):
            # With one of the two at zero the other may become negative: then both are zero.
            tried = [self._solve(x[wrong], target[wrong], weights, features, kept) for kept in ([0, 2], [1, 2], [2])]
            theta, loss = torch.stack([theta for theta, _ in tried]), torch.stack([loss for _, loss in tried])
            loss = torch.where((theta[:, :, :2] < 0).any(2), torch.inf, loss)
            best[wrong] = theta[loss.argmin(0), torch.arange(theta.shape[1], device=theta.device)]
        return best

    def _solve(
        self, x: Tensor, target: Tensor, weights: Tensor, features: Features, kept: list[int]
    ) -> tuple[Tensor, Tensor]:
        """The best coefficients (m, 3) if only the kept ones are non-zero, and their loss (m,)."""
        start, weight = x.new_zeros(len(x), len(kept)), weights.expand_as(x)
        fit = self._record(fit_logistic(x, target, lambda x: features(x)[..., kept], start, weight=weight))
        theta = x.new_zeros(len(x), 3)
        theta[:, kept] = fit.theta
        return theta, fit.loss


@calibrator(family="binary", preserves_argmax=False, takes_weights=True)
class Platt(LogisticCalibrator):
    """Platt scaling: a logistic curve through the log-odds, with a slope and an intercept.

    log-odds(q) = a · log-odds(p) + b with the least NLL, by Newton's method. As Platt (1999) proposed for few samples,
    the targets are not 1 and 0 but (hits + 1) / (hits + 2) and 1 / (misses + 2). Without that, data that a threshold
    separates has no finite optimum.

    Platt maps the scores of a support vector machine. Here the score is the log-odds, so a = 1, b = 0 is the identity,
    and with two classes b = 0 is temperature scaling with T = 1 / a.

    >>> logits = [[0.0, -2.0], [0.0, -1.0], [0.0, 1.0], [0.0, 2.0]]
    >>> [round(p, 4) for p in Platt().fit(logits, [0, 1, 0, 1]).predict_proba(logits)[:, 1].tolist()]
    [0.4002, 0.4496, 0.5504, 0.5998]

    Platt, "Probabilistic outputs for support vector machines and comparisons to regularized likelihood methods" (1999).
    """

    coefficients: Tensor

    def _fit_binary(self, log_odds: Tensor, happened: Tensor, weights: Tensor) -> dict[str, Tensor]:
        found = self._record(fit_platt(log_odds, happened, weights)).theta
        return {"coefficients": unless_one_sided(happened, found, [1.0, 0.0])}

    def _map(self, log_odds: Tensor) -> Tensor:
        slope, intercept = self.coefficients[:, :, None].unbind(1)
        return slope * log_odds + intercept


@calibrator(family="binary", preserves_argmax=False, takes_weights=True)
class Beta(LogisticCalibrator):
    """Beta calibration: a curve whose slopes at low and high probabilities are fitted separately.

    log-odds(q) = a · ln p − b · ln(1 − p) + c with a, b ≥ 0 (Kull, Silva Filho and Flach 2017): the map between two
    beta distributions. a = b is Platt scaling; with a ≠ b the two ends bend differently. The problem is convex, so
    where the unconstrained optimum has a negative coefficient, the best solution with a coefficient at zero is optimal.

    The targets are Platt's, so that separable data has a finite optimum; the authors' program regularises instead. With
    thousands of samples the results differ by less than 0.001.

    Kull, Silva Filho and Flach, "Beta calibration: a well-founded and easily implemented improvement on logistic
    calibration for binary classifiers" (AISTATS 2017).
    """

    coefficients: Tensor

    def _fit_binary(self, log_odds: Tensor, happened: Tensor, weights: Tensor) -> dict[str, Tensor]:
        found = self._fit_rising(log_odds, smoothed_targets(happened, weights), weights, beta_features)
        return {"coefficients": unless_one_sided(happened, found, [1.0, 1.0, 0.0])}

    def _map(self, log_odds: Tensor) -> Tensor:
        a, b, c = self.coefficients[:, :, None].unbind(1)
        return a * logsigmoid(log_odds) - b * logsigmoid(-log_odds) + c


# A quadratic curve is fitted to the samples and this many pseudo-samples, labelled as the classifier predicts.
PSEUDO_SAMPLES = 10


@calibrator(family="binary", preserves_argmax=False, takes_weights=True)
class Quadratic(LogisticCalibrator):
    """A parabola through the log-odds: Platt scaling with a slope that changes linearly.

    log-odds(q) = a + b · x + c · x² with x = log-odds(p) and the least NLL. c = 0 is Platt scaling. A parabola turns
    back somewhere, so b and c are restricted to curves that rise over the range of the fitted log-odds; beyond that
    range the curve continues as a straight line. The problem is convex and solved as in `beta`.

    The prior is the classifier itself, b = 1 and a = c = 0: ten pseudo-samples are labelled as it predicts. They act
    as a weak ridge on a, b − 1 and c that does not depend on the scale of the log-odds.

    >>> logits = [[0.0, -2.0], [0.0, -1.0], [0.0, 1.0], [0.0, 2.0]]
    >>> [round(p, 4) for p in Quadratic().fit(logits, [0, 1, 0, 1]).predict_proba(logits)[:, 1].tolist()]
    [0.1687, 0.3106, 0.6894, 0.8313]
    """

    ends: Tensor
    coefficients: Tensor

    def _fit_binary(self, log_odds: Tensor, happened: Tensor, weights: Tensor) -> dict[str, Tensor]:
        low, high = log_odds.aminmax(dim=1, keepdim=True)
        width = torch.where(high > low, high - low, 1.0)
        share = PSEUDO_SAMPLES / (float(weights.sum()) + PSEUDO_SAMPLES)
        target = torch.lerp(happened.double(), log_odds.sigmoid(), share)
        found = self._fit_rising((log_odds - low) / width, target, weights, parabola_features)
        identity = torch.cat([width, width, low], 1)
        return {"ends": torch.cat([low, width], 1), "coefficients": unless_one_sided(happened, found, identity)}

    def _map(self, log_odds: Tensor) -> Tensor:
        low, width = self.ends[:, :, None].unbind(1)
        return (parabola_features((log_odds - low) / width) @ self.coefficients[:, :, None]).squeeze(2)


def fit_platt(log_odds: Tensor, happened: Tensor, weights: Tensor) -> LogisticFit:
    """Slopes and intercepts (m, 2), fitted to Platt's targets."""
    start, weight = log_odds.new_zeros(len(log_odds), 2), weights.expand_as(log_odds)
    return fit_logistic(log_odds, smoothed_targets(happened, weights), line_features, start, weight=weight)


def line_features(log_odds: Tensor) -> Tensor:
    return torch.stack([log_odds, torch.ones_like(log_odds)], dim=-1)


def beta_features(log_odds: Tensor) -> Tensor:
    """ln p, −ln(1 − p) and 1, exact even where p is very near 0 or 1."""
    return torch.stack([logsigmoid(log_odds), -logsigmoid(-log_odds), torch.ones_like(log_odds)], dim=-1)


def parabola_features(x: Tensor) -> Tensor:
    """The integral of a slope that falls from 1 at x = 0 to 0 at x = 1, that of one that rises from 0 to 1, and 1."""
    rising = x.clamp(0, 1).square() / 2 + (x - 1).clamp_min(0)
    return torch.stack([x - rising, rising, torch.ones_like(x)], dim=-1)


def smoothed_targets(happened: Tensor, weights: Tensor) -> Tensor:
    """Platt's targets: a hit counts (hits + 1) / (hits + 2), a miss 1 / (misses + 2). (m, n)"""
    hits = happened.double() @ weights[:, None]
    misses = weights.sum() - hits
    return torch.where(happened, (hits + 1) / (hits + 2), 1 / (misses + 2))


def unless_one_sided(happened: Tensor, found: Tensor, identity: Tensor | list[float]) -> Tensor:
    """The coefficients found, or the identity's where an event always or never happened: that teaches nothing."""
    one_sided = happened.all(1) | ~happened.any(1)
    return torch.where(one_sided[:, None], torch.as_tensor(identity, dtype=found.dtype, device=found.device), found)
