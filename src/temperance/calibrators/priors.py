"""How common the classes are: where a calibrator was fitted, and where it is used.

Probabilities go with class frequencies. If class j becomes twice as common as it was and nothing else changes, its odds
double everywhere: log p′ = log p + log π′ − log π, renormalised. Here π are the frequencies that the calibrated
probabilities embody. For a method that learns how common the classes are, they are those of the fit part. A temperature
learns nothing of the kind: its probabilities embody what the network believes. So they are found from the fit part.

b  the shifts with which the probabilities are right on average for each class: mean softmax(log p + b) = frequencies
π  the frequencies, divided by exp(b)

π′ is given, or estimated from predictions without labels by the EM algorithm: the class frequencies that make them
likeliest (Saerens, Latinne and Decaestecker 2002). The problem is concave, so there is one answer. It needs calibrated
probabilities (Alexandari, Kundaje and Shrikumar 2020), and b is the correction for each class that they recommend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR, ArrayLike
from temperance.errors import InputError
from temperance.showing import percents

UNIFORM, SAME = "uniform", "same"

# The frequencies of the fit part are those of its samples and of this many imagined ones, labelled as predicted, so
# that no class is impossible.
IMAGINED = 10

# Of more rows than this many values have, some are enough to find π.
MOST_VALUES = 1 << 20

# Classes that occur are imbalanced if the most common of three or more has this many times the samples of the rarest,
# with some to spare for chance.
IMBALANCED, SPARE = 8, 5

# Confidences are compared in this many bins, of equal numbers of samples of the fit part.
BINS = 10

SIGNIFICANT = 0.05
Z95 = 1.959964


def imbalance_of(counts: Tensor) -> str:
    """How imbalanced samples are, this many of each class, in a few words, or nothing if they are not."""
    rarest, commonest = (int(counts.where(counts > 0, counts.max()).argmin()), int(counts.argmax()))
    few, many = round(float(counts[rarest])), round(float(counts[commonest]))
    if int((counts > 0).sum()) < 3 or many < IMBALANCED * (few + SPARE):
        return ""
    return f"{many:,} of class {commonest}, {few:,} of class {rarest}"


def imbalance(counts: Tensor) -> str:
    """A sentence that says how imbalanced samples are and what to do, or nothing if they are not."""
    found = imbalance_of(counts)
    return found and (
        f"the samples are imbalanced: {found}. "
        "Give the class frequencies in use as `prior` (`--prior`): uniform, same (as here), or a number for each class"
    )


def as_prior(given: str | ArrayLike, like: Tensor) -> Tensor:
    """Class frequencies that sum to one, from a word or from numbers in proportion to them, of the type of others."""
    k = len(like)
    check_word(given)
    numbers = torch.ones(k) if isinstance(given, str) else torch.as_tensor(given)
    if numbers.shape != (k,):
        raise InputError(f"prior must have a number for each of the {k} classes; got shape {tuple(numbers.shape)}")
    numbers = numbers.to(like)
    wrong = (~((numbers > 0) & torch.isfinite(numbers))).nonzero()
    if len(wrong):
        raise InputError(
            f"prior must be above 0 for every class; got {float(numbers[wrong[0]]):g} for class {int(wrong[0])}. "
            "Give a class that hardly occurs a small frequency: one of 0 could never be predicted"
        )
    return numbers / numbers.sum()


def check_word(prior: object) -> None:
    """Refuse a word that is no prior."""
    if isinstance(prior, str) and prior not in (UNIFORM, SAME):
        raise InputError(f"prior must be uniform, same or a number for each class; got {prior!r}")


# ----------------------------------------------------------------------------------------------- what the fit part says


def reference(logits: Tensor, log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
    """What is kept of the fit part, to be able to say later how other predictions differ from it.

    implied_prior  the class frequencies that the calibrated probabilities embody (k,)
    fit_counts     the samples of each class in each bin of the uncalibrated confidence (k, bins)
    fit_edges      where these bins end (bins − 1,)
    """
    confidence = _confidence(logits)
    shares = torch.arange(1, BINS, dtype=torch.float64, device=logits.device) / BINS
    edges = torch.quantile(confidence[: 1 << 24], shares)
    k = log_probs.shape[1]
    cell = labels * BINS + torch.bucketize(confidence, edges)
    counts = torch.bincount(cell, weights, minlength=k * BINS).reshape(k, BINS).double()
    return {"implied_prior": implied_prior(log_probs, labels, weights), "fit_counts": counts, "fit_edges": edges}


def _confidence(logits: Tensor) -> Tensor:
    return logits.double().softmax(1).amax(1)


def implied_prior(log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The class frequencies that calibrated log-probabilities (n, k) of the fit part embody. (k,)

    b is found by Newton steps, each of them by conjugate gradients: a convex problem.
    """
    n, k = log_probs.shape if weights is None else (float(weights.sum()), log_probs.shape[1])
    share = None if weights is None else weights / weights.sum()
    log_probs = log_probs.clamp_min(math.log(LOG_FLOOR))
    frequencies = torch.bincount(labels, weights, minlength=k).double() + IMAGINED * _mean(log_probs.exp(), share)
    frequencies /= n + IMAGINED
    b = torch.zeros_like(frequencies)
    for _ in range(30):
        probs = (log_probs + b).softmax(1)
        lacking = frequencies - _mean(probs, share)
        step = _newton_step(probs, lacking, share)
        b += step / max(1.0, float(step.abs().max()) / 3)
        if float(step.abs().max()) < 1e-4:  # the next one would be far smaller
            break
    prior = frequencies * (-b).exp()
    return prior / prior.sum()


