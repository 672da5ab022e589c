"""A pool of predictions: log p ∝ Σ_m w_m log p_m, where the weights w ≥ 0 minimise the NLL, a convex problem."""

import torch
from torch import Tensor

from temperance.arrays import CORE_BLOCK_VALUES, block_rows
from temperance.calibrators._fit.descent import descend
from temperance.threads import one_thread

# The weights are fitted to the samples and this many pseudo-samples, labelled as the first member predicts. So a member
# that does well on a few samples by chance gets less weight, and no weight is infinite.
PSEUDO_SAMPLES = 10


def pool(log_probs: Tensor | list[Tensor], weights: Tensor) -> Tensor:
    """log p ∝ Σ_m w_m log p_m."""
    total = torch.zeros_like(log_probs[0])
    for found, weight in zip(log_probs, weights, strict=True):
        total.addcmul_(found, weight)
    return total.log_softmax(1)


@one_thread()  # its many small operations would wait for torch's threads
def pool_weights(log_probs: Tensor, labels: Tensor, counts: Tensor, start: Tensor | None = None) -> Tensor:
    """The weights w ≥ 0 (m,) that minimise the NLL of the pool of (m, n, k), pseudo-samples included."""
    problem = _PoolProblem(log_probs, labels, counts)
    even = torch.full_like(problem.target, 1 / len(log_probs))
    return descend(
        problem, even if start is None else start, low=0.0, still=1e-9, hessian=lambda: problem.hessian
    ).parameters


class _PoolProblem:
    """The NLL of a pool as a function of its weights (m,); it remembers the Hessian of its last evaluation."""

    hessian: Tensor

    def __init__(self, log_probs: Tensor, labels: Tensor, counts: Tensor) -> None:
        self.log_probs, self.each = log_probs, counts / counts.sum()
        # Samples and pseudo-samples together, relative to the samples.
        self.more = 1 + PSEUDO_SAMPLES / float(counts.sum())
        rows = block_rows(log_probs[:, 0].numel(), log_probs.device, CORE_BLOCK_VALUES)
        self.slices = [slice(i, i + rows) for i in range(0, len(labels), rows)]
        of_labels = log_probs.gather(2, labels.expand(log_probs.shape[:2])[:, :, None]).squeeze(2)
        self.target = of_labels @ self.each
        for s in self.slices:
            believed = (log_probs[0, s].exp() * log_probs[:, s]).sum(2)
            self.target += (self.more - 1) * (believed @ self.each[s])

    def __call__(self, weights: Tensor) -> tuple[float, Tensor]:
        """The value and its gradient."""
        value, gradient, self.hessian = 0.0, torch.zeros_like(weights), torch.zeros_like(weights.diag())
        for s in self.slices:
            found, each = self.log_probs[:, s], self.each[s]
            scores = torch.tensordot(weights, found, 1)
            normaliser = scores.logsumexp(1)
            likely = found * scores.sub_(normaliser[:, None]).exp_()
            mean = likely.sum(2)
            value += float(normaliser @ each)
            gradient += mean @ each
            squares = likely.mul_(each[:, None]).flatten(1) @ found.flatten(1).T
            self.hessian += squares - (mean * each) @ mean.T
        self.hessian *= self.more
        return self.more * value - float(weights @ self.target), self.more * gradient - self.target
