"""Class frequencies: where a calibrator was fitted, and where it is used.

Probabilities depend on class frequencies. If class j becomes twice as common and nothing else changes, its odds double
everywhere: log p′ = log p + log π′ − log π, renormalised. Here π is the prior that the calibrated probabilities imply
(`fit_part.py`).

π′ is given, or estimated from predictions without labels by the EM algorithm, as the class frequencies that maximise
their likelihood (Saerens, Latinne and Decaestecker 2002). The problem is concave, so its optimum is unique. It needs
calibrated probabilities (Alexandari, Kundaje and Shrikumar 2020), and π has the class-wise correction they recommend.

The estimate is applied only if a test detects a shift, and is shrunk towards the fit part: fully at the test's critical
value, hardly at all far beyond it. With fewer rows than classes nothing is adapted. The test compares how often each
class is predicted here and in the fit part (Lipton, Wang and Smola 2018). If nothing changed, the two parts are random
splits of one pool, so the null distribution can be simulated exactly, for any number of rows and classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR, ArrayLike
from temperance.calibrators.fit_part import PSEUDO_SAMPLES, FitPart, most_like
from temperance.errors import InputError
from temperance.numerics import softmax
from temperance.showing import Shown, percents, two_columns

UNIFORM, SAME = "uniform", "same"

# Three or more classes are imbalanced if the most common one has this many times the samples of the rarest one that
# occurs, with a margin for chance.
IMBALANCED, SPARE = 8, 5

# With fewer rows per class than this, a test that detects no shift does not mean that there is none.
FEW_OF_A_CLASS = 5

# The verdict names this many classes, those whose frequency changed most.
NAMED = 3

DRAWS = 999  # of a simulation
LEAST_P_VALUE = 1 / (1 + DRAWS)
MOST_COUNTED = 10**8  # of the fit part, in a simulation

SIGNIFICANT = 0.05
Z95 = 1.959964


def imbalance_of(counts: Tensor, names: Sequence[str] | None = None) -> str:
    """A phrase that says how imbalanced these class counts are, or nothing if they are not."""
    rarest, commonest = (int(counts.where(counts > 0, counts.max()).argmin()), int(counts.argmax()))
    few, many = round(float(counts[rarest])), round(float(counts[commonest]))
    if int((counts > 0).sum()) < 3 or many < IMBALANCED * (few + SPARE):
        return ""
    most, least = (names[i] if names else f"class {i}" for i in (commonest, rarest))
    return f"{many:,} of {most}, {few:,} of {least}"


def imbalance(counts: Tensor) -> str:
    """A sentence that says how imbalanced these class counts are and what to do, or nothing if they are not."""
    found = imbalance_of(counts)
    return found and (
        f"the samples are imbalanced: {found}. "
        "Give the class frequencies in use as `prior` (`--prior`): uniform, same (as here), or a number for each class"
    )


def as_prior(given: str | ArrayLike, like: Tensor) -> Tensor:
    """Class frequencies that sum to one, from a word or numbers in proportion to them; dtype and device of `like`."""
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
    """Refuse a word that is not a prior."""
    if isinstance(prior, str) and prior not in (UNIFORM, SAME):
        raise InputError(f"prior must be uniform, same or a number for each class; got {prior!r}")


@dataclass(frozen=True, repr=False)
class PriorShift(Shown):
    """The class frequencies of predictions without labels, and whether anything else changed.

    prior          the class frequencies of maximum likelihood (k,)
    low, high      a 95 % interval for each (k,)
    fit_prior      the class frequencies of the fit part (k,)
    n              the number of predictions
    p_value        of the test that the class frequencies are those of the fit part
    p_value_other  of the test that nothing but the class frequencies changed
    applied        the frequencies to correct for, between `fit_prior` and `prior` (k,); None if no shift is detected or
                   there are fewer predictions than classes
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
        """Do the class frequencies differ from those of the fit part by more than chance?"""
        return self.p_value <= SIGNIFICANT

    @property
    def as_fitted(self) -> bool:
        """Are there enough predictions to say that the classes are as common as in the fit part?"""
        return not self.shifted and self.n >= max(2, FEW_OF_A_CLASS * len(self.prior))

    @property
    def other_shift(self) -> bool:
        """Did something else, such as the inputs, change by more than chance?"""
        return self.p_value_other <= SIGNIFICANT

    @property
    def verdict(self) -> str:
        """What was found, in plain words."""
        return self.about_classes + (f". {self.about_rest[0].upper()}{self.about_rest[1:]}" if self.other_shift else "")

    @property
    def about_classes(self) -> str:
        """What was found about class frequencies, and what was applied."""
        rows = f"these {self.n:,} predictions"
        seem = "seem to " * self.other_shift
        changed = f"the class frequencies of {rows} {seem}differ from those of the fit part"
        if self.applied is None:
            if self.n == 1:
                found = "one prediction is too few to tell whether class frequencies shifted"
            elif self.shifted:
                found = f"{changed}, but there are fewer predictions than classes, too few to estimate frequencies"
            elif self.as_fitted:
                return f"{rows} show no shift of class frequencies from the fit part; no correction is applied"
            else:
                found = f"{rows} are too few to tell whether class frequencies shifted"
            return f"{found}; the calibrator stays as it is"
        most = (self.applied - self.fit_prior).abs().argsort(descending=True, stable=True)[:NAMED].tolist()
        changes = ", ".join(
            "class {} {} ({})".format(j, *percents([float(self.applied[j])], [float(self.fit_prior[j])])) for j in most
        )
        return f"{changed}. The largest changes applied, with the fit part's frequency in brackets: {changes}"

    @property
    def about_rest(self) -> str:
        """What was found about everything else, or nothing if only class frequencies changed."""
        sign = "=" if self.p_value_other > LEAST_P_VALUE else "≤"
        if self.applied is None:
            remedy = ". A fit on labelled samples like these corrects for every change"
        else:
            remedy = (
                ", so adapting to class frequencies may do harm. Label some of them. Then measure with and without "
                "adapting, or fit on them, which corrects for every change"
            )
        return self.other_shift * (
            f"these {self.n:,} predictions differ from the fit part by something other than class frequencies "
            f"(p {sign} {self.p_value_other:.2g}){remedy}"
        )


