"""Meta-Cal: uniform predictions where the network is too uncertain to be trusted, temperature scaling elsewhere."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.curve import look_up
from temperance.calibrators._fit.inverse_temperature import caution_of, divided, fit_inverse_temperature
from temperance.calibrators.base import Calibrator, Shared, calibrator
from temperance.errors import InputError
from temperance.isotonic import isotonic
from temperance.objectives import Nll
from temperance.settings import PositiveFraction, Seed

# One sample in ten is used to find the threshold, at most this many; the rest to find the temperature.
MOST_FOR_THRESHOLD = 500

# Bins of entropy between which the accuracy of the kept predictions is interpolated.
N_BINS = 20


class EntropyThreshold(Calibrator):
    """Rows whose entropy is above a threshold become uniform; the others are scaled by a temperature."""

    threshold: Tensor
    temperature: Tensor

    def _keep_below(self, threshold: float, logits: Tensor, labels: Tensor) -> None:
        """Store the threshold, and the temperature of least NLL on those of these samples that are below it."""
        sure = entropy(logits) <= threshold
        inverse = 1.0
        if bool(sure.any()):
            inverse, record = fit_inverse_temperature(Nll(), logits[sure], labels[sure])
            self.info |= caution_of(record)
        self._keep("threshold", logits.new_tensor(threshold))
        self._keep("temperature", logits.new_tensor(1 / inverse))

    def _calibrate(self, logits: Tensor) -> Tensor:
        scaled = divided(logits, self.temperature)
        uniform = -scaled.new_tensor(logits.shape[1]).log()
        return torch.where((entropy(logits) <= self.threshold)[:, None], scaled, uniform)


@calibrator(family="selective", preserves_argmax=False, min_samples=10, steady_from=200)
class MetaMis(EntropyThreshold):
    """Makes the least certain predictions uniform, about a share alpha of the correct ones, and scales the rest.

    p = softmax(z / T) where the entropy of softmax(z) is at most a threshold, else 1 / k for every class. The threshold
    is the (1 − alpha) quantile of the entropy of a tenth of the correctly predicted samples, at most 500, drawn with
    `seed`; T minimises the NLL of the other samples, correct or not, up to the threshold. So the share of new correct
    predictions that become uniform is alpha give or take chance, and is above it about half of the time.

    The trap: a uniform row predicts nothing. Its argmax is class 0, or the last class if a program sorts and reverses,
    so the accuracy falls by an amount that depends on the program: report the accuracy of the network's own predictions
    too. Class 0 is right about once in k times, so uniform rows look well calibrated to ECE; NLL and Brier show what
    they cost. A sample exactly at the threshold is kept, so that alpha holds on saturated predictions, whose entropies
    are all zero; the authors' program makes it uniform.

    alpha  share of the correct predictions that become uniform, as estimated from those drawn
    seed   for drawing the samples that determine the threshold

    Ma and Blaschko, "Meta-Cal: well-controlled post-hoc calibration by ranking" (ICML 2021).
    """

    def __init__(self, *, alpha: PositiveFraction = 0.05, seed: Seed = 0, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.alpha = alpha
        self.seed = seed

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        right = (logits.argmax(1) == labels).nonzero().squeeze(1)
        drawn = _draw(right, self.seed)
        # If no prediction is correct, all of them may become uniform.
        threshold = -math.inf
        if len(drawn):
            threshold = float(entropy(logits[drawn]).quantile(1 - self.alpha, interpolation="higher"))
        others = torch.ones_like(labels, dtype=torch.bool)
        others[drawn] = False
        self._keep_below(threshold, logits[others], labels[others])


@calibrator(family="selective", preserves_argmax=False, min_samples=10, steady_from=500)
class MetaAcc(EntropyThreshold):
    """Makes the least certain predictions uniform until the rest has about a given accuracy, and scales the rest.

    Like `meta-mis`, but the samples below the threshold have the given `accuracy`. The threshold is found on a tenth of
    the samples, at most 500, drawn with `seed`: a non-increasing curve through the entropy of each of 20 bins of equal
    mass as a function of the accuracy up to that bin, read at `accuracy`. The default accuracy is halfway between that
    of all these samples and 1, or as close as they allow; the authors chose about that, 0.97 for CIFAR-10, 0.87 for
    CIFAR-100 and 0.85 for ImageNet.

    The trap is that of `meta-mis`: a uniform row predicts nothing, and its argmax is arbitrary. An `accuracy` below
    that of all predictions, or above that of the most certain, is refused. The authors' program leaves out the sample
    of least entropy, and counts an empty bin as accuracy 0 at entropy 0, which bends the curve; here no bin is empty.

    accuracy  of the predictions that are kept; None: halfway between that of all and 1
    seed      for drawing the samples that determine the threshold

    Ma and Blaschko, "Meta-Cal: well-controlled post-hoc calibration by ranking" (ICML 2021).
    """

    def __init__(self, *, accuracy: PositiveFraction | None = None, seed: Seed = 0, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.accuracy = accuracy
        self.seed = seed

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        drawn = _draw(torch.arange(len(labels), device=labels.device), self.seed)
        uncertainty, order = entropy(logits[drawn]).sort()
        right = (logits[drawn].argmax(1) == labels[drawn])[order].double()
        accuracies, heights = entropy_for_accuracy(uncertainty, right)
        low, high = float(accuracies[0]), float(accuracies[-1])
        wanted = min(max((1 + float(right.mean())) / 2, low), high) if self.accuracy is None else self.accuracy
        if not low <= wanted <= high:
            raise InputError(
                f"accuracy must lie between {low:.4g}, that of all predictions, and {high:.4g}, that of the most "
                f"certain, as measured on {len(drawn)} samples; got {wanted:.4g}"
            )
        others = torch.ones_like(labels, dtype=torch.bool)
        others[drawn] = False
        self.info["accuracy"] = wanted
        threshold = look_up(accuracies.new_full((1, 1), wanted), accuracies[None], heights[None])
        self._keep_below(float(threshold), logits[others], labels[others])


def entropy(logits: Tensor) -> Tensor:
    """The Shannon entropy of softmax(logits), in nats. (n,)"""
    log_probs = logits.log_softmax(1)
    return -(log_probs.exp() * log_probs).sum(1)


def entropy_for_accuracy(uncertainty: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending accuracies, and for each the entropy up to which rows are kept; samples are sorted by entropy."""
    n_bins = min(N_BINS, len(right))
    bins = zip(torch.tensor_split(uncertainty, n_bins), torch.tensor_split(right, n_bins), strict=True)
    entropies, accuracy = torch.stack([torch.stack([u.mean(), r.mean()]) for u, r in bins], dim=1)
    kept = accuracy.cumsum(0) / torch.arange(1, n_bins + 1, device=accuracy.device)
    accuracies, place = torch.unique(kept, return_inverse=True)
    count = torch.bincount(place)
    return accuracies, -isotonic(-torch.bincount(place, entropies) / count, count)


def _draw(candidates: Tensor, seed: int) -> Tensor:
    """A tenth of these, at least one and at most 500, at random."""
    n = min(max(len(candidates) // 10, 1), MOST_FOR_THRESHOLD)
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
    return candidates[order[:n].to(candidates.device)]
