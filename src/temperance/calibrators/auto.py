"""Chooses and combines: several calibrators, weighed by how they do on samples they were not fitted on."""

from itertools import pairwise
from typing import Annotated, Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.solvers import descend
from temperance.calibrators.base import Calibrator, Shared, calibrator, make_calibrator
from temperance.calibrators.gaps import GapScaling
from temperance.calibrators.temperature import (
    Temperature,
    caution_of,
    fit_inverse_temperature,
    likeliest_inverse_temperature,
)
from temperance.errors import InputError
from temperance.objectives import Nll
from temperance.settings import AtLeastTwo, NameOf, Seed

# From few parameters to many; temperature scaling is always in the pool too. Others beside them (ODIR, order-preserving
# networks, kernels of other widths) changed the NLL by less than 0.1 % in cross-validation on real predictions.
MEMBERS = ("gap-scaling", "structured-vector", "structured-matrix", "kernel-logistic")

# The weights are fitted to the samples and to this many imagined ones, labelled as temperature scaling predicts: a
# member that does well on a few samples by chance gets less weight, and none gets an infinite one.
IMAGINED = 10

# The ridge of the last step. It is far stronger than that of `gap-scaling` alone, since little is left to repair.
LAST_RIDGE = 100.0

# A gain is trusted by its standard error, which is itself unreliable where it rests on few mistakes: with this many
# mistakes its square counts twice.
FEW_MISTAKES = 20

# A member that weighs less than this share of the heaviest is left out.
NEGLIGIBLE = 0.005


@calibrator(family="combination", preserves_argmax=False, min_samples=4)
class Auto(Calibrator):
    """Chooses and combines calibrators by cross-validation and says what it chose: the one to take if in doubt.

    1. Each member is fitted `folds` times, each time leaving out a part of the samples, and predicts that part. So is
       temperature scaling, with a prior that keeps samples without mistakes from asking for certainty.
    2. Pool: these predictions are combined, log p ∝ Σ_m w_m log p_m with w ≥ 0, the weights chosen for the least NLL: a
       convex problem. A member that does not help gets weight 0 and is left out.
    3. Gap scaling (`gap-scaling`), with a strong penalty, is fitted to the pooled predictions: the members tell classes
       apart, it learns how sure to be.
    4. Both steps are repeated on all folds but one and judged on that one. With g the mean gain in NLL over temperature
       scaling there and e its standard error, the result is trusted by g² / (g² + e²), the share of g² that is not
       noise: the rest pulls weights and slopes back to temperature scaling, all the way if nothing is gained or if
       there is not one mistake to learn from. Few mistakes make e larger.
    5. The members in use are fitted again on everything.

    So with few samples it is nearly temperature scaling, unless they clearly show more. `info` has the weights, the
    trust, the cross-validated NLL of every member and step, and the gain of each step with its standard error. Members
    that cannot be fitted to the data (too few samples, say) are left out, with the reason. Like every method that tells
    classes apart it learns how common they are: where that differs from the use, give it a `prior`.

    members  the methods to choose from
    folds    parts of the cross-validation
    seed     of the parts
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

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        fold = self._dealt(len(labels)).to(logits.device)
        predicted, failures = self._cross_fitted(logits, labels, fold)
        log_probs = torch.stack(list(predicted.values()))
        weights = _pool_weights(log_probs, labels)

        combined = _cross_combined(log_probs, labels, fold, weights)
        found = {"identity": logits.log_softmax(1)} | predicted | combined
        losses = {name: _nll(each, labels) for name, each in found.items()}
        trust = _trust(combined["pool and gap-scaling"], log_probs[0], labels)
        if trust:
            self.last = _last_step()
            self.last._fit_rows(_pool(log_probs, weights), labels)
            self.last.slopes *= trust
        weights *= trust
        weights[0] += 1 - trust

        share = dict(zip(predicted, weights.tolist(), strict=True))
        members = sorted(name for name in share if share[name] >= NEGLIGIBLE * max(share.values()))
        for name in members:
            self.add_module(name, _member(name, logits, labels))
        self._keep("weights", weights.new_tensor([share[name] for name in members]))
        steps = ("identity", "temperature", "pool", "pool and gap-scaling")
        self.info = {
            "weights": {name: share[name] for name in sorted(members, key=share.__getitem__, reverse=True)},
            "trust": trust,
            "held_out_nll": {name: float(each.mean()) for name, each in losses.items()},
            "gain": {step: _mean_and_error(losses[before] - losses[step]) for before, step in pairwise(steps)},
            "left_out": failures,
        } | caution_of(fit_inverse_temperature(Nll(), logits, labels)[1])

    def _calibrate(self, logits: Tensor) -> Tensor:
        members = [self._modules[name] for name in sorted(self._modules) if name != "last"]
        pooled = _pool([m._calibrate(logits) for m in members if isinstance(m, Calibrator)], self.weights)
        return self.last._calibrate(pooled) if "last" in self._modules else pooled

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        for name in sorted({key.split(".")[0] for key in tensors if "." in key}):
            part = _last_step() if name == "last" else make_calibrator(name)
            part._restore({key.split(".", 1)[1]: t for key, t in tensors.items() if key.startswith(f"{name}.")})
            self.add_module(name, part)
        super()._restore({key: tensor for key, tensor in tensors.items() if "." not in key})
        named = self.info.get("weights", {})
        if named and [named[name] for name in sorted(named)] != self.weights.tolist():
            raise InputError("its weights are not those that its info names; fit it again")

    def _dealt(self, n: int) -> Tensor:
        """The fold of each sample, at random and even."""
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))
        fold = torch.empty(n, dtype=torch.int64)
        fold[order] = torch.arange(n) % min(self.folds, n)
        return fold

    def _cross_fitted(self, logits: Tensor, labels: Tensor, fold: Tensor) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Each member's log-probabilities of samples that it was not fitted on, and why a member has none."""
        predicted, failures = {}, {}
        for name in dict.fromkeys(("temperature", *(self.members or MEMBERS))):
            found = torch.empty_like(logits)
            try:
                for out in range(int(fold.max()) + 1):
                    member = _member(name, logits[fold != out], labels[fold != out])
                    found[fold == out] = member._calibrate(logits[fold == out])
            except InputError as error:
                failures[name] = str(error)
                continue
            predicted[name] = found
        return predicted, failures


