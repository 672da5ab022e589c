"""What a calibrator stores about the samples that it was fitted to: enough to say later how other predictions differ.

Calibrated probabilities imply class frequencies π, their prior. For a method that learns the class frequencies, these
are the frequencies of the fit part. A temperature does not learn them: its probabilities imply whatever the network
believes. So π is computed from the fit part:

b  the biases that make the probabilities right on average for each class: mean softmax(log p + b) = frequencies
π  the frequencies divided by exp(b), normalised
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR
from temperance.compiled import first_places
from temperance.numerics import softmax

# The frequencies of the fit part include this many pseudo-samples, labelled as predicted, so that no class is
# impossible.
PSEUDO_SAMPLES = 10

# Above this many values, a sample of the rows is enough to find π.
MOST_VALUES = 1 << 20

# Confidences are compared in this many bins, which hold equally many samples of the fit part.
BINS = 10
SHARES = np.arange(1, BINS) / BINS


@dataclass(frozen=True)
class FitPart:
    """What is stored about the fit part, to say later how other predictions differ from it.

    implied_prior  the class frequencies that the calibrated probabilities imply (k,)
    fit_counts     the samples of each class in each bin of the uncalibrated confidence (k, bins)
    fit_edges      the inner edges of these bins (bins − 1,)
    fit_mean       the mean uncalibrated probability of each class (k,)
    fit_predicted  how many samples `most_like` assigns to each class (k,)
    """

    implied_prior: Tensor
    fit_counts: Tensor
    fit_edges: Tensor
    fit_mean: Tensor
    fit_predicted: Tensor

    @classmethod
    def of(cls, logits: Tensor, log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> FitPart:
        """From the logits, the calibrated log-probabilities and the labels of the fit part."""
        probs = softmax(logits.double())
        confidence = probs.amax(1)
        ranked = np.sort(confidence.cpu().numpy())  # quantiles of sorted numbers are several times as fast
        edges = torch.from_numpy(np.quantile(ranked, SHARES)).to(logits.device)
        k = log_probs.shape[1]
        cell = labels * BINS + torch.bucketize(confidence, edges)
        counts = torch.bincount(cell, weights, minlength=k * BINS).reshape(k, BINS).double()
        mean = _mean(probs, None if weights is None else weights / weights.sum())
        predicted = torch.bincount(most_like(logits, mean), weights, minlength=k).double()
        return cls(implied_prior(log_probs, labels, weights), counts, edges, mean, predicted)


def most_like(logits: Tensor, mean: Tensor) -> Tensor:
    """The class whose probability exceeds its mean by the largest factor, so that rare classes are predicted too. (n,)

    It uses the network alone: the calibrator has seen the labels of the fit part, so its predictions there are not
    comparable with those of other samples.
    """
    above = logits - mean.clamp_min(LOG_FLOOR).log()
    return first_places(above, above.amax(1))


def implied_prior(log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The class frequencies π that calibrated log-probabilities (n, k) of the fit part imply. (k,)

    b solves a convex problem, by Newton steps that use conjugate gradients.
    """
    n, k = log_probs.shape if weights is None else (float(weights.sum()), log_probs.shape[1])
    share = None if weights is None else weights / weights.sum()
    calibrated = log_probs.exp().clamp_min(LOG_FLOOR)
    frequencies = torch.bincount(labels, weights, minlength=k).double() + PSEUDO_SAMPLES * _mean(calibrated, share)
    frequencies /= n + PSEUDO_SAMPLES
    b = torch.zeros_like(frequencies)
    for _ in range(30):
        probs = calibrated * (b - b.max()).exp()
        probs /= (probs @ torch.ones_like(b))[:, None]  # faster than a sum over few columns
        mean = _mean(probs, share)
        step = _newton_step(probs, mean, frequencies - mean, share)
        longest = float(step.abs().max())
        b += step / max(1.0, longest / 3)
        if longest < 3e-3:  # the next one would be about its square
            break
    prior = frequencies * (-b).exp()
    return prior / prior.sum()


def _mean(rows: Tensor, share: Tensor | None) -> Tensor:
    """The mean of the rows, weighted by their shares if given. (k,)"""
    return rows.mean(0) if share is None else share @ rows


def _newton_step(probs: Tensor, mean: Tensor, lacking: Tensor, share: Tensor | None) -> Tensor:
    """The x with (mean diag p − mean p pᵀ) x = lacking within a thousandth, by preconditioned conjugate gradients."""
    scale = (mean - _mean(probs.square(), share)).clamp_min(1e-12)
    x, rest = torch.zeros_like(lacking), lacking
    direction = rest / scale
    size = first = float(rest @ direction)
    for _ in range(len(lacking)):
        if size <= 1e-6 * first:
            break
        along = probs @ direction
        image = mean * direction - probs.T @ (along / len(probs) if share is None else along * share)
        bend = float(direction @ image)
        if bend <= 0:  # the residual is only rounding error
            break
        pace = size / bend
        x, rest = x + pace * direction, rest - pace * image
        before, size = size, float(rest @ (rest / scale))
        direction = rest / scale + size / before * direction
    return x - x.mean()
