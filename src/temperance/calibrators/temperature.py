"""Temperature scaling: one number that makes every prediction more or less confident."""

from typing import Literal, Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.inverse_temperature import divided, fit_inverse_temperature, stream_inverse_temperature
from temperance.calibrators._fit.solvers import Solver, WithSolver
from temperance.calibrators._fit.streaming import StreamCalibrator, Streamed
from temperance.calibrators.base import Shared, calibrator
from temperance.objectives import ObjectiveName


@calibrator(family="temperature", preserves_argmax=True, takes_objective=True, takes_weights=True, scale_free=True)
class Temperature(StreamCalibrator, WithSolver):
    """Temperature scaling: divides the logits by one number, fitted to the labels.

    p = softmax(z / T), T = argmin of the objective (by default NLL) over T in [0.01, 100], times a power of two if the
    logits of most samples differ by more than 256. A convex objective has one optimum in 1 / T, which safeguarded
    Newton steps find. The order of the classes, and so the accuracy, never changes. If all logits are equal, T makes no
    difference and is 1.

    The trap: samples without a mistake are fitted best by T = 0, and a few samples with a single mistake by a T nearly
    as small. Without a mistake, or if the standard error of ln T is above 0.8, a prior around T = 1.5 is used, and
    `fit` warns.

    smoothing  "laplace" bounds the cost of a confident mistake: p becomes (n p + 1) / (n + k), as if each of the k
               classes had been seen once more than in the n samples of the fit

    >>> logits = [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 4.0]]
    >>> round(float(Temperature().fit(logits, [0, 1, 1, 2]).temperature), 6)
    2.232443

    Guo et al., On calibration of modern neural networks, ICML 2017.
    """

    temperature: Tensor
    n_samples: Tensor  # with smoothing only

    def __init__(
        self,
        *,
        smoothing: Literal["laplace"] | None = None,
        objective: ObjectiveName = "nll",
        solver: Solver = "exact",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, solver=solver, **shared)
        self.smoothing = smoothing

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        objective = self._make_objective(weights)
        inverse, self.info = fit_inverse_temperature(objective, logits, labels, self.solver)
        self._keep("temperature", logits.new_tensor(1 / inverse))
        if self.smoothing:
            self._keep("n_samples", logits.new_tensor(objective.n_samples(labels)))

    def _fit_stream(self, stream: Streamed) -> None:
        inverse, self.info = stream_inverse_temperature(self._streamed_objective, stream)
        self._keep("temperature", stream.logits.new_tensor(1 / inverse))
        if self.smoothing:
            self._keep("n_samples", stream.logits.new_tensor(stream.n))

    def _calibrate(self, logits: Tensor) -> Tensor:
        log_probs = divided(logits, self.temperature)
        if not self.smoothing:
            return log_probs
        n, k = self.n_samples, logits.shape[1]
        return torch.logaddexp(log_probs + n.log(), torch.zeros_like(log_probs)) - (n + k).log()
