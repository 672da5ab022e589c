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

The estimate is applied only where a test shows a shift, and is drawn towards the fit part: all the way at the limit of
the test, and hardly where that is far exceeded. Fewer rows than classes are never adapted to. The test compares how
often each class is predicted here and in the fit part (Lipton, Wang and Smola 2018). If nothing changed, the two parts
are random shares of one pool, so their differences can be simulated exactly, for any number of rows and classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR, ArrayLike
from temperance.compiled import first_places
from temperance.errors import InputError
from temperance.numerics import softmax
from temperance.showing import Shown, percents, two_columns

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
SHARES = np.arange(1, BINS) / BINS

# Without a shift shown, fewer rows than this for each class are too few to say that there is none.
FEW_OF_A_CLASS = 5

# The frequencies of this many classes are told, those that changed most.
TOLD = 3

DRAWS = 999  # of a simulation
LEAST_P_VALUE = 1 / (1 + DRAWS)
MOST_COUNTED = 10**8  # of the fit part, in a simulation

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


@dataclass(frozen=True)
class FitPart:
    """What is kept of the fit part, to be able to say later how other predictions differ from it.

    implied_prior  the class frequencies that the calibrated probabilities embody (k,)
    fit_counts     the samples of each class in each bin of the uncalibrated confidence (k, bins)
    fit_edges      where these bins end (bins − 1,)
    fit_mean       the mean uncalibrated probability of each class (k,)
    fit_predicted  how many samples are most like each class (k,)
    """

    implied_prior: Tensor
    fit_counts: Tensor
    fit_edges: Tensor
    fit_mean: Tensor
    fit_predicted: Tensor

    @classmethod
    def of(cls, logits: Tensor, log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> FitPart:
        """The reference of a fit part."""
        probs = softmax(logits.double())
        confidence = probs.amax(1)
        ranked = np.sort(confidence.cpu().numpy())  # quantiles of sorted numbers are found several times as fast
        edges = torch.from_numpy(np.quantile(ranked, SHARES)).to(logits.device)
        k = log_probs.shape[1]
        cell = labels * BINS + torch.bucketize(confidence, edges)
        counts = torch.bincount(cell, weights, minlength=k * BINS).reshape(k, BINS).double()
        mean = _mean(probs, None if weights is None else weights / weights.sum())
        predicted = torch.bincount(_most_like(logits, mean), weights, minlength=k).double()
        return cls(implied_prior(log_probs, labels, weights), counts, edges, mean, predicted)


def _most_like(logits: Tensor, mean: Tensor) -> Tensor:
    """The class whose probability is highest above its mean, so that rare classes are predicted too. (n,)

    By the network alone: the calibrator has seen the labels of the fit part, so its predictions there are not like
    those of other samples.
    """
    above = logits - mean.clamp_min(LOG_FLOOR).log()
    return first_places(above, above.amax(1))


def implied_prior(log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The class frequencies that calibrated log-probabilities (n, k) of the fit part embody. (k,)

    b is found by Newton steps, each of them by conjugate gradients: a convex problem.
    """
    n, k = log_probs.shape if weights is None else (float(weights.sum()), log_probs.shape[1])
    share = None if weights is None else weights / weights.sum()
    calibrated = log_probs.exp().clamp_min(LOG_FLOOR)
    frequencies = torch.bincount(labels, weights, minlength=k).double() + IMAGINED * _mean(calibrated, share)
    frequencies /= n + IMAGINED
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
    """The mean row, in which each has its share. (k,)"""
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
        if bend <= 0:  # what is left is rounding
            break
        pace = size / bend
        x, rest = x + pace * direction, rest - pace * image
        before, size = size, float(rest @ (rest / scale))
        direction = rest / scale + size / before * direction
    return x - x.mean()


# ------------------------------------------------------------------------------------------- what new predictions say


@dataclass(frozen=True, repr=False)
class PriorShift(Shown):
    """How common the classes are among predictions without labels, and whether that is all that changed.

    prior        the class frequencies that make the predictions likeliest (k,)
    low, high    a 95 % interval for each (k,)
    fit_prior    the class frequencies of the fit part (k,)
    n            the number of predictions
    p_value      how likely a difference like this is if the classes are as common as in the fit part
    p_value_other  how likely the confidences are if nothing but the class frequencies changed
    applied      the frequencies to correct for, between those of the fit part and the likeliest (k,); None where no
                 shift shows, or for fewer predictions than classes
    """

    prior: Tensor
    low: Tensor
    high: Tensor
    fit_prior: Tensor
    n: int
    p_value: float
    p_value_other: float
    applied: Tensor | None

    @property
    def title(self) -> str:
        return f"class frequencies of {self.n:,} predictions"

    def _printed(self, width: int) -> Iterator[Any]:
        entries = {name: each.tolist() if isinstance(each, Tensor) else each for name, each in vars(self).items()}
        yield from two_columns(self.title, entries)
        yield self.verdict

    @property
    def shifted(self) -> bool:
        """Are the class frequencies others than in the fit part, by more than chance?"""
        return self.p_value <= SIGNIFICANT

    @property
    def as_fitted(self) -> bool:
        """Are there enough predictions to say that the classes are as common as in the fit part?"""
        return not self.shifted and self.n >= max(2, FEW_OF_A_CLASS * len(self.prior))

    @property
    def other_shift(self) -> bool:
        """Did something else change, by more than chance: the inputs, say?"""
        return self.p_value_other <= SIGNIFICANT

    @property
    def verdict(self) -> str:
        """What was found, in plain words."""
        return self.about_classes + (f". {self.about_rest[0].upper()}{self.about_rest[1:]}" if self.other_shift else "")

    @property
    def about_classes(self) -> str:
        """What was found about class frequencies, and what is applied."""
        rows = f"these {self.n:,} predictions"
        are_not = "seem not to be" if self.other_shift else "are not"
        changed = f"the classes {are_not} as common among {rows} as in the fit part"
        if self.applied is None:
            if self.n == 1:
                found = "one prediction is too few to tell whether class frequencies shifted"
            elif self.shifted:
                found = f"{changed}, but fewer predictions than classes do not tell how common they are"
            elif self.as_fitted:
                return f"{rows} show no shift of class frequencies from the fit part; no correction is applied"
            else:
                found = f"{rows} are too few to tell whether class frequencies shifted"
            return f"{found}; the calibrator stays as it is"
        most = (self.applied - self.fit_prior).abs().argsort(descending=True, stable=True)[:TOLD].tolist()
        changes = ", ".join(
            "class {} {} ({})".format(j, *percents([float(self.applied[j])], [float(self.fit_prior[j])])) for j in most
        )
        return (
            f"{changed}. Frequencies applied, in brackets those of the fit part, for the classes that changed most: "
            f"{changes}"
        )

    @property
    def about_rest(self) -> str:
        """What was found about everything else, or nothing if only class frequencies changed."""
        sign = "=" if self.p_value_other > LEAST_P_VALUE else "≤"
        if self.applied is None:
            remedy = ". A fit on labelled samples like these corrects for all that changed"
        else:
            remedy = (
                ", so adapting to frequencies may do harm. Label some of them, and measure these with and without "
                "adapting, or fit on them, which corrects for all that changed"
            )
        return self.other_shift * (
            f"these {self.n:,} predictions differ from the fit part by something other than class frequencies "
            f"(p {sign} {self.p_value_other:.2g}){remedy}"
        )


def estimate(log_probs: Tensor, logits: Tensor, about: FitPart) -> PriorShift:
    """The class frequencies of calibrated log-probabilities (n, k) without labels, by EM, with intervals and tests.

    The covariance is that of the likelihood, at the estimate. With A_ij = (p_ij / π_j) / Σ_l π′_l p_il / π_l and
    J = mean A Aᵀ, that of the estimate is (J⁻¹ − π′ π′ᵀ) / n for what the new samples leave open, plus
    (J⁻¹ − diag π′) / n_fit for what the fit part does.
    """
    implied, counts = about.implied_prior, about.fit_counts
    n, n_fit = len(log_probs), float(counts.sum())
    # Of a class without a sample in the fit part nothing is known: next to nothing is left for it.
    ratios = (log_probs.clamp_min(math.log(LOG_FLOOR)) - implied.log()).exp() * (counts.sum(1) > 0)
    prior = _likeliest(ratios, implied)
    fit_prior = (counts.sum(1) + IMAGINED * implied) / (n_fit + IMAGINED)
    inverse = _inverse(ratios / (ratios @ prior)[:, None], prior, implied)
    covariance = (inverse - prior.outer(prior)) / n + (inverse - prior.diag()) / n_fit
    spare = 1 / n  # a class that is not found is not impossible
    error = (covariance.diagonal().clamp_min(0) + spare / n).sqrt()

    predicted = torch.bincount(_most_like(logits, about.fit_mean), minlength=len(prior))
    p_value, chance = _compared(predicted, about.fit_predicted)
    applied = None
    if p_value <= SIGNIFICANT:
        expected = prior
        if n >= len(prior):
            applied = prior + chance**2 * (fit_prior - prior)
    else:
        expected = fit_prior
        covariance = (fit_prior.diag() - fit_prior.outer(fit_prior)) / n_fit
    return PriorShift(
        prior=prior,
        low=(prior - Z95 * error).clamp_min(0),
        high=(prior + Z95 * error).clamp_max(1),
        fit_prior=fit_prior,
        n=n,
        p_value=p_value,
        p_value_other=_other(softmax(logits).amax(1), expected, covariance, counts, about.fit_edges),
        applied=applied,
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


def _inverse(relative: Tensor, prior: Tensor, start: Tensor) -> Tensor:
    """J⁻¹, where J has the imagined sample too: so it has an inverse, however few the rows are."""
    root = prior.sqrt()
    scaled = relative * root
    n = len(relative)
    found: Tensor = torch.linalg.inv((scaled.T @ scaled + (start / prior).diag()) / n)
    return root[:, None] * found * root


def _compared(new: Tensor, before: Tensor) -> tuple[float, float]:
    """How likely counts (k,) differ this much if both are drawn from one pool, and how much of it may be chance."""
    before = (before * min(1.0, MOST_COUNTED / float(before.sum()))).round().long()
    pool = (new + before).cpu().numpy()
    seen, n = pool > 0, int(new.sum())
    pool, observed = pool[seen], new.cpu().numpy()[seen]
    expected = n * pool / pool.sum()
    drawn = np.random.default_rng(0).multivariate_hypergeometric(pool, n, size=DRAWS, method="marginals")
    far, by_chance = (((each - expected) ** 2 / expected).sum(-1) for each in (observed, drawn))
    return _p_value(float(far), by_chance), float(np.quantile(by_chance, 1 - SIGNIFICANT)) / max(float(far), 1e-300)


def _other(confidence: Tensor, prior: Tensor, covariance: Tensor, counts: Tensor, edges: Tensor) -> float:
    """How likely the confidences are if classes look as they did in the fit part and only their frequencies changed.

    The shares of the bins are compared with those of the fit part, its classes weighed by the new frequencies, which
    are known with this covariance. Errors of the frequencies count as if they were independent of the bins. In truth
    they make up for a part of each other, so there are fewer false alarms than the p-value says.
    """
    n, bins = len(confidence), counts.shape[1]
    each = counts.sum(1)
    by_class = (counts + counts.sum(0) / counts.sum()) / (each + 1)[:, None]
    expected = prior @ by_class
    one = expected.diag() - expected.outer(expected)  # the covariance of one row's bin
    unsure = by_class.T @ covariance @ by_class + one * (prior.square() / each.clamp_min(1)).sum()
    weights = torch.linalg.pinv(one / n + unsure, rtol=1e-6, hermitian=True).cpu().numpy()
    seen = torch.bincount(torch.bucketize(confidence, edges), minlength=bins).double() / n
    generator, shares = np.random.default_rng(0), expected.cpu().numpy()
    drawn = generator.multinomial(n, shares / shares.sum(), size=DRAWS) / n - shares
    drawn += generator.multivariate_normal(np.zeros(bins), unsure.cpu().numpy(), size=DRAWS, check_valid="ignore")
    far, by_chance = (((d @ weights) * d).sum(-1) for d in ((seen - expected).cpu().numpy(), drawn))
    return _p_value(float(far), by_chance)


def _p_value(value: float, by_chance: npt.NDArray[np.float64]) -> float:
    """The share of values as large or larger, this one among them."""
    return (1 + int((by_chance >= value * (1 - 1e-9)).sum())) / (1 + len(by_chance))
