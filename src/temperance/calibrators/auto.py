"""Chooses and combines several calibrators, weighted by how well they do on held-out samples."""

import math
from itertools import pairwise
from typing import Annotated, Unpack

import numpy as np
import torch
from torch import Tensor

from temperance.calibrators._fit.inverse_temperature import (
    TYPICAL,
    caution_of,
    centred_rows,
    derivatives,
    fit_inverse_temperature,
    likeliest_inverse_temperature,
    prior_spread,
)
from temperance.calibrators._fit.pool import PSEUDO_SAMPLES, pool, pool_weights
from temperance.calibrators.base import CALIBRATORS, Calibrator, Shared, calibrator, make_calibrator
from temperance.calibrators.gaps import GapScaling
from temperance.calibrators.linear import ROUGHLY
from temperance.calibrators.structured import Structured
from temperance.calibrators.temperature import Temperature
from temperance.errors import InputError, plural
from temperance.numerics import random_folds
from temperance.objectives import Nll, counting
from temperance.progress import tell
from temperance.saddlepoint import chance_below_zero
from temperance.settings import AtLeastTwo, NameOf, Seed
from temperance.showing import likelihood
from temperance.threads import one_thread

# From few parameters to many; temperature scaling is always in the pool too. Adding more (ODIR, order-preserving
# networks, kernels of other widths, a parabola, a smoothed temperature) changed the NLL by less than 0.1 % on real
# predictions. A curve of any shape helps with two classes only, most of all where confidences are few round numbers.
MEMBERS = ("gap-scaling", "structured-vector", "structured-matrix", "kernel-logistic")
OF_TWO_CLASSES = "venn-abers"

# The ridge of the last step, far stronger than that of `gap-scaling` alone, since little is left to correct.
LAST_RIDGE = 100.0

# Most of a gain or a loss comes from mistakes, so few of them are weak evidence. With 6 mistakes the trust in the pool
# is half the probability that it helps. With 20, half of the probability of harm comes from held-out samples, the other
# half from the posterior of the temperature.
FEW_FOR_POOL, FEW_FOR_HARM = 6, 20

# Held-out predictions of this many samples are enough to fit a few weights and the slopes of the last step. With more
# samples, only as many folds are held out as this needs.
HELD_OUT = 5_000

# If the probability of harm is at least this, nothing is calibrated.
TOO_LIKELY = 1 / 3

# With fewer mistakes the probability of harm is a guess, so it is not stated.
FEWEST_MISTAKES = 10

# A member whose weight is below this share of the largest is left out; so is the last step if the trust is below it.
NEGLIGIBLE = 0.005


