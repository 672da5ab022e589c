"""The parts of MaC-Cal: a small classifier whose weights are dropped at random, and rules for the keep rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.errors import InputError
from temperance.heads.features import Features
from temperance.heads.loop import generator_of
from temperance.settings import Bounds, Count, of_kind

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu}


class UsedWeights(NamedTuple):
    """A masked classifier as it is used: its weights and biases, and the masks to average over, if any."""

    weights: Tensor  # (size,)
    masks: Tensor  # bool (s, number of weights that can be masked)


@dataclass(frozen=True)
class Layout:
    """One or two linear layers with all their numbers in one vector: first the weights, then the biases.

    With one vector, a mask is one draw and one product, and an optimiser step is one kernel. For networks this small
    the time depends on the number of operations, not on their size.
    """

    sizes: tuple[int, ...]  # inputs, hidden units if there are any, outputs
    activation: str | None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of each layer."""
        return [(out, inp) for inp, out in zip(self.sizes, self.sizes[1:], strict=False)]

    @property
    def counts(self) -> list[int]:
        """The size of each piece of the vector: weights layer by layer, then biases layer by layer."""
        return [out * inp for out, inp in self.shapes] + [out for out, _ in self.shapes]

    @property
    def size(self) -> int:
        return sum(self.counts)

    def weights(self, layers: str) -> slice:
        """Where the vector holds the weights of the layers "both", "first" or "last"."""
        of_layer = self.counts[: len(self.shapes)]
        if layers == "both" or len(of_layer) == 1:
            return slice(0, sum(of_layer))
        return slice(0, of_layer[0]) if layers == "first" else slice(of_layer[0], sum(of_layer))

    def layers(self, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each layer, as views of the vector."""
        pieces = vector.split_with_sizes(self.counts)
        n = len(self.shapes)
        return [(pieces[i].view(shape), pieces[n + i]) for i, shape in enumerate(self.shapes)]

    def logits(self, vector: Tensor, features: Tensor) -> Tensor:
        """(n, d) → (n, k)"""
        (weight, bias), *rest = self.layers(vector)
        found = F.linear(features, weight, bias)
        for weight, bias in rest:
            found = F.linear(found if self.activation is None else ACTIVATIONS[self.activation](found), weight, bias)
        return found

    def mean_logits(self, used: UsedWeights, masked: slice, features: Tensor) -> Tensor:
        """Logits, or with masks the log of the mean probability under them. (n, d) → (n, k)"""
        if not len(used.masks):
            return self.logits(used.weights, features)
        vector, total = used.weights.clone(), features.new_zeros(())
        for mask in used.masks:
            vector[masked] = used.weights[masked] * mask
            total = total + self.logits(vector, features).softmax(1)
        return (total / len(used.masks)).clamp_min(torch.finfo(features.dtype).tiny).log()

    def start(self, generator: torch.Generator) -> Tensor:
        """Initial values as torch gives them to linear layers, uniform within ±1/√inputs."""
        vector = torch.empty(self.size)
        for weight, bias in self.layers(vector):
            bound = 1 / math.sqrt(weight.shape[1])
            weight.uniform_(-bound, bound, generator=generator)
            bias.uniform_(-bound, bound, generator=generator)
        return vector


def step_bound(epoch: int, epochs: int, first: float = 0.1, last: float = 0.001) -> float:
    """How far the rate may move after epoch t, counted from 1, of T (eq. 13): η_t = η_first (η_last / η_first)^{t/T}.

    >>> round(step_bound(10, 40), 6)
    0.031623
    """
    return first * math.exp(math.log(last / first) * epoch / epochs)


def moved_rate(rate: float, confidence: float, accuracy: float, acc_discount: float, bound: float) -> float:
    """The rate for the next epoch (eq. 12): q + clip(conf − γ acc, −η, η), clamped to [0, 1].

    >>> moved_rate(0.5, confidence=0.8, accuracy=0.98, acc_discount=0.95, bound=0.1)
    0.4
    """
    step = min(max(confidence - acc_discount * accuracy, -bound), bound)
    return min(max(rate + step, 0.0), 1.0)


def lower(values: Tensor, others: Tensor) -> bool:
    """Are the values, paired by sample, lower than the others beyond chance? A one-sided t-test at 5 %."""
    from scipy.special import stdtr  # here, because it takes longer to import than torch's own parts

    change, n = values - others, len(values)
    error = float(change.std()) / math.sqrt(n) if n > 1 else 0.0
    return error > 0 and float(stdtr(n - 1, float(change.mean()) / error)) < 0.05


class MaskedInference(NamedTuple):
    """A classifier with a share of its weights masked."""

    ratio: float  # the share of weights that are masked
    accuracy: float
    confidence: float  # mean of the largest probability
    histogram: tuple[int, ...]  # samples by confidence, in bins of equal width from 0 to 1


def masked_inference(
    features: Features,
    *,
    ratios: Sequence[float] = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    part: str = "test",
    batch_size: int = 128,
    n_bins: int = 20,
    seed: int = 0,
) -> list[MaskedInference]:
    """The network's own classifier with weights masked at random, for each masking ratio: MaC-Cal's motivation, Fig. 1.

    Nothing is trained or rescaled. Every batch has its own mask, and biases are never masked. As the ratio rises, the
    confidence falls, and the accuracy with it.
    """
    of_kind("batch_size", batch_size, Count)
    of_kind("n_bins", n_bins, Count)
    for ratio in ratios:
        of_kind("a masking ratio", ratio, Annotated[float, Bounds(0, 1, below=True)])
    rows = {"train": features.train, "val": features.val, "test": features.test}.get(part)
    if rows is None:
        raise InputError(f"there are no features of a part {part!r}; pass {part}_features and {part}_labels")
    if features.classifier is None:
        raise InputError("masked inference needs the network's classifier: pass classifier_weight and classifier_bias")
    weight, bias = features.classifier
    found = []
    for number, ratio in enumerate(ratios):
        generator, mask = generator_of(weight.device, seed, number), torch.empty_like(weight)
        right, confidences = 0, []
        for x, y in rows.blocks(batch_size):
            log_probs = F.linear(x, weight * mask.bernoulli_(1 - ratio, generator=generator), bias).log_softmax(1)
            top, prediction = log_probs.max(1)
            right += int((prediction == y).sum())
            confidences.append(top.exp())
        confidence = torch.cat(confidences).cpu()
        histogram = torch.histc(confidence, n_bins, 0, 1).long().tolist()
        mean = float(confidence.double().mean())
        found.append(MaskedInference(float(ratio), right / len(rows), mean, tuple(histogram)))
    return found
