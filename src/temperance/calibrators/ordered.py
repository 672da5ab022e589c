"""Intra-order-preserving functions: maps of all logits that keep their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn.functional import elu, softplus

from temperance.calibrators._fit.inverse_temperature import caution_of, fit_inverse_temperature
from temperance.calibrators._fit.solvers import WithObjective
from temperance.calibrators.base import Shared, calibrator
from temperance.objectives import Nll, ObjectiveName
from temperance.settings import Count, CountOrZero, NonNegative, PositiveFraction, Seed

ADAM_MEAN, ADAM_SQUARE = 0.9, 0.999

# No gain is smaller than this: a gain rounded to zero would make different logits equal.
LEAST_GAIN = 1e-6

# The scalar map of "diag" is integrated over this many nodes at quantiles of the logits, for detail where they are
# dense, and as many evenly spaced ones, to cover their range.
NODES = 256


@calibrator(family="ordered", preserves_argmax=True, takes_objective=True)
class OrderPreserving(WithObjective):
    """A small network that stretches the gaps between sorted logits, and so never changes their order.

    With z sorted in descending order, gaps d_i = z_(i) − z_(i+1) and positive gains m_i (Rahimi et al. 2020, Theorem 1)

        p = softmax(f),   f_(i) = Σ_{j ≥ i} d_j · m_j,   f_(k) = 0,   m = softplus(network)

    so equal logits stay equal. In the variant "diag" there are no gains: one increasing function, the integral of
    elu(network) + 1, maps every logit separately. On real predictions "oi" was nearly always the best of the three
    variants, and "op" overfitted with many classes.

    The network, `depth` layers of `width` units, sees z minus its row mean, so a number added to a row changes nothing,
    and log-probabilities work as well as logits. It starts as temperature scaling and minimises the objective with
    Adam, in shuffled batches and with a learning rate that falls to zero; `seed` fixes its start and the batches.

    The authors average five such networks from a cross-validation; this is one, without their option to add z to f.
    Their "diag" integrates separately for each logit; here all logits share one fine grid. The slope is linear between
    its nodes and constant beyond them.

    variant                              what the network sees: "oi" (order-invariant) the sorted logits, so it cannot
                                         tell one class from another; "op" (order-preserving) the logits in class
                                         order; "diag" one logit at a time
    width                                units per layer
    depth                                number of layers
    epochs, learning_rate, weight_decay  of the training with Adam
    batch_size                           samples per step
    seed                                 for the initial weights and the batches

    Rahimi et al., "Intra order-preserving functions for calibration of multi-class neural networks" (NeurIPS 2020).
    """

    scale: Tensor
    nodes: Tensor
    slopes: Tensor

    def __init__(
        self,
        *,
        variant: Literal["oi", "op", "diag"] = "oi",
        width: Count = 10,
        depth: CountOrZero = 2,
        epochs: Count = 40,
        batch_size: Count = 256,
        learning_rate: PositiveFraction = 0.01,
        weight_decay: NonNegative = 5e-4,
        seed: Seed = 0,
        objective: ObjectiveName = "nll",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, **shared)
        self.variant = variant
        self.width = width
        self.depth = depth
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.seed = seed

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        slope, record = fit_inverse_temperature(Nll(), logits, labels)
        self.info = caution_of(record)
        z = centred(logits)
        size = z.square().mean().sqrt()
        self._keep("scale", torch.where(size > 0, size, 1.0))
        generator = torch.Generator().manual_seed(self.seed)
        if self.variant == "diag":
            self._fit_diagonal(z, labels, slope, generator)
        else:
            self._fit_gains(z, labels, slope, generator)

    def _calibrate(self, logits: Tensor) -> Tensor:
        z = centred(logits)
        if self.variant == "diag":
            return integral(z, self.nodes, self.slopes).log_softmax(1)
        ordered, order = z.sort(dim=1, descending=True, stable=True)
        network: list[Tensor] = [getattr(self, f"network_{i}") for i in range(2 * self.depth + 2)]
        return unsorted(stretch(ordered, gains(network, self._seen(z, ordered))), order).log_softmax(1)

    def _seen(self, z: Tensor, ordered: Tensor) -> Tensor:
        return (ordered if self.variant == "oi" else z) / self.scale

    def _fit_gains(self, z: Tensor, labels: Tensor, slope: float, generator: torch.Generator) -> None:
        k = z.shape[1]
        network = self._network(k, k - 1, math.log(math.expm1(slope)), generator, z)
        ordered, order = z.sort(dim=1, descending=True, stable=True)
        seen = self._seen(z, ordered)

        def log_probs(rows: Tensor) -> Tensor:
            return unsorted(stretch(ordered[rows], gains(network, seen[rows])), order[rows]).log_softmax(1)

        self._train(network, log_probs, labels, generator)
        for i, parameter in enumerate(network):
            self._keep(f"network_{i}", parameter)

    def _fit_diagonal(self, z: Tensor, labels: Tensor, slope: float, generator: torch.Generator) -> None:
        network = self._network(1, 1, slope - 1 if slope >= 1 else math.log(slope), generator, z)
        some = z.flatten()[torch.randint(z.numel(), (1 << 16,), generator=generator).to(z.device)]
        share = torch.linspace(0, 1, NODES, dtype=z.dtype, device=z.device)
        low, high = z.amin(), torch.maximum(z.amax(), z.amin() + self.scale)
        nodes = torch.unique(torch.cat([some.quantile(share), torch.lerp(low, high, share)]))

        def slopes() -> Tensor:
            return (elu(run(network, nodes[:, None] / self.scale)) + 1).clamp_min(LEAST_GAIN).squeeze(1)

        def log_probs(rows: Tensor) -> Tensor:
            return integral(z[rows], nodes, slopes()).log_softmax(1)

        self._train(network, log_probs, labels, generator)
        self._keep("nodes", nodes)
        self._keep("slopes", slopes())

    def _network(self, n_in: int, n_out: int, start: float, generator: torch.Generator, like: Tensor) -> list[Tensor]:
        """Alternating weights and biases; the output is initially the constant `start`."""
        sizes = [n_in, *[self.width] * self.depth, n_out]
        network: list[Tensor] = []
        for before, after in itertools.pairwise(sizes):
            weight = torch.randn(before, after, generator=generator, dtype=like.dtype) * math.sqrt(2 / before)
            network += [weight.to(like.device), like.new_zeros(after)]
        network[-2].zero_()
        network[-1].fill_(start)
        return [parameter.requires_grad_() for parameter in network]

    def _train(
        self, network: list[Tensor], log_probs: Callable[[Tensor], Tensor], labels: Tensor, generator: torch.Generator
    ) -> None:
        """Adam (Kingma and Ba, 2015) with a cosine schedule; torch's own imports its compiler, which takes seconds."""
        n, objective = len(labels), self._make_objective()
        steps = self.epochs * math.ceil(n / self.batch_size)
        means, squares = ([torch.zeros_like(parameter) for parameter in network] for _ in range(2))
        step = 0
        for _ in range(self.epochs):
            for rows in torch.split(torch.randperm(n, generator=generator).to(network[0].device), self.batch_size):
                rate = self.learning_rate * (1 + math.cos(math.pi * step / steps)) / 2
                step += 1
                with torch.enable_grad():
                    gradients = torch.autograd.grad(objective(log_probs(rows), labels[rows]), network)
                for parameter, gradient, mean, square in zip(network, gradients, means, squares, strict=True):
                    slope = gradient.add(parameter, alpha=self.weight_decay)
                    mean.lerp_(slope, 1 - ADAM_MEAN)
                    square.lerp_(slope.square(), 1 - ADAM_SQUARE)
                    root = (square / (1 - ADAM_SQUARE**step)).sqrt_().add_(1e-8)
                    parameter.addcdiv_(mean, root, value=-rate / (1 - ADAM_MEAN**step))