@calibrator(family="combination", preserves_argmax=False, takes_weights=True, min_samples=4)
class Auto(Calibrator):
    """Chooses and combines calibrators by cross-validation and says what it chose: the one to use if in doubt.

    1. Each member is fitted `folds` times, each time without one fold, and predicts that fold. So is temperature
       scaling, with a prior, so that samples without a mistake do not make it certain. With many samples, only as many
       folds are held out as give 5,000 predictions.
    2. Pool: these predictions are combined, log p ∝ Σ_m w_m log p_m with w ≥ 0. The weights minimise the NLL, a convex
       problem. A member that does not help gets weight 0 and is left out.
    3. Gap scaling (`gap-scaling`), with a strong penalty, is fitted to the pooled predictions: the members tell classes
       apart, it learns how confident to be.
    4. Both steps are repeated on all folds but one and judged on that one. The trust in the result is the
       probability that its NLL is lower than that of temperature scaling, times mistakes / (mistakes + 6). Weights and
       slopes are shrunk towards temperature scaling by 1 − trust, all the way if there is no mistake to learn from.
    5. The outcome is compared with no calibration in the same way. With few mistakes that says little, so the posterior
       of the temperature counts too. If the probability that calibrating raises the NLL is a third or more,
       probabilities are left as they are.
    6. The members in use are fitted again on all samples.

    `info` has the probability of `harm` and a `verdict` that states it in words, the weights, the trust, the
    cross-validated NLL of every member and step, and the gain of each step with its standard error. Members that cannot
    be fitted to the data (say, because there are too few samples) are left out, with the reason. Like every method that
    tells classes apart, it learns the class frequencies; if they differ in use, give it a `prior`.

    members  the methods to choose from, by default gap-scaling, structured-vector, structured-matrix and
             kernel-logistic (of more than 1,000 classes the first two, because the others are slow), and for two
             classes venn-abers; temperature scaling is always among them
    folds    number of folds of the cross-validation
    seed     for assigning samples to folds
    """

    weights: Tensor
    last: GapScaling

    def __init__(
        self,
        *,
        members: list[Annotated[str, NameOf("a calibrator", make_calibrator)]] | None = None,
        folds: AtLeastTwo = 5,
        seed: Seed = 0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        self.members = members
        self.folds = folds
        self.seed = seed

    def _check_settings(self) -> None:
        by_group = [name for name in self.members or () if make_calibrator(name).takes_groups]
        if by_group:
            raise InputError(
                f"the members of auto must be calibrators that all groups share; got {by_group[0]}. "
                "Grouped(base='auto') corrects each group",
                flags={"Grouped(base='auto')": "grouped:base=auto"},
            )

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        # Numbered like the steps in the docstring of the class.
        all_counts = torch.ones_like(logits[:, 0]) if weights is None else weights
        # 1: held-out predictions of each member
        fold = random_folds(len(labels), self.folds, self.seed).to(logits.device)
        n_out = _folds_left_out(fold)
        names, log_probs, failures = self._cross_fitted(logits, labels, all_counts, fold, n_out)
        held_out = fold < n_out
        rows, truth, counts = logits[held_out], labels[held_out], all_counts[held_out]
        # 2, and steps 2 and 3 on all folds but one
        mixing = pool_weights(log_probs, truth, counts)
        again = random_folds(len(truth), self.folds, self.seed).to(logits.device)
        combined, fitted = _cross_combined(log_probs, truth, counts, again, mixing)
        found = {"identity": rows.log_softmax(1)} | dict(zip(names, log_probs, strict=True)) | combined
        losses = {name: _nll(each, truth) for name, each in found.items()}
        # 4: the trust
        belief, plain = log_probs[0], _plain(logits, labels, all_counts)
        mistakes = float((belief.argmax(1) != truth).double() @ counts)
        better = 1 - _chance_of_loss(combined["pool and gap-scaling"], belief, belief, truth, counts)
        trust = better * mistakes / (mistakes + FEW_FOR_POOL)
        trusted = _cross_trusted(log_probs, again, fitted, trust)
        # 5: the probability of harm
        unknown = FEW_FOR_HARM / (mistakes + FEW_FOR_HARM)
        harm = (1 - unknown) * _chance_of_loss(trusted, found["identity"], belief, truth, counts)
        if unknown >= NEGLIGIBLE:
            harm += unknown * _chance_of_harm(rows, truth, counts, float(plain.temperature))
        # 3: the last step, scaled by the trust
        if trust >= NEGLIGIBLE and harm < TOO_LIKELY:
            self.last = _fitted_last_step(pool(log_probs, mixing), truth, counts)
            self.last.slopes *= trust
        share = dict(zip(names, _pulled_back(mixing, trust).tolist(), strict=True))
        if harm >= TOO_LIKELY:
            share = {"identity": 1.0}
        # 6: the members in use, fitted to all samples
        members = sorted(name for name in share if share[name] >= NEGLIGIBLE * max(share.values()))
        for i, name in enumerate(members):
            tell(n_out * len(names) + i, (n_out + 1) * len(names), f"auto: {name} on all samples")
            self.add_module(name, plain if name == "temperature" else _member(name, logits, labels, all_counts))
        self._keep("weights", mixing.new_tensor([share[name] for name in members]))
        steps = ("identity", "temperature", "pool", "pool and gap-scaling")
        self.info = {
            "harm": harm,
            "verdict": _verdict(harm, *_mistakes(logits, labels, all_counts)),
            "weights": {name: share[name] for name in sorted(members, key=share.__getitem__, reverse=True)},
            "trust": trust,
            "held_out_nll": {name: _mean_and_error(each, counts)[0] for name, each in losses.items()},
            "gain": {step: _mean_and_error(losses[before] - losses[step], counts) for before, step in pairwise(steps)},
            "left_out": failures,
        }
        if harm < TOO_LIKELY:
            self.info |= caution_of(fit_inverse_temperature(counting("nll", all_counts), logits, labels)[1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        members = [self._modules[name] for name in sorted(self._modules) if name != "last"]
        pooled = pool([m._calibrate(logits) for m in members if isinstance(m, Calibrator)], self.weights)
        return self.last._calibrate(pooled) if "last" in self._modules else pooled

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        for name in sorted({key.split(".")[0] for key in tensors if "." in key}):
            part = _last_step() if name == "last" else make_calibrator(name)
            part._restore({key.split(".", 1)[1]: t for key, t in tensors.items() if key.startswith(f"{name}.")})
            self.add_module(name, part)
        super()._restore({key: tensor for key, tensor in tensors.items() if "." not in key})
        named = self.info.get("weights", {})
        expected = self.weights.new_tensor([named[name] for name in sorted(named)])
        if named and not torch.allclose(expected, self.weights, rtol=1e-6):  # a device without float64 rounds them
            raise InputError("its weights do not match those in its info; fit it again")

    def _cross_fitted(
        self, logits: Tensor, labels: Tensor, counts: Tensor, fold: Tensor, n_out: int
    ) -> tuple[list[str], Tensor, dict[str, str]]:
        """The members, their log-probabilities (m, n, k) of the folds held out, and why the other members failed."""
        usual = (*MEMBERS, OF_TWO_CLASSES) if logits.shape[1] == 2 else MEMBERS
        names = list(dict.fromkeys(("temperature", *(self.members or usual))))
        limits = {name: CALIBRATORS[name].most_classes for name in usual if not self.members}
        parts = fold[fold < n_out]
        found = logits.new_empty(len(names), len(parts), logits.shape[1])
        failures = {
            name: f"it is slow with more than {limit:,.0f} classes"
            for name, limit in limits.items()
            if limit < logits.shape[1]
        }
        for out in range(n_out):
            inside = fold != out
            rows, truth, each, left_out = logits[inside], labels[inside], counts[inside], logits[fold == out]
            for i, name in enumerate(names):
                tell(out * len(names) + i, (n_out + 1) * len(names), f"auto: {name}, fold {out + 1} of {n_out}")
                try:
                    if name not in failures:
                        member = _member(name, rows, truth, each, tolerance=ROUGHLY)
                        found[i, parts == out] = member._calibrate(left_out)
                except InputError as error:
                    failures[name] = str(error)
        kept = [i for i, name in enumerate(names) if name not in failures]
        return [names[i] for i in kept], found[kept] if failures else found, failures


def _folds_left_out(fold: Tensor) -> int:
    """How many folds are held out in turn."""
    sizes = torch.bincount(fold).cumsum(0)
    return min(len(sizes), 1 + int((sizes < HELD_OUT).sum()))


def _member(name: str, logits: Tensor, labels: Tensor, counts: Tensor, *, tolerance: float | None = None) -> Calibrator:
    """A fitted member of the pool; structured ones are fitted to this tolerance, if given."""
    if name == "temperature":
        return _plain(logits, labels, counts)
    member = make_calibrator(name)
    if tolerance is not None and isinstance(member, Structured):
        member.tolerance = tolerance
    member._fit_rows(logits, labels, counts)
    return member


def _plain(logits: Tensor, labels: Tensor, counts: Tensor) -> Temperature:
    """Temperature scaling, the reference for the other members; it always uses its prior."""
    found = Temperature()
    inverse, _ = likeliest_inverse_temperature(counting("nll", counts), logits, labels)
    found._keep("temperature", logits.new_tensor(1 / inverse))
    found._keep("n_classes", torch.tensor(logits.shape[1], device=logits.device))
    return found


def _last_step() -> GapScaling:
    return GapScaling(ridge=LAST_RIDGE, rescale=False)


def _fitted_last_step(log_probs: Tensor, labels: Tensor, counts: Tensor) -> GapScaling:
    step = _last_step()
    # Not `_fit_rows`, which refuses labels of a single class: the held-out samples may have no others.
    step._fit_weighted(log_probs, labels, counts)
    step._keep("n_classes", torch.tensor(log_probs.shape[1], device=log_probs.device))
    return step


Steps = list[tuple[Tensor, GapScaling]]


def _cross_combined(
    log_probs: Tensor, labels: Tensor, counts: Tensor, fold: Tensor, start: Tensor
) -> tuple[dict[str, Tensor], Steps]:
    """Log-probabilities after the pool and after gap scaling, both fitted to the other folds, and the fitted steps."""
    after_pool, after_last = torch.empty_like(log_probs[0]), torch.empty_like(log_probs[0])
    steps = []
    for out in range(int(fold.max()) + 1):
        inside, outside = fold != out, fold == out
        weights = pool_weights(log_probs, labels, counts * inside, start)
        pooled = pool(log_probs, weights)
        step = _fitted_last_step(pooled[inside], labels[inside], counts[inside])
        after_pool[outside] = pooled[outside]
        after_last[outside] = step._calibrate(pooled[outside])
        steps.append((weights, step))
    return {"pool": after_pool, "pool and gap-scaling": after_last}, steps


def _cross_trusted(log_probs: Tensor, fold: Tensor, steps: Steps, trust: float) -> Tensor:
    """Log-probabilities of each fold by the steps fitted to the others, shrunk towards temperature scaling."""
    found = torch.empty_like(log_probs[0])
    for out, (weights, step) in enumerate(steps):
        step.slopes *= trust
        found[fold == out] = step._calibrate(pool(log_probs[:, fold == out], _pulled_back(weights, trust)))
    return found


def _pulled_back(weights: Tensor, trust: float) -> Tensor:
    """The weights times the trust, plus 1 − trust for temperature scaling, the first member."""
    pulled = trust * weights
    pulled[0] += 1 - trust
    return pulled


def _chance_of_loss(log_probs: Tensor, plain: Tensor, belief: Tensor, labels: Tensor, counts: Tensor) -> float:
    """The probability that these predictions have a higher NLL than the plain ones, on samples of the same kind.

    It is a Bayesian bootstrap of each sample's gain, in closed form: how often the mean is below zero if samples are
    weighted at random. The pseudo-samples of the pool, labelled as `belief` predicts, contribute their expected gain.
    """
    gained = _nll(plain, labels) - _nll(log_probs, labels)
    expected = (belief.exp() * (log_probs - plain)).sum(1)
    shapes = torch.cat([counts, counts * (PSEUDO_SAMPLES / counts.sum())])
    return chance_below_zero(torch.cat([gained, expected]), shapes)


@one_thread()
def _chance_of_harm(logits: Tensor, labels: Tensor, counts: Tensor, temperature: float) -> float:
    """The probability that dividing by a temperature raises the NLL, given the samples and the prior.

    If labels follow softmax(z / T), it does so where T is nearer to 1 than to the temperature. The posterior of T uses
    the prior and half of the log-likelihood, because labels never quite follow any softmax(z / T).
    """
    rows = list(centred_rows(Nll(), logits, labels, counts))
    inverse = 1 / temperature
    nll, _, curvature, *_ = derivatives(rows, inverse)
    gain = derivatives(rows, 1.0)[0] - nll  # on the samples themselves
    error = (inverse**2 * curvature / 2 + prior_spread(math.log(temperature)) ** -2) ** -0.5
    places = math.log(temperature) + error * np.linspace(-4, 4, 17)
    likely, gains = [], []
    for place in places:
        nll, slope, *_ = derivatives(rows, math.exp(-place))
        surprise = ((place - TYPICAL) / prior_spread(place)) ** 2
        likely.append((-nll - surprise) / 2)
        # The slope is by how much the mean logit under this softmax exceeds that of the labels.
        gains.append(gain + (inverse - 1) * slope)
    finely = np.linspace(places[0], places[-1], 1001)
    chances = np.exp(np.interp(finely, places, likely) - max(likely))
    return float(chances[np.interp(finely, places, gains) < 0].sum() / chances.sum())


def _mistakes(logits: Tensor, labels: Tensor, counts: Tensor) -> tuple[int, int]:
    """How many samples of non-zero weight are predicted wrong, and how many there are."""
    return int(((logits.argmax(1) != labels) & (counts > 0)).sum()), int((counts > 0).sum())


def _verdict(harm: float, wrong: int, n: int) -> str:
    """The probability of harm in words, and what was done about it."""
    if wrong < FEWEST_MISTAKES:
        few = f"{plural(wrong, 'mistake')} in {plural(n, 'sample')} {'is' if wrong == 1 else 'are'} too few to"
        said = f"{few} say how likely calibrating is to do harm, a higher NLL on new data like these"
        if harm >= TOO_LIKELY:
            said = f"Probabilities are left as they are: {few} show that calibrating helps"
        return f"{said}. Collect samples until {FEWEST_MISTAKES} are predicted wrong."
    if harm < TOO_LIKELY:
        return (
            f"The probability that calibrating does harm, a higher NLL on new data like these, is {likelihood(harm)}."
        )
    return f"Probabilities are left as they are: with a probability of {likelihood(harm)} calibrating would do harm."


def _nll(log_probs: Tensor, labels: Tensor) -> Tensor:
    return -log_probs.gather(1, labels[:, None]).squeeze(1)


def _mean_and_error(values: Tensor, counts: Tensor) -> list[float]:
    """The mean and its standard error, where each sample counts as often as `counts` (n,) says."""
    n = counts.sum()
    mean = values @ counts / n
    return [float(mean), float(((values - mean).square() @ counts / (n - 1) / n).sqrt())]