def _mean(rows: Tensor, share: Tensor | None) -> Tensor:
    """The mean row, in which each has its share. (k,)"""
    return rows.mean(0) if share is None else share @ rows


def _newton_step(probs: Tensor, lacking: Tensor, share: Tensor | None) -> Tensor:
    """The x with (mean diag p − mean p pᵀ) x = lacking within some percent, by preconditioned conjugate gradients."""
    mean = _mean(probs, share)
    scale = (mean - _mean(probs.square(), share)).clamp_min(1e-12)
    x, rest = torch.zeros_like(lacking), lacking
    direction = rest / scale
    size = first = float(rest @ direction)
    for _ in range(len(lacking)):
        if size <= 1e-4 * first:
            break
        along = probs @ direction
        image = mean * direction - probs.T @ (along / len(probs) if share is None else along * share)
        pace = size / max(float(direction @ image), 1e-300)
        x, rest = x + pace * direction, rest - pace * image
        before, size = size, float(rest @ (rest / scale))
        direction = rest / scale + size / before * direction
    return x - x.mean()


# ------------------------------------------------------------------------------------------- what new predictions say


@dataclass(frozen=True)
class PriorShift:
    """How common the classes are among predictions without labels, and whether that is all that changed.

    prior        the class frequencies that make the predictions likeliest (k,)
    low, high    a 95 % interval for each (k,)
    fit_prior    the class frequencies of the fit part (k,)
    n            the number of predictions
    p_value      how likely a difference like this is if the classes are as common as in the fit part
    p_value_other  how likely the confidences are if nothing but the class frequencies changed
    """

    prior: Tensor
    low: Tensor
    high: Tensor
    fit_prior: Tensor
    n: int
    p_value: float
    p_value_other: float

    @property
    def shifted(self) -> bool:
        """Are the class frequencies others than in the fit part, by more than chance?"""
        return self.p_value < SIGNIFICANT

    @property
    def other_shift(self) -> bool:
        """Did something else change, by more than chance: the inputs, say?"""
        return self.p_value_other < SIGNIFICANT

    @property
    def verdict(self) -> str:
        """What was found, in plain words."""
        if self.other_shift:
            return (
                f"these {self.n:,} predictions differ from the fit part by more than class frequencies "
                f"(p = {self.p_value_other:.2g}), so the frequencies found may be wrong. "
                "Fit on labelled samples like these"
            )
        if not self.shifted:
            return f"the classes may be as common among these {self.n:,} predictions as in the fit part"
        j = int((self.prior - self.fit_prior).abs().argmax())
        here, low, high, there = percents(
            *([float(each[j])] for each in (self.prior, self.low, self.high, self.fit_prior))
        )
        return (
            f"the classes are not as common among these {self.n:,} predictions as in the fit part: class {j} makes up "
            f"{here} of them ({low} to {high}) and {there} of the fit part"
        )