def centred(logits: Tensor) -> Tensor:
    """Logits minus the mean of their row."""
    return logits - logits.mean(1, keepdim=True)


def run(network: list[Tensor], x: Tensor) -> Tensor:
    """The output of a network of alternating weights and biases, with ReLU between the layers."""
    for weight, bias in zip(network[:-2:2], network[1:-2:2], strict=True):
        x = (x @ weight + bias).relu()
    return x @ network[-2] + network[-1]


def gains(network: list[Tensor], seen: Tensor) -> Tensor:
    """The positive factor for each gap. (n, k − 1)"""
    return softplus(run(network, seen)).clamp_min(LEAST_GAIN)


def stretch(ordered: Tensor, gains: Tensor) -> Tensor:
    """Logits in descending order (n, k) with each gap multiplied by its gain (n, k − 1).

    This is f_(i) − f_(1), which has the same softmax; summed from the top, so that the first gap is exact.
    """
    below = -((ordered[:, :-1] - ordered[:, 1:]) * gains).cumsum(1)
    return torch.cat([torch.zeros_like(below[:, :1]), below], dim=1)


def unsorted(ordered: Tensor, order: Tensor) -> Tensor:
    """Sorted rows back in class order."""
    return torch.zeros_like(ordered).scatter(1, order, ordered)


def integral(z: Tensor, nodes: Tensor, slopes: Tensor) -> Tensor:
    """The increasing function of z, zero at the first node, whose slope is linear between nodes and constant beyond."""
    width = nodes.diff()
    area = torch.cat([width.new_zeros(1), (width * (slopes[:-1] + slopes[1:]) / 2).cumsum(0)])
    left = (torch.searchsorted(nodes, z.contiguous()) - 1).clamp(0, len(width) - 1)
    beyond_left = z - nodes[left]
    within = torch.minimum(beyond_left.clamp_min(0), width[left])
    bend = (slopes.diff() / width)[left]
    return area[left] + slopes[left] * beyond_left + bend * within * (beyond_left - within / 2)
