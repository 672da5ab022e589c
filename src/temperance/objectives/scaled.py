"""Class-wise loss scaling (SCTL)."""

import math
import warnings
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from temperance.objectives.base import Objective, largest_change, objective
from temperance.settings import CountOrZero, Positive


@objective(convex=True)
class ClassScaled(Objective):
    """Class-wise loss scaling (SCTL): badly fitted classes count more, so that losses even out.

    Σ_j (1 + w_j) L_j over the classes that occur (eq. 8), with L_j the class's loss and
    w_j = β / (1 + exp(−L̄_j / α)) − β / 2 (eq. 5) of its normalised loss L̄. The weights are constants to the optimiser
    and are updated by `reweigh`: the first time with α = 1 and β = 1.5; the second time α and β are chosen to minimise
    the predicted spread of the class losses (eq. 6), and then stay fixed. If that search fails, they stay as they were,
    and `info["caution"]` says so.

    alpha         α of eq. 5; smaller: weights change faster with the loss; None: chosen by eq. 6
    beta          β of eq. 5; weights lie between 1 − β/2 and 1 + β/2; None: chosen by eq. 6
    normalise     "nd" (L − mean) / std, "mm" (L − min) / (max − min), "cm" (L − mean) / (max − min); without spread
                  there is no scaling
    class_reduce  "mean" over a class's samples, as in the authors' program, which balances unequal classes too; "sum"
                  as printed in eq. 3
    ddof          of the standard deviation in "nd": 1 in the authors' program, 0 in eq. 4
    step          how eq. 6 predicts the next losses: "paper" L0 − w (L1 − L0) as printed and programmed;
                  "first-order" L0 + (1 + w)(L1 − L0), the effect of a step along the scaled loss

    Jung et al., Scaling of class-wise training losses for post-hoc calibration, ICML 2023.
    """

    adapts = True

    # The box that the authors' program searches; α ends at ln(k) / 2.
    FIRST_ALPHA, FIRST_BETA = 1.0, 1.5
    LOW_ALPHA = 0.1
    BETA_RANGE = (1.5, 2.0)

    def __init__(
        self,
        *,
        normalise: Literal["nd", "mm", "cm"] = "nd",
        class_reduce: Literal["mean", "sum"] = "mean",
        ddof: CountOrZero = 1,
        step: Literal["paper", "first-order"] = "paper",
        alpha: Positive | None = None,
        beta: Positive | None = None,
    ) -> None:
        self.normalise = normalise
        self.class_reduce = class_reduce
        self.ddof = ddof
        self.step = step
        self._given = (alpha, beta)
        self.alpha = self.FIRST_ALPHA if alpha is None else alpha
        self.beta = self.FIRST_BETA if beta is None else beta
        self.class_weights = torch.empty(0, dtype=torch.float64)
        self._first_losses = self.class_weights
        self._renewals = 0
        self._failed = False

    def __call__(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        k = log_probs.shape[1]
        losses = self._class_losses(self.losses(log_probs, labels), labels, k)
        present = torch.bincount(labels, minlength=k) > 0
        self._renew(losses.detach().double(), present)
        scaled = self.class_weights[present].to(losses.dtype) * losses  # eq. 7
        return (losses + scaled).sum()

    def class_weights_of(self, counts: Tensor) -> Tensor:
        each = 1 + (self.class_weights if len(self.class_weights) else torch.zeros_like(counts, dtype=torch.float64))
        return each / torch.where(counts > 0, counts, 1) if self.class_reduce == "mean" else each

    def reweigh(self, losses: Tensor, labels: Tensor, k: int) -> float:
        present = torch.bincount(labels, minlength=k) > 0
        return self._renew(self._class_losses(losses.double(), labels, k), present)

    def reweigh_classes(self, sums: Tensor, counts: Tensor) -> float:
        present = counts > 0
        reached = sums[present] / counts[present] if self.class_reduce == "mean" else sums[present]
        return self._renew(reached, present)

    def _class_losses(self, losses: Tensor, labels: Tensor, k: int) -> Tensor:
        """The loss of each class that occurs (eq. 3)."""
        if self.counts is not None:
            counts = self.counts.to(losses.dtype)
            total = losses.new_zeros(k).index_add(0, labels, losses * counts)
            count = torch.bincount(labels, counts, minlength=k)
            return (total / count if self.class_reduce == "mean" else total)[count > 0]
        sizes = [n for n in torch.bincount(labels, minlength=k).tolist() if n]
        by_class = torch.split(losses[torch.argsort(labels, stable=True)], sizes)
        return torch.stack([rows.mean() if self.class_reduce == "mean" else rows.sum() for rows in by_class])

    def _renew(self, reached: Tensor, present: Tensor) -> float:
        k = len(present)
        if self._renewals == 0:
            self._first_losses = reached
        elif self._renewals == 1:
            self.alpha, self.beta = self._choose(self._first_losses, reached, k)
        before = 1 + self.class_weights if self._renewals else None
        self.class_weights = torch.zeros(k, dtype=torch.float64, device=reached.device)
        self.class_weights[present] = scale(self._normalised(reached), self.alpha, self.beta)
        self._renewals += 1
        return largest_change(before, 1 + self.class_weights)

    def _normalised(self, losses: Tensor) -> Tensor:
        centre = losses.amin() if self.normalise == "mm" else losses.mean()
        if self.normalise == "nd":
            # With so few classes the standard deviation is undefined.
            spread = losses.std(correction=self.ddof) if len(losses) > max(self.ddof, 1) else losses.new_zeros(())
        else:
            spread = losses.amax() - losses.amin()
        even = not bool(spread > 1e-12 * losses.abs().amax())
        return torch.zeros_like(losses) if even else (losses - centre) / spread

    def _choose(self, before: Tensor, after: Tensor, k: int) -> tuple[float, float]:
        """The α and β that minimise the predicted spread of the class losses (eq. 6); given values are kept."""
        alpha, beta = self._given
        if alpha is not None and beta is not None:
            return alpha, beta
        alpha_range = (self.LOW_ALPHA, max(math.log(k) / 2, self.LOW_ALPHA)) if alpha is None else (alpha, alpha)
        beta_range = self.BETA_RANGE if beta is None else (beta, beta)
        first, second = before.cpu().numpy(), after.cpu().numpy()
        from scipy.optimize import minimize  # here, because it takes longer to import than all of temperance

        normalised = self._normalised(after).cpu()
        change = second - first

        def spread(shape: Any) -> float:
            w = scale(normalised, float(shape[0]), float(shape[1])).numpy()
            predicted = first - w * change if self.step == "paper" else first + (1 + w) * change
            return float(np.linalg.norm(predicted - second.mean()))

        start = (min(max(self.alpha, alpha_range[0]), alpha_range[1]), self.beta)
        with warnings.catch_warnings():
            # SLSQP clips a step that leaves the box by a rounding error, and says so.
            warnings.simplefilter("ignore", RuntimeWarning)
            found = minimize(spread, start, method="SLSQP", bounds=(alpha_range, beta_range))
        # At a corner of the box SLSQP may report failure although it succeeded; worse than the start is a real failure.
        self._failed = not (np.isfinite(found.x).all() and spread(found.x) <= spread(start))
        return (self.alpha, self.beta) if self._failed else (float(found.x[0]), float(found.x[1]))

    @property
    def info(self) -> dict[str, Any]:
        found = {"alpha": self.alpha, "beta": self.beta, "class_weights": self.class_weights.tolist()}
        if not self._failed:
            return found
        says = f"the search for alpha and beta of class-scaled failed, so they are {self.alpha:g} and {self.beta:g}"
        return found | {"caution": f"{says}. Set both, or use another objective"}


def scale(normalised: Tensor, alpha: float, beta: float) -> Tensor:
    """The weight of a class from its normalised loss, between −β/2 and β/2 (SCTL eq. 5)."""
    return beta * torch.sigmoid(normalised / alpha) - beta / 2