def estimate(log_probs: Tensor, logits: Tensor, implied: Tensor, counts: Tensor, edges: Tensor) -> PriorShift:
    """The class frequencies of calibrated log-probabilities (n, k) without labels, by EM, with intervals and tests.

    The covariances are those of the likelihood, at the estimate. With A_ij = (p_ij / π_j) / Σ_l π′_l p_il / π_l and
    J = mean A Aᵀ, that of the estimate is (J⁻¹ − π′ π′ᵀ) / n for what the new samples leave open, plus
    D D₀⁻¹ D / n_fit for what the fit part does, with D = J⁻¹ − diag π′ and D₀ the same for the fit part's frequencies.
    If nothing shifted, the estimate less these has covariance (J⁻¹ − π′ π′ᵀ) (1 / n + 1 / n_fit).
    """
    n, n_fit = len(log_probs), float(counts.sum())
    seen = counts.sum(1) > 0
    # Of a class without a sample in the fit part nothing is known: next to nothing is left for it.
    ratios = (log_probs.clamp_min(math.log(LOG_FLOOR)) - implied.log()).exp() * seen
    prior = _likeliest(ratios, implied)
    relative = ratios / (ratios @ prior)[:, None]
    inverse = _inverse(relative.T @ relative / n)

    fit_prior = (counts.sum(1) + IMAGINED * implied) / (n_fit + IMAGINED)
    at_fit = ratios / (ratios @ fit_prior)[:, None]
    unsure, unsure_at_fit = inverse - prior.diag(), _inverse(at_fit.T @ relative / n) - fit_prior.diag() * seen
    spare = 1 / n  # a class that is not found is not impossible
    variance = (inverse.diagonal() - prior.square()).clamp_min(0) / n + spare / n
    variance += (unsure @ _inverse(unsure_at_fit) @ unsure).diagonal().clamp_min(0) / n_fit
    error = variance.sqrt()

    slope = (at_fit.mean(0) - 1) * seen
    squared = float(slope @ _inverse(at_fit.T @ at_fit / n) @ slope)
    return PriorShift(
        prior=prior,
        low=(prior - Z95 * error).clamp_min(0),
        high=(prior + Z95 * error).clamp_max(1),
        fit_prior=fit_prior,
        n=n,
        p_value=_chi_square(squared / (1 / n + 1 / n_fit), int(seen.sum()) - 1),
        p_value_other=_other(_confidence(logits), relative, prior, inverse, counts, edges),
    )


def _likeliest(ratios: Tensor, start: Tensor) -> Tensor:
    """The frequencies π′ with the largest mean log Σ_j π′_j ratio_ij, and one imagined sample like the fit part."""
    prior = start
    for _ in range(10_000):
        shares = (ratios / (ratios @ prior)[:, None]).sum(0) * prior
        before, prior = prior, (shares + start) / (len(ratios) + 1)
        if float((prior - before).abs().max()) < 1e-9:
            break
    return prior


def _inverse(matrix: Tensor) -> Tensor:
    """The inverse where there is one, of a matrix that is symmetric up to rounding."""
    found: Tensor = torch.linalg.pinv((matrix + matrix.T) / 2, rtol=1e-6, hermitian=True)
    return found


def _other(
    confidence: Tensor, relative: Tensor, prior: Tensor, inverse: Tensor, counts: Tensor, edges: Tensor
) -> float:
    """How likely the confidences are if classes look as they did in the fit part and only their frequencies changed.

    The shares of the bins are compared with those of the fit part, its classes weighed by the new frequencies.
    """
    n, bins = len(confidence), counts.shape[1]
    each = counts.sum(1)
    overall = counts.sum(0) / counts.sum()
    by_class = (counts + overall) / (each + 1)[:, None]
    expected = prior @ by_class
    seen = torch.nn.functional.one_hot(torch.bucketize(confidence, edges), bins).to(relative.dtype)
    # What a sample adds to the difference: its own bin, less what it adds to the estimated frequencies.
    adds = seen - relative @ (inverse - prior.outer(prior)) @ by_class
    spread = torch.cov(adds.T) / n
    spread += (expected.diag() - expected.outer(expected)) * (prior.square() / each.clamp_min(1)).sum()
    spread += by_class.T @ (inverse - prior.diag()) @ by_class / counts.sum()
    values, vectors = torch.linalg.eigh(spread)
    kept = values > 1e-9 * values.max()
    along = vectors.T @ (seen.mean(0) - expected)
    return _chi_square(float((along[kept].square() / values[kept]).sum()), int(kept.sum()))


def _chi_square(value: float, freedom: int) -> float:
    """The probability of a larger value."""
    half = torch.tensor([freedom / 2, max(value, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