def estimate(log_probs: Tensor, logits: Tensor, about: FitPart) -> PriorShift:
    """The class frequencies of calibrated log-probabilities (n, k) without labels, by EM, with intervals and tests.

    With A_ij = (p_ij / π_j) / Σ_l π′_l p_il / π_l and the information J = mean A Aᵀ, the covariance of the estimate is
    (J⁻¹ − π′ π′ᵀ) / n from the new samples plus (J⁻¹ − diag π′) / n_fit from the fit part.
    """
    implied, counts = about.implied_prior, about.fit_counts
    n, n_fit = len(log_probs), float(counts.sum())
    # Nothing is known about a class without samples in the fit part, so its frequency is kept near zero.
    ratios = (log_probs.clamp_min(math.log(LOG_FLOOR)) - implied.log()).exp() * (counts.sum(1) > 0)
    prior = _likeliest(ratios, implied)
    fit_prior = (counts.sum(1) + PSEUDO_SAMPLES * implied) / (n_fit + PSEUDO_SAMPLES)
    inverse = _inverse(ratios / (ratios @ prior)[:, None], prior, implied)
    covariance = (inverse - prior.outer(prior)) / n + (inverse - prior.diag()) / n_fit
    spare = 1 / n  # a class that does not occur here is still possible
    error = (covariance.diagonal().clamp_min(0) + spare / n).sqrt()

    predicted = torch.bincount(most_like(logits, about.fit_mean), minlength=len(prior))
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
    """The frequencies π′ that maximise the mean of log Σ_j π′_j ratio_ij, with one pseudo-sample like the fit part."""
    prior = start
    for _ in range(10_000):
        shares = (ratios / (ratios @ prior)[:, None]).sum(0) * prior
        before, prior = prior, (shares + start) / (len(ratios) + 1)
        if float((prior - before).abs().max()) < 1e-9:
            break
    return prior


def _inverse(relative: Tensor, prior: Tensor, start: Tensor) -> Tensor:
    """J⁻¹, where J includes the pseudo-sample and so is invertible however few rows there are."""
    root = prior.sqrt()
    scaled = relative * root
    n = len(relative)
    found: Tensor = torch.linalg.inv((scaled.T @ scaled + (start / prior).diag()) / n)
    return root[:, None] * found * root


def _compared(new: Tensor, before: Tensor) -> tuple[float, float]:
    """The p-value of counts (k,) that are drawn from one pool, and the critical value as a share of the statistic."""
    before = (before * min(1.0, MOST_COUNTED / float(before.sum()))).round().long()
    pool = (new + before).cpu().numpy()
    seen, n = pool > 0, int(new.sum())
    pool, observed = pool[seen], new.cpu().numpy()[seen]
    expected = n * pool / pool.sum()
    drawn = np.random.default_rng(0).multivariate_hypergeometric(pool, n, size=DRAWS, method="marginals")
    far, by_chance = (((each - expected) ** 2 / expected).sum(-1) for each in (observed, drawn))
    return _p_value(float(far), by_chance), float(np.quantile(by_chance, 1 - SIGNIFICANT)) / max(float(far), 1e-300)


def _other(confidence: Tensor, prior: Tensor, covariance: Tensor, counts: Tensor, edges: Tensor) -> float:
    """The p-value of the confidences if only the class frequencies changed since the fit part.

    The bins' shares are compared with those of the fit part after its classes are reweighted to the new frequencies,
    which are known with this covariance. Errors of the frequencies are treated as independent of the bins. In truth
    the two partly cancel, so there are fewer false alarms than the p-value says.
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
    """The share of values at least as large, this one included."""
    return (1 + int((by_chance >= value * (1 - 1e-9)).sum())) / (1 + len(by_chance))