def _member(name: str, logits: Tensor, labels: Tensor) -> Calibrator:
    """A fitted member of the pool. Temperature scaling, the measure of all others, always has its prior."""
    if name == "temperature":
        plain = Temperature()
        plain._keep("temperature", logits.new_tensor(1 / likeliest_inverse_temperature(Nll(), logits, labels)[0]))
        plain._keep("n_classes", torch.tensor(logits.shape[1], device=logits.device))
        return plain
    member = make_calibrator(name)
    member._fit_rows(logits, labels)
    return member


def _last_step() -> GapScaling:
    return GapScaling(ridge=LAST_RIDGE, rescale=False)


def _cross_combined(log_probs: Tensor, labels: Tensor, fold: Tensor, start: Tensor) -> dict[str, Tensor]:
    """Log-probabilities after the pool and after gap scaling, both fitted to the other folds."""
    pool, last = torch.empty_like(log_probs[0]), torch.empty_like(log_probs[0])
    for out in range(int(fold.max()) + 1):
        inside, outside = fold != out, fold == out
        weights = _pool_weights(log_probs[:, inside], labels[inside], start)
        step = _last_step()
        step._fit(_pool(log_probs[:, inside], weights), labels[inside])  # not `fit`: one class alone is enough here
        pool[outside] = _pool(log_probs[:, outside], weights)
        last[outside] = step._calibrate(pool[outside])
    return {"pool": pool, "pool and gap-scaling": last}


def _trust(log_probs: Tensor, plain: Tensor, labels: Tensor) -> float:
    """How far to go from plain predictions to others, given what those gain, the imagined samples included."""
    mistakes = int((plain.argmax(1) != labels).sum())
    if not mistakes:
        return 0.0  # whatever is surer looks better
    imagined = (plain.exp() * (plain - log_probs)).sum(1) * IMAGINED / len(labels)
    gain, error = _mean_and_error(_nll(plain, labels) - _nll(log_probs, labels) - imagined)
    return gain**2 / (gain**2 + error**2 * (1 + FEW_MISTAKES / mistakes)) if gain > 0 else 0.0


def _pool(log_probs: Tensor | list[Tensor], weights: Tensor) -> Tensor:
    """log p ∝ Σ_m w_m log p_m."""
    total = torch.zeros_like(log_probs[0])
    for found, weight in zip(log_probs, weights, strict=True):
        total.addcmul_(found, weight)
    return total.log_softmax(1)


def _pool_weights(log_probs: Tensor, labels: Tensor, start: Tensor | None = None) -> Tensor:
    """The weights w ≥ 0 (m,) with which the pool of (m, n, k) has the least NLL, the imagined samples included.

    These are labelled as the first member predicts.
    """
    m, n = log_probs.shape[:2]
    share = IMAGINED / n
    belief = log_probs[0].exp()
    target = share * torch.stack([(belief * found).sum() / n for found in log_probs])
    target += log_probs.gather(2, labels.expand(m, n)[:, :, None]).squeeze(2).mean(1)

    def value(weights: Tensor) -> tuple[float, Tensor]:
        scores = torch.tensordot(weights, log_probs, 1)
        normaliser = scores.logsumexp(1, keepdim=True)
        probs = (scores - normaliser).exp_()
        gradient = (1 + share) * torch.stack([(probs * found).sum() / n for found in log_probs]) - target
        return float((1 + share) * normaliser.mean() - weights @ target), gradient

    even = torch.full_like(target, 1 / m)
    return descend(value, even if start is None else start, low=0.0, still=1e-9).parameters


def _nll(log_probs: Tensor, labels: Tensor) -> Tensor:
    return -log_probs.gather(1, labels[:, None]).squeeze(1)


def _mean_and_error(values: Tensor) -> list[float]:
    """The mean and its standard error."""
    return [float(values.mean()), float(values.std() / len(values) ** 0.5)]
