"""Vector and matrix scaling with penalties that weaken as the number of samples per parameter grows."""

from typing import ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn.functional import linear

from temperance.calibrators._fit.descent import TOLERANCE
from temperance.calibrators._fit.inverse_temperature import caution_of, fit_inverse_temperature
from temperance.calibrators._fit.maps import Diagonal, Full, Map
from temperance.calibrators._fit.regression import fit_map
from temperance.calibrators._fit.solvers import WithObjective
from temperance.calibrators.base import Shared, calibrator
from temperance.objectives import ObjectiveName
from temperance.settings import Positive


class Structured(WithObjective):
    """A linear map of temperature-scaled log-probabilities; the fewer the samples, the closer to the identity."""

    kind: ClassVar[Map]

    # The largest component of the gradient at the optimum.
    tolerance = TOLERANCE

    inverse_temperature: Tensor
    uniform_share: Tensor
    bias: Tensor

    def __init__(
        self,
        *,
        objective: ObjectiveName = "nll",
        diagonal: Positive = 1.0,
        intercept: Positive = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, **shared)
        self.diagonal = diagonal
        self.intercept = intercept

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        objective, k = self._make_objective(weights), logits.shape[1]
        n = objective.n_samples(labels)
        identity = self.kind.identity(k).to(logits.device)
        penalty = self._strengths(k) / n
        inverse, record = fit_inverse_temperature(objective, logits, labels)
        self._keep("inverse_temperature", logits.new_tensor(inverse))
        self._keep("uniform_share", logits.new_tensor(1 / (n + 1)))
        found = fit_map(
            self.kind,
            self._features(logits),
            labels,
            self._make_objective(weights),
            penalty=penalty.to(logits.device),
            centre=identity,
            tolerance=self.tolerance,
        )
        self.info = found.info | {"temperature": 1 / inverse} | caution_of(record)
        self._keep_map(found.parameters)

    def _features(self, logits: Tensor) -> Tensor:
        """Log-probabilities after temperature scaling, with a little of the uniform distribution mixed in."""
        probs = (logits * self.inverse_temperature).softmax(1)
        return (probs * (1 - self.uniform_share) + self.uniform_share / logits.shape[1]).log()

    def _strengths(self, k: int) -> Tensor:
        """The strength of the penalty on each parameter, times n."""
        raise NotImplementedError

    def _keep_map(self, parameters: Tensor) -> None:
        raise NotImplementedError


@calibrator(family="linear", preserves_argmax=False, takes_objective=True, takes_weights=True, scale_free=True)
class StructuredVector(Structured):
    """Structured vector scaling (SVS): temperature scaling, then a factor and a shift for each class as the data allow.

    p = softmax((1 + v) ∘ ln q + b), q = (1 − u) softmax(z / T) + u / k with u = 1 / (n + 1). T is fitted first; v and b
    then minimise the objective plus (k / n) (`diagonal` · ‖v‖² + `intercept` · ‖b‖²). The penalty fades as n grows, so
    this is temperature scaling with few samples per class and vector scaling with many.

    diagonal   strength of the penalty on the factors
    intercept  strength of the penalty on the shifts

    Berta, Holzmüller, Jordan and Bach, Structured matrix scaling for multi-class calibration, AISTATS 2026.
    """

    kind = Diagonal()

    scale: Tensor

    def _strengths(self, k: int) -> Tensor:
        return torch.tensor([[self.diagonal], [self.intercept]], dtype=torch.float64).expand(2, k) * k

    def _keep_map(self, parameters: Tensor) -> None:
        self._keep("scale", parameters[0])
        self._keep("bias", parameters[1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        return torch.addcmul(self.bias, self._features(logits), self.scale).log_softmax(1)


@calibrator(
    family="linear",
    preserves_argmax=False,
    takes_objective=True,
    takes_weights=True,
    scale_free=True,
    most_classes=1000,
)
class StructuredMatrix(Structured):
    """Structured matrix scaling (SMS): temperature scaling, then a matrix that moves away from it as the data allow.

    p = softmax((I + V) ln q + b), with q as in `structured-vector`. V and b minimise the objective plus
    (k / n) (`diagonal` · ‖diag V‖² + `intercept` · ‖b‖²) + (k (k − 1) / n) `off_diagonal` · ‖off-diagonal V‖²: the more
    parameters of a kind there are, the stronger the penalty on each, so thousands of parameters can be fitted to
    thousands of samples.

    diagonal      strength of the penalty on the diagonal of the matrix
    off_diagonal  strength of the penalty on the other elements of the matrix
    intercept     strength of the penalty on the shifts

    Berta, Holzmüller, Jordan and Bach, Structured matrix scaling for multi-class calibration, AISTATS 2026.
    """

    kind = Full()

    weight: Tensor

    def __init__(
        self,
        *,
        objective: ObjectiveName = "nll",
        diagonal: Positive = 1.0,
        off_diagonal: Positive = 1.0,
        intercept: Positive = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, diagonal=diagonal, intercept=intercept, **shared)
        self.off_diagonal = off_diagonal

    def _strengths(self, k: int) -> Tensor:
        strengths = torch.full((k, k + 1), self.off_diagonal * k * (k - 1), dtype=torch.float64)
        strengths.diagonal().fill_(self.diagonal * k)
        strengths[:, -1] = self.intercept * k
        return strengths

    def _keep_map(self, parameters: Tensor) -> None:
        self._keep("weight", parameters[:, :-1])
        self._keep("bias", parameters[:, -1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        return linear(self._features(logits), self.weight, self.bias).log_softmax(1)
