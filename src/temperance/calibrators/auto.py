"""Chooses and combines: several calibrators, weighed by how they do on samples they were not fitted on."""

import torch
from torch import Tensor

from temperance.calibrators.base import Calibrator, calibrator, make_calibrator
from temperance.calibrators.gaps import GapScaling
from temperance.calibrators.solvers import descend
from temperance.errors import InputError, at_least

# From few parameters to many. The network's own prediction is always in the pool, and with its weight it is temperature
# scaling. Others beside them (ODIR, order-preserving maps, kernels of other widths) changed the NLL by less than 0.1 %
# in cross-validation on real predictions.
MEMBERS = ("structured-vector", "structured-matrix", "kernel-logistic")

# A member that weighs less than this share of the heaviest is left out.
NEGLIGIBLE = 0.005

# The weights are fitted to the samples and to so many imagined ones, labelled as the members together believe. Samples
# without a single mistake would otherwise ask for infinite weights, and those with a few for large ones.
IMAGINED = 10

# How much of gap scaling to take: what is fitted to few samples goes too far.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@calibrator(family="combination", preserves_argmax=False, min_samples=4)
class Auto(Calibrator):
    """Chooses and combines calibrators by cross-validation and says what it chose: the one to take if in doubt.

    1. Each member is fitted `folds` times, each time leaving out a part of the samples, and predicts that part.
    2. Pool: these predictions and the network's own are combined, log p ∝ Σ_m w_m log p_m with w ≥ 0, the weights
       chosen for the least NLL: a convex problem. What does not help gets weight 0 and is left out.
    3. Gap scaling (`gap-scaling`) is fitted to the pooled predictions: the members tell classes apart, it learns how
       sure to be. Only a share of it is taken, from nothing to all.
    4. Both steps are judged on folds that weights and gap scaling were not fitted on. These choose the share; and if
       the result is worse there than the network's own prediction, by more than two standard errors, that is used.
    5. The members in use are fitted again on everything.

    `info` tells the weights, the share of gap scaling, the cross-validated NLL of every member and step, and what each
    step gained with its standard error. Members that cannot be fitted to the data (too few samples, say) are left out,
    with the reason. Like every method that tells classes apart it learns how common they are: fit it on samples with
    the frequencies that it will meet.
    """

    weights: Tensor
    last: GapScaling

    def __init__(self, *, members: list[str] | None = None, folds: int = 5, seed: int = 0) -> None:
        super().__init__()
        self.members = members
        self.folds = folds
        self.seed = seed

    def _check_settings(self) -> None:
        at_least("folds", self.folds, 2)
        for name in self.members or ():
            make_calibrator(name)  # refuses an unknown name

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        names = list(self.members or MEMBERS)
        fold = self._dealt(len(labels)).to(logits.device)
        predicted, failures = self._cross_fitted(names, logits, labels, fold)
        log_probs = torch.stack(list(predicted.values()))
        weights = _pool_weights(log_probs, labels)

        combined = _cross_combined(log_probs, labels, fold, weights)
        share = min(SHARES, key=lambda share: float(combined[share].mean()))
        losses = {name: _nll(found, labels) for name, found in predicted.items()}
        losses |= {"pool": combined[0.0], "pool and gap-scaling": combined[share]}
        lost, error = _mean_and_error(combined[share] - losses["identity"])
        if lost > 2 * error:
            share, weights = 0.0, logits.new_tensor([float(name == "identity") for name in predicted])

        used = weights >= NEGLIGIBLE * weights.max()
        members = [name for name, use in zip(predicted, used, strict=True) if use]
        for name in members:
            self.add_module(name, make_calibrator(name).fit(logits, labels))
        self._keep("weights", weights[used])
        if share:
            self.last = GapScaling(rescale=False).fit(_pool(log_probs[used], weights[used]), labels)
            self.last.slopes *= share
        self.info = {
            "weights": dict(zip(members, weights[used].tolist(), strict=True)),
            "gap_scaling": share,
            "held_out_nll": {name: float(each.mean()) for name, each in losses.items()},
            "gain": {
                "pool": _mean_and_error(losses["identity"] - losses["pool"]),
                "gap-scaling": _mean_and_error(losses["pool"] - losses["pool and gap-scaling"]),
            },
            "left_out": failures,
        }

    def _calibrate(self, logits: Tensor) -> Tensor:
        members = [self._modules[name] for name in self.info["weights"]]
        pooled = _pool([m._calibrate(logits) for m in members if isinstance(m, Calibrator)], self.weights)
        return self.last._calibrate(pooled) if "last" in self._modules else pooled

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        parts: dict[str, Calibrator] = {name: make_calibrator(name) for name in self.info["weights"]}
        if self.info["gap_scaling"]:
            parts["last"] = GapScaling(rescale=False)
        for name, part in parts.items():
            part._restore({key.split(".", 1)[1]: t for key, t in tensors.items() if key.startswith(f"{name}.")})
            self.add_module(name, part)
        super()._restore({key: tensor for key, tensor in tensors.items() if "." not in key})

    def _dealt(self, n: int) -> Tensor:
        """The fold of each sample, at random and even."""
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))
        fold = torch.empty(n, dtype=torch.int64)
        fold[order] = torch.arange(n) % min(self.folds, n)
        return fold

    def _cross_fitted(
        self, names: list[str], logits: Tensor, labels: Tensor, fold: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Each member's log-probabilities of samples that it was not fitted on, and why a member has none."""
        predicted, failures = {"identity": logits.log_softmax(1)}, {}
        for name in names:
            found = torch.empty_like(logits)
            try:
                for out in range(int(fold.max()) + 1):
                    member = make_calibrator(name).fit(logits[fold != out], labels[fold != out])
                    found[fold == out] = member._calibrate(logits[fold == out])
            except InputError as error:
                failures[name] = str(error)
                continue
            predicted[name] = found
        return predicted, failures


def _cross_combined(log_probs: Tensor, labels: Tensor, fold: Tensor, start: Tensor) -> dict[float, Tensor]:
    """The NLL of each sample with each share of gap scaling, it and the weights fitted to the other folds."""
    losses = {share: torch.empty_like(log_probs[0, :, 0]) for share in SHARES}
    for out in range(int(fold.max()) + 1):
        inside, outside = fold != out, fold == out
        weights = _pool_weights(log_probs[:, inside], labels[inside], start)
        pooled = _pool(log_probs[:, outside], weights)
        last = GapScaling(rescale=False)
        last._fit(_pool(log_probs[:, inside], weights), labels[inside])  # not `fit`: one class alone will do here
        slopes = last.slopes
        for share in SHARES:
            last.slopes = share * slopes
            losses[share][outside] = _nll(last._calibrate(pooled), labels[outside])
    return losses


def _pool(log_probs: Tensor | list[Tensor], weights: Tensor) -> Tensor:
    """log p ∝ Σ_m w_m log p_m."""
    total = torch.zeros_like(log_probs[0])
    for found, weight in zip(log_probs, weights, strict=True):
        total.addcmul_(found, weight)
    return total.log_softmax(1)


def _pool_weights(log_probs: Tensor, labels: Tensor, start: Tensor | None = None) -> Tensor:
    """The weights w ≥ 0 (m,) under which the pool of (m, n, k) has the least NLL, the imagined samples included."""
    m, n = log_probs.shape[:2]
    share = IMAGINED / n
    belief = log_probs.exp().mean(0)
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
