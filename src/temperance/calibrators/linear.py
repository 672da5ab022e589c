"""Linear maps of the logits: one factor and shift for each class, or a whole matrix."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, nll_loss

from temperance.calibrators._fit.regression import Diagonal, Full, Map, fit_map
from temperance.calibrators._fit.solvers import TOLERANCE, Parametric, Solution
from temperance.calibrators.base import calibrator
from temperance.calibrators.temperature import fit_inverse_temperature
from temperance.errors import InputError, at_least
from temperance.objectives import Objective, make_objective

# Strengths of the penalty that cross-validation tries, strongest first.
STRENGTHS = [10.0**power for power in range(6, -3, -1)]

# Slopes this small leave the NLL right to more digits than a comparison of penalties needs.
ROUGHLY = 1e-4

# From the strongest penalty down the score improves, then the map overfits: this much worse than the best is enough.
WORSE = 1.01

# Where a class has no samples, or some are told apart without a mistake, the best parameters are infinite without a
# penalty. This one is too weak to matter elsewhere.
RIDGE = 1e-6


class Ridged(Parametric):
    """A linear map of the logits with next to no penalty on it."""

    kind: ClassVar[Map]

    def __init__(
        self, *, objective: str = "nll", objective_settings: dict[str, Any] | None = None, ridge: float = RIDGE
    ) -> None:
        super().__init__(objective=objective, objective_settings=objective_settings)
        self.ridge = ridge

    def _check_settings(self) -> None:
        super()._check_settings()
        positive("ridge", self.ridge)

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        features = Scaled(self.kind, logits, labels)
        found = features.fit(self._make_objective(), features.even_penalty(self.ridge))
        self.info = found.info
        self._keep_map(found.parameters, features.unit)

    def _keep_map(self, parameters: Tensor, unit: float) -> None:
        """Keep the map, for logits that are not multiplied by the unit."""
        raise NotImplementedError


@calibrator(family="linear", preserves_argmax=False, takes_objective=True)
class Vector(Ridged):
    """Vector scaling: a factor and a shift for each class.

    p = softmax(v ∘ z + b), v and b minimising the objective. It can follow a change of how common the classes are,
    which one temperature cannot; with few samples for each class it overfits, and `structured-vector` is safer.

    `ridge` is a penalty on the squared distance from temperature scaling, v = 1 / T and b = 0, in units of 1 / T. The
    default only keeps the parameters finite where the data would not.

    >>> Vector().fit([[0.0, 0.0]] * 4, [0, 0, 0, 1]).predict_proba([[0.0, 0.0]]).round(4)
    array([[0.75, 0.25]])

    Guo et al., On calibration of modern neural networks, ICML 2017.
    """

    kind = Diagonal()

    scale: Tensor
    bias: Tensor

    def _keep_map(self, parameters: Tensor, unit: float) -> None:
        self._keep("scale", parameters[0] * unit)
        self._keep("bias", parameters[1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        return torch.addcmul(self.bias, logits, self.scale).log_softmax(1)


@calibrator(family="linear", preserves_argmax=False, takes_objective=True)
class Matrix(Ridged):
    """Matrix scaling: every new logit is a weighted sum of all the old ones. It overfits: see matrix-odir.

    p = softmax(W z + b), W and b minimising the objective. With k (k + 1) parameters it learns its samples by heart as
    soon as there are many classes: it is here to be compared with, `structured-matrix` to be used.

    `ridge` as in vector scaling.

    Guo et al., On calibration of modern neural networks, ICML 2017.
    """

    kind = Full()

    weight: Tensor
    bias: Tensor

    def _keep_map(self, parameters: Tensor, unit: float) -> None:
        self._keep("weight", parameters[:, :-1] * unit)
        self._keep("bias", parameters[:, -1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        return linear(logits, self.weight, self.bias).log_softmax(1)


@calibrator(family="linear", preserves_argmax=False, takes_objective=True)
class MatrixOdir(Parametric):
    """Matrix scaling with a penalty on everything but the diagonal (ODIR).

    p = softmax(W z + b), with λ / (k (k − 1)) Σ_{i≠j} W_ij² + μ / k Σ_i b_i² added to the objective. The diagonal is
    free, so for λ → ∞ it becomes vector scaling, for μ → ∞ also without shifts.

    `off_diagonal` is λ and `intercept` is μ. What is not given is chosen for the least NLL on rows left out of the fit,
    in a cross-validation with `n_folds` parts: first both alike from `strengths` (10⁶, 10⁵, … 10⁻²), from the strongest
    down until it gets worse, then μ by itself. The authors' program leaves out the divisors k (k − 1) and k unless told
    otherwise, and penalises differences to the last row of W, which makes the last class special; here no class is.

    Kull et al., Beyond temperature scaling, NeurIPS 2019.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        *,
        objective: str = "nll",
        objective_settings: dict[str, Any] | None = None,
        off_diagonal: float | None = None,
        intercept: float | None = None,
        strengths: Sequence[float] | None = None,
        n_folds: int = 3,
    ) -> None:
        super().__init__(objective=objective, objective_settings=objective_settings)
        self.off_diagonal = off_diagonal
        self.intercept = intercept
        self.strengths = strengths
        self.n_folds = n_folds

    def _check_settings(self) -> None:
        super()._check_settings()
        at_least("n_folds", self.n_folds, 2)
        if self.strengths is not None and not self.strengths:
            raise InputError("strengths must be positive numbers, at least one; got none")
        for strength in self.strengths or ():
            positive("strengths", strength)
        for setting in ("off_diagonal", "intercept"):
            if getattr(self, setting) is not None:
                positive(setting, getattr(self, setting))

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        objective = self._make_objective()
        features = Scaled(Full(), self._features(logits), labels)
        (off_diagonal, intercept), tried = self._choose(features)
        found = features.fit(objective, features.odir_penalty(off_diagonal, intercept))
        self.info = found.info | {"off_diagonal": off_diagonal, "intercept": intercept, "tried": tried}
        self._keep("weight", found.parameters[:, :-1] * features.unit)
        self._keep("bias", found.parameters[:, -1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        return linear(self._features(logits), self.weight, self.bias).log_softmax(1)

    def _features(self, logits: Tensor) -> Tensor:
        return logits

    def _choose(self, features: "Scaled") -> tuple[tuple[float, float], list[list[float]]]:
        """λ and μ, and [λ, μ, NLL] of every pair that was tried."""
        strengths = STRENGTHS if self.strengths is None else sorted(self.strengths, reverse=True)
        off_diagonal, intercept = self.off_diagonal, self.intercept
        if off_diagonal is not None and intercept is not None:
            return (off_diagonal, intercept), []
        search = CrossValidation(features, self.n_folds)
        chosen = search.descend([(off_diagonal or s, intercept or s) for s in strengths])
        if off_diagonal is None and intercept is None:
            chosen = search.descend([(chosen[0], s) for s in strengths])
        return chosen, search.tried


@calibrator(family="linear", preserves_argmax=False, takes_objective=True)
class Dirichlet(MatrixOdir):
    """Dirichlet calibration: matrix scaling of the log-probabilities, with a penalty on all but the diagonal (ODIR).

    p = softmax(W ln q + b) of q = softmax(z): what a classifier's probabilities would have to become if those of each
    class followed a Dirichlet distribution. Penalty and settings as `matrix-odir`. Probabilities below the smallest
    normal float64 are taken for it.

    Kull et al., Beyond temperature scaling, NeurIPS 2019.
    """

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(1).clamp_min(LOG_TINY)


LOG_TINY = -708.3964185322641  # the logarithm of the smallest normal float64


class Scaled:
    """Features in units of the best temperature, in which the identity map is a good start and slopes compare."""

    def __init__(self, kind: Map, features: Tensor, labels: Tensor, unit: float | None = None) -> None:
        if unit is None:
            unit, _ = fit_inverse_temperature(make_objective("nll"), features, labels)
            features = features * unit
        self.kind = kind
        self.x = features
        self.labels = labels
        self.unit = unit
        self.identity = kind.identity(features.shape[1]).to(features.device)

    def fit(
        self, objective: Objective, penalty: Tensor, *, start: Tensor | None = None, tolerance: float = TOLERANCE
    ) -> Solution:
        """The best map under a penalty on its distance from the identity."""
        return fit_map(
            self.kind,
            self.x,
            self.labels,
            objective,
            penalty=penalty,
            start=self.identity if start is None else start,
            centre=self.identity,
            tolerance=tolerance,
        )

    def even_penalty(self, strength: float) -> Tensor:
        """The same strength on every parameter."""
        return torch.full_like(self.identity, strength)

    def odir_penalty(self, off_diagonal: float, intercept: float) -> Tensor:
        """The strength of the penalty on each parameter [W | b]. (k, k + 1)"""
        k = len(self.identity)
        # W is T times as large in these units, so its square counts 1 / T² as much.
        strength = torch.full_like(self.identity, off_diagonal / (k * (k - 1)) * self.unit**2)
        strength.diagonal().zero_()
        strength[:, -1] = intercept / k
        return strength + RIDGE

    def nll(self, parameters: Tensor) -> float:
        """The summed NLL of these rows."""
        log_probs = self.kind.scores(self.x, parameters).log_softmax(1)
        return float(nll_loss(log_probs, self.labels, reduction="sum"))

    def folds(self, n_folds: int) -> list[tuple["Scaled", "Scaled"]]:
        """Ways to divide the rows into a part to fit and a part held out, each class spread evenly over the parts."""
        part = torch.empty_like(self.labels)
        part[torch.argsort(self.labels, stable=True)] = torch.arange(len(part), device=part.device) % n_folds
        return [(self._rows(part != i), self._rows(part == i)) for i in range(min(n_folds, len(part)))]

    def _rows(self, chosen: Tensor) -> "Scaled":
        return Scaled(self.kind, self.x[chosen], self.labels[chosen], self.unit)


class CrossValidation:
    """The NLL of rows left out of the fit, for penalties from the strongest down."""

    def __init__(self, features: Scaled, n_folds: int) -> None:
        self.n = len(features.x)
        self.folds = features.folds(n_folds)
        self.best = [features.identity] * len(self.folds)
        self.tried: list[list[float]] = []

    def descend(self, pairs: list[tuple[float, float]]) -> tuple[float, float]:
        """The best of these pairs of λ and μ; it stops where the NLL gets clearly worse."""
        found, chosen, least = self.best, pairs[0], math.inf
        for pair in pairs:
            found = [
                fit.fit(make_objective("nll"), fit.odir_penalty(*pair), start=start, tolerance=ROUGHLY).parameters
                for (fit, _), start in zip(self.folds, found, strict=True)
            ]
            score = sum(held_out.nll(p) for (_, held_out), p in zip(self.folds, found, strict=True)) / self.n
            self.tried.append([*pair, score])
            if score < least:
                self.best, chosen, least = found, pair, score
            elif score > WORSE * least:
                break
        return chosen


def positive(setting: str, value: object) -> None:
    """Refuse anything but a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"{setting} must be a positive number; got {value!r}")
