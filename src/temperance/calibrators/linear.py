"""Linear maps of the logits: one factor and shift for each class, or a whole matrix."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn.functional import linear, nll_loss

from temperance.calibrators._fit.descent import Solution
from temperance.calibrators._fit.inverse_temperature import (
    caution_of,
    fit_inverse_temperature,
    stream_inverse_temperature,
)
from temperance.calibrators._fit.maps import Diagonal, Full, Map
from temperance.calibrators._fit.regression import Regression, fit_map, newton
from temperance.calibrators._fit.solvers import StreamedProblem, WithObjective, minimise, prior_samples
from temperance.calibrators._fit.streaming import StreamCalibrator, Streamed
from temperance.calibrators.base import Shared, calibrator
from temperance.errors import InputError
from temperance.objectives import Nll, Objective, ObjectiveName, counting
from temperance.settings import AtLeastTwo, Positive

# Strengths of the penalty that cross-validation tries, strongest first.
STRENGTHS = [10.0**power for power in range(6, -3, -1)]

# With a gradient this small the NLL is accurate enough to compare penalties.
ROUGHLY = 1e-4

# As the penalty weakens the NLL falls, then the map overfits: stop when the NLL exceeds this multiple of the lowest.
WORSE = 1.01

# The logarithm of the smallest normal float64.
LOG_TINY = math.log(torch.finfo(torch.float64).tiny)

# No penalty is weaker than this, so that the bias of a class without samples stays finite.
RIDGE = 1e-6


class Ridged(WithObjective):
    """A linear map of the logits with a weak penalty on it."""

    kind: ClassVar[Map]

    def __init__(
        self, *, objective: ObjectiveName = "nll", ridge: Positive | None = None, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(objective=objective, **shared)
        self.ridge = ridge

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        features = Scaled(self.kind, logits, labels, weights=weights)
        ridge = features.weak_ridge(features.identity.numel()) if self.ridge is None else self.ridge
        found = features.fit(self._make_objective(weights), torch.full_like(features.identity, ridge))
        self.info = found.info | features.caution(found.parameters)
        self._keep_map(found.parameters, features.unit)

    def _keep_map(self, parameters: Tensor, unit: float) -> None:
        """Store the map in the units of the logits."""
        raise NotImplementedError


@calibrator(family="linear", preserves_argmax=False, takes_objective=True, takes_weights=True, scale_free=True)
class Vector(StreamCalibrator, Ridged):
    """Vector scaling: a factor and a shift for each class.

    p = softmax(v ∘ z + b), v and b minimising the objective + `ridge` (‖T v − 1‖² + ‖b‖²), with T the best single
    temperature. It can follow a change of class frequencies, which one temperature cannot; with few samples per class
    it overfits, and `structured-vector` is safer.

    Without a penalty there is no optimum if a class has no samples or is separated without a mistake. The default
    `ridge`, 2 k / n² but at least 1e-6, decides there and is too weak to matter with many samples per class.

    ridge  strength of the penalty; None: 2 k / n², at least 1e-6

    >>> Vector(ridge=1e-6).fit([[0.0, 0.0]] * 4, [0, 0, 0, 1]).predict_proba([[0.0, 0.0]]).round(4)
    array([[0.75, 0.25]])

    Guo et al., On calibration of modern neural networks, ICML 2017.
    """

    kind = Diagonal()

    scale: Tensor
    bias: Tensor

    def _fit_stream(self, stream: Streamed) -> None:
        objective = self._streamed_objective()
        unit, _ = stream_inverse_temperature(Nll, stream)
        rows = stream.mapped(lambda logits: logits * unit)
        centre = self.kind.identity(stream.k)
        ridge = self.ridge or max(RIDGE, prior_samples(centre.numel(), stream.n) / stream.n)

        def log_probs(x: Tensor, free: Tensor) -> Tensor:
            return self.kind.scores(x, free.view_as(centre)).log_softmax(1)

        def penalty(free: Tensor) -> Tensor:
            # Scaled by the rows' total weight, so that it is as strong as if the weights summed to one.
            total = objective.class_weights_of(stream.counts) @ stream.counts.double()
            return ridge * total * (free.view_as(centre) - centre).square().sum()

        start = centre
        if not objective.adapts:
            strength = torch.full_like(centre, ridge)
            start = Scaled(self.kind, rows.logits, rows.labels, unit).fit(self._make_objective(), strength).parameters
        found = minimise(StreamedProblem(objective, log_probs, rows, penalty=penalty), start.reshape(-1))
        self.info = found.info
        scale, bias = found.parameters.view_as(centre)
        # A shift of all classes changes no probability; the penalty is least where the mean is zero.
        self._keep_map(torch.stack([scale, bias - bias.mean()]), unit)

    def _keep_map(self, parameters: Tensor, unit: float) -> None:
        self._keep("scale", parameters[0] * unit)
        self._keep("bias", parameters[1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        return torch.addcmul(self.bias, logits, self.scale).log_softmax(1)


@calibrator(
    family="linear",
    preserves_argmax=False,
    takes_objective=True,
    takes_weights=True,
    scale_free=True,
    most_classes=500,
)
class Matrix(Ridged):
    """Matrix scaling: every new logit is a weighted sum of all the old ones. It overfits: see matrix-odir.

    p = softmax(W z + b), W and b minimising the objective + `ridge` (‖T W − I‖² + ‖b‖²). With k (k + 1) parameters it
    memorises its samples as soon as there are many classes: it is here for comparison, use `structured-matrix` instead.
    The default `ridge`, k (k + 1) / n² but at least 1e-6, only keeps it from ending in certainty.

    ridge  strength of the penalty; None: k (k + 1) / n², at least 1e-6

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


