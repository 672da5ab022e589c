"""Temperature scaling by calibration error."""

from typing import Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.inverse_temperature import (
    caution_of,
    divided,
    fit_inverse_temperature,
    near_blocks,
    unit_of,
)
from temperance.calibrators.base import Calibrator, Shared, calibrator
from temperance.numerics import bin_edges
from temperance.objectives import Nll
from temperance.settings import Count

# Integers divided by ten are the nearest float64 values; adding 0.1 repeatedly would drift.
GRID = torch.arange(1, 101, dtype=torch.float64) / 10

# Two temperatures whose errors differ by less than this are equally good.
ROUNDING = 1e-12


@calibrator(family="temperature", preserves_argmax=True, steady_from=200)
class TemperatureEce(Calibrator):
    """Temperature scaling with the temperature that gives the least ECE on the data it is fitted to.

    T is the best of 0.1, 0.2, …, 10, the smallest of equally good ones; these are multiplied by a power of two if the
    logits of most samples differ by more than 256. ECE jumps when a sample changes bins, so a
    finer grid or a search would follow noise; and the T with the least ECE on the fitted data is not quite the best on
    new data. Samples without a mistake lead to an end of the grid, which is not an optimum; T is then that of
    `temperature`, and `fit` warns.

    n_bins  bins of the ECE

    Frenkel and Goldberger, Network calibration by class-based temperature scaling, 2021; Mukhoti et al., 2020.
    """

    temperature: Tensor

    def __init__(self, *, n_bins: Count = 15, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.n_bins = n_bins

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        grid = GRID.to(logits.device) * unit_of(logits)
        best, error = least_ece(logits, labels, grid, self.n_bins)
        temperature, self.info = grid[best], {"ece": error, "at_bound": False}
        if best in (0, len(GRID) - 1):
            inverse, record = fit_inverse_temperature(Nll(), logits, labels)
            temperature = logits.new_tensor(1 / inverse)
            self.info = {
                "ece": float(ece_of_temperatures(logits, labels, temperature[None], self.n_bins)),
                "at_bound": True,
                "caution": f"the least ECE is at {float(grid[best]):g}, an end of the grid. The least NLL is at "
                f"{1 / inverse:.3g}, which is taken instead",
            } | caution_of(record)
        self._keep("temperature", temperature)

    def _calibrate(self, logits: Tensor) -> Tensor:
        return divided(logits, self.temperature)


def least_ece(logits: Tensor, labels: Tensor, grid: Tensor, n_bins: int) -> tuple[int, float]:
    """The index in a grid of the temperature with the least ECE, the first of equally good ones, and its ECE."""
    errors = ece_of_temperatures(logits, labels, grid, n_bins)
    best = int((errors <= errors.amin() + ROUNDING).nonzero()[0])
    return best, float(errors[best])


def ece_of_temperatures(logits: Tensor, labels: Tensor, temperatures: Tensor, n_bins: int) -> Tensor:
    """The ECE on these rows of each temperature, in one pass over the rows. (t,)"""
    edges = bin_edges(n_bins, logits.device)
    shift = torch.arange(len(temperatures), device=logits.device)[:, None] * n_bins
    # Correctness minus confidence, summed over each bin: the ECE is the sum of their absolute values over n.
    gaps = torch.zeros(len(temperatures) * n_bins, dtype=torch.float64, device=logits.device)
    ones, inverse = logits.new_ones(logits.shape[1]), (1 / temperatures).tolist()
    for rows, y, _ in near_blocks(logits, labels):
        x = rows - rows.amax(1, keepdim=True)
        is_top = x == 0
        right = is_top.gather(1, y[:, None]).squeeze(1) & (is_top.cumsum(1).gather(1, y[:, None]).squeeze(1) == 1)
        power = torch.empty_like(x)
        # exp(−log Σ) rather than 1 / Σ, so that a tie falls into the same bin as when the probabilities are measured.
        confidence = torch.stack([torch.mul(x, s, out=power).exp_() @ ones for s in inverse]).log_().neg_().exp_()
        index = (torch.bucketize(confidence, edges) - 1).clamp_(0, n_bins - 1) + shift
        gaps += torch.bincount(index.reshape(-1), (right.double() - confidence).reshape(-1), minlength=len(gaps))
    return gaps.reshape(len(temperatures), n_bins).abs().sum(1) / len(logits)