@calibrator(family="linear", preserves_argmax=False, takes_objective=True, takes_weights=True, most_classes=300)
class MatrixOdir(WithObjective):
    """Matrix scaling with a penalty on everything but the diagonal (ODIR).

    p = softmax(W z + b), with λ / (k (k − 1)) Σ_{i≠j} W_ij² + μ / k Σ_i b_i² added to the objective. The diagonal is
    free, except for the weak penalty of vector scaling on all parameters. So λ → ∞ gives vector scaling, and μ → ∞
    removes the shifts too.

    `off_diagonal` is λ and `intercept` is μ. If they are not given, cross-validation with `n_folds` folds chooses them
    for the least held-out NLL: first one value for both from `strengths` (10⁶, 10⁵, … 10⁻²), from the strongest down
    until the NLL gets worse, then μ alone. The authors' program omits the divisors k (k − 1) and k by default, and
    penalises differences from the last row of W, which makes the last class special; here no class is.

    off_diagonal  λ, the penalty on the off-diagonal elements; None: by cross-validation
    intercept     μ, the penalty on the shifts; None: by cross-validation
    strengths     the values that cross-validation tries
    n_folds       number of folds of the cross-validation

    Kull et al., Beyond temperature scaling, NeurIPS 2019.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        *,
        objective: ObjectiveName = "nll",
        off_diagonal: Positive | None = None,
        intercept: Positive | None = None,
        strengths: Sequence[Positive] | None = None,
        n_folds: AtLeastTwo = 3,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, **shared)
        self.off_diagonal = off_diagonal
        self.intercept = intercept
        self.strengths = strengths
        self.n_folds = n_folds

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.strengths is not None and not self.strengths:
            raise InputError("strengths must be one or more positive numbers; got none")

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        objective = self._make_objective(weights)
        features = Scaled(Full(), self._features(logits), labels, weights=weights)
        (off_diagonal, intercept), tried = self._choose(features)
        found = features.fit(objective, features.odir_penalty(off_diagonal, intercept))
        chosen = {"off_diagonal": off_diagonal, "intercept": intercept, "tried": tried}
        self.info = found.info | chosen | features.caution(found.parameters)
        self._keep("weight", found.parameters[:, :-1] * features.unit)
        self._keep("bias", found.parameters[:, -1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        return linear(self._features(logits), self.weight, self.bias).log_softmax(1)

    def _features(self, logits: Tensor) -> Tensor:
        return logits

    def _choose(self, features: "Scaled") -> tuple[tuple[float, float], list[list[float]]]:
        """λ and μ, and [λ, μ, NLL] of every pair tried."""
        strengths = STRENGTHS if self.strengths is None else sorted(self.strengths, reverse=True)
        off_diagonal, intercept = self.off_diagonal, self.intercept
        if off_diagonal is not None and intercept is not None:
            return (off_diagonal, intercept), []
        search = CrossValidation(features, self.n_folds)
        chosen = search.descend([(off_diagonal or s, intercept or s) for s in strengths])
        if off_diagonal is None and intercept is None:
            chosen = search.descend([(chosen[0], s) for s in strengths])
        return chosen, search.tried


@calibrator(family="linear", preserves_argmax=False, takes_objective=True, takes_weights=True, most_classes=300)
class Dirichlet(MatrixOdir):
    """Dirichlet calibration: matrix scaling of the log-probabilities, with a penalty on all but the diagonal (ODIR).

    p = softmax(W ln q + b) with q = softmax(z): the map that calibrates a classifier whose probabilities follow a
    Dirichlet distribution for each class. Penalty and settings as in `matrix-odir`. Probabilities are clamped to the
    smallest normal float64.

    Kull et al., Beyond temperature scaling, NeurIPS 2019.
    """

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(1).clamp_min(LOG_TINY)


class Scaled:
    """Features in units of the best temperature: the identity map is a good start, and gradients are comparable."""

    def __init__(
        self,
        kind: Map,
        features: Tensor,
        labels: Tensor,
        unit: float | None = None,
        *,
        weights: Tensor | None = None,
    ) -> None:
        self.record: dict[str, Any] = {}
        self.weights = weights
        if unit is None:
            unit, self.record = fit_inverse_temperature(self.nll(), features, labels)
            features = features * unit
        self.kind = kind
        self.x = features
        self.labels = labels
        self.unit = unit
        self.identity = kind.identity(features.shape[1]).to(features.device)

    def fit(self, objective: Objective, penalty: Tensor) -> Solution:
        """The best map under a penalty on its distance from the identity."""
        return fit_map(self.kind, self.x, self.labels, objective, penalty=penalty, centre=self.identity)

    def regression(self, penalty: Tensor) -> Regression:
        """The NLL of such a map, to be minimised under one penalty after another."""
        return Regression(self.kind, self.x, self.labels, self.nll(), penalty=penalty, centre=self.identity)

    def nll(self) -> Objective:
        """The NLL objective of these rows."""
        return counting("nll", self.weights)

    def weak_ridge(self, n_parameters: int) -> float:
        """A penalty that matters only where the samples do not decide."""
        n = self.nll().n_samples(self.labels)
        return max(RIDGE, prior_samples(n_parameters, n) / n)

    def odir_penalty(self, off_diagonal: float, intercept: float) -> Tensor:
        """The strength of the penalty on each parameter [W | b], including a weak one on the diagonal. (k, k + 1)"""
        k = len(self.identity)
        # W is T times as large in these units, so its square counts 1 / T² as much.
        strength = torch.full_like(self.identity, off_diagonal / (k * (k - 1)) * self.unit**2)
        strength.diagonal().zero_()
        strength[:, -1] = intercept / k
        return strength + self.weak_ridge(2 * k)

    def caution(self, parameters: Tensor) -> dict[str, Any]:
        """A caution if the samples do not determine the temperature, or the map predicts all of them right."""
        if "caution" in self.record:
            return caution_of(self.record)
        if bool((self.kind.scores(self.x, parameters).argmax(1) == self.labels).all()):
            says = f"the map predicts all {len(self.labels)} samples right, so only its penalty keeps it from certainty"
            return {"caution": f"{says}. Fit on more samples, or use structured-vector or structured-matrix"}
        return {}

    def total_nll(self, parameters: Tensor) -> float:
        """The summed NLL of these rows."""
        log_probs = self.kind.scores(self.x, parameters).log_softmax(1)
        losses = nll_loss(log_probs, self.labels, reduction="none")
        return float(losses.sum() if self.weights is None else losses @ self.weights)

    def folds(self, n_folds: int) -> list[tuple["Scaled", "Scaled"]]:
        """Splits of the rows into a part to fit on and a part held out, stratified by class."""
        part = torch.empty_like(self.labels)
        part[torch.argsort(self.labels, stable=True)] = torch.arange(len(part), device=part.device) % n_folds
        return [(self._rows(part != i), self._rows(part == i)) for i in range(min(n_folds, len(part)))]

    def _rows(self, chosen: Tensor) -> "Scaled":
        weights = None if self.weights is None else self.weights[chosen]
        return Scaled(self.kind, self.x[chosen], self.labels[chosen], self.unit, weights=weights)


class CrossValidation:
    """The held-out NLL, for penalties from the strongest down."""

    def __init__(self, features: Scaled, n_folds: int) -> None:
        self.n = features.nll().n_samples(features.labels)
        self.folds = features.folds(n_folds)
        self.problems = [fit.regression(torch.zeros_like(features.identity)) for fit, _ in self.folds]
        self.best = [features.identity] * len(self.folds)
        self.tried: list[list[float]] = []

    def descend(self, pairs: list[tuple[float, float]]) -> tuple[float, float]:
        """The best of these pairs of λ and μ; the search stops where the NLL gets clearly worse."""
        found, chosen, least = self.best, pairs[0], math.inf
        for pair in pairs:
            for (fit, _), problem in zip(self.folds, self.problems, strict=True):
                problem.penalise(fit.odir_penalty(*pair))
            found = [
                newton(problem, start, ROUGHLY).parameters for problem, start in zip(self.problems, found, strict=True)
            ]
            score = sum(held_out.total_nll(p) for (_, held_out), p in zip(self.folds, found, strict=True)) / self.n
            self.tried.append([*pair, score])
            if score < least:
                self.best, chosen, least = found, pair, score
            elif score > WORSE * least:
                break
        return chosen
