"""Chooses and combines: several calibrators, weighed by how they do on samples they were not fitted on."""

import torch
from torch import Tensor

from temperance.calibrators.base import Calibrator, calibrator, make_calibrator
from temperance.calibrators.monotone import MonotoneMap, fit_monotone, top_log_odds
from temperance.calibrators.solvers import descend
from temperance.errors import InputError, at_least

MEMBERS = ("temperature", "structured-vector", "structured-matrix", "kernel-logistic")

# A member that weighs less than this share of the heaviest is left out.
NEGLIGIBLE = 0.005


@calibrator(family="combination", preserves_argmax=False, min_samples=4)
class Auto(Calibrator):
    """Chooses and combines calibrators by cross-validation, then mends the top confidence; says what it chose.

    1. Each member is fitted `folds` times, each time leaving out a part of the samples, and predicts that part.
    2. The members are pooled, log p ∝ Σ_m w_m log p_m with w ≥ 0, the weights chosen for the least NLL of those
       predictions: a convex problem. What does not help gets weight 0 and is left out.
    3. A smooth monotone map of the pooled top confidence is fitted to them too (`monotone.py`).
    4. A step is kept only if it helps on samples that it was not fitted on. If nothing beats no calibration, that is
       what is used.
    5. The members in use are fitted again on everything.

    `info` tells the weights, the cross-validated NLL of every member and what each step gained. Members that cannot be
    fitted to the data (too few samples, say) are left out, with the reason.
    """

    weights: Tensor
    knots: Tensor
    slopes: Tensor
    shift: Tensor

    def __init__(self, *, members: list[str] | None = None, folds: int = 5, seed: int = 0) -> None:
        super().__init__()
        self.members = members
        self.folds = folds
        self.seed = seed

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        at_least("folds", self.folds, 2)
        names = list(self.members or MEMBERS)
        for name in names:
            make_calibrator(name)  # refuses an unknown name
        fold = self._dealt(len(labels)).to(logits.device)
        predicted, failures = self._cross_fitted(names, logits, labels, fold)
        predicted["identity"] = logits.log_softmax(1)
        held_out = {name: _nll(found, labels) for name, found in predicted.items()}

        weights = _pool_weights(torch.stack(list(predicted.values())), labels)
        least = NEGLIGIBLE * float(weights.max())
        chosen = {name: w for name, w in zip(predicted, weights.tolist(), strict=True) if w > least}
        pooled = _pool([predicted[name] for name in chosen], list(chosen.values()))
        single = min(held_out, key=lambda name: float(held_out[name].mean()))
        if float(_nll(pooled, labels).mean()) >= float(held_out[single].mean()):
            chosen, pooled = {single: 1.0}, predicted[single]

        odds, correct = top_log_odds(pooled), pooled.argmax(1) == labels
        mapped = self._cross_mapped(pooled, odds, correct, fold)
        stages = {"identity": held_out["identity"], "pool": _nll(pooled, labels), "map": _nll(mapped, labels)}
        gains = {"pool": stages["identity"] - stages["pool"], "map": stages["pool"] - stages["map"]}
        use_map = float(gains["map"].mean()) > 0
        if float(gains["pool"].mean() + (gains["map"].mean() if use_map else 0)) <= 0:
            chosen, use_map = {"identity": 1.0}, False

        for name in chosen:
            self.add_module(name, make_calibrator(name).fit(logits, labels))
        self._keep("weights", logits.new_tensor(list(chosen.values())))
        if use_map:
            found = fit_monotone(odds, correct)
            self._keep("knots", found.knots)
            self._keep("slopes", found.slopes)
            self._keep("shift", found.shift)
        self.info = {
            "weights": chosen,
            "map": use_map,
            "held_out_nll": {name: float(losses.mean()) for name, losses in held_out.items()},
            "gain": {name: [float(gain.mean()), float(gain.std() / len(gain) ** 0.5)] for name, gain in gains.items()},
            "left_out": failures,
        }

    def _calibrate(self, logits: Tensor) -> Tensor:
        pooled = _pool([member._calibrate(logits) for member in self._members()], self.weights.tolist())
        if "knots" not in self._buffers:
            return pooled
        return MonotoneMap(self.knots, self.slopes, self.shift).apply(pooled)

    def _members(self) -> list[Calibrator]:
        return [module for module in self._modules.values() if isinstance(module, Calibrator)]

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        for name in self.info["weights"]:
            member = make_calibrator(name)
            member._restore({key.split(".", 1)[1]: t for key, t in tensors.items() if key.startswith(f"{name}.")})
            self.add_module(name, member)
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
        predicted, failures = {}, {}
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

    def _cross_mapped(self, pooled: Tensor, odds: Tensor, correct: Tensor, fold: Tensor) -> Tensor:
        mapped = torch.empty_like(pooled)
        for out in range(int(fold.max()) + 1):
            inside = fold != out
            mapped[~inside] = fit_monotone(odds[inside], correct[inside]).apply(pooled[~inside])
        return mapped


def _pool(log_probs: list[Tensor], weights: list[float]) -> Tensor:
    """log p ∝ Σ_m w_m log p_m."""
    total = torch.zeros_like(log_probs[0])
    for found, weight in zip(log_probs, weights, strict=True):
        total.add_(found, alpha=weight)
    return total.log_softmax(1)


def _pool_weights(log_probs: Tensor, labels: Tensor) -> Tensor:
    """The weights w ≥ 0 (m,) under which the pool of (m, n, k) has the least NLL."""
    m, n = log_probs.shape[:2]
    of_label = log_probs.gather(2, labels.expand(m, n)[:, :, None]).squeeze(2).mean(1)

    def value(weights: Tensor) -> tuple[float, Tensor]:
        scores = torch.tensordot(weights, log_probs, 1)
        normaliser = scores.logsumexp(1, keepdim=True)
        probs = (scores - normaliser).exp_()
        gradient = torch.stack([(probs * found).sum() / n for found in log_probs]) - of_label
        return float(normaliser.mean() - weights @ of_label), gradient

    return descend(value, torch.full_like(of_label, 1 / m), low=0.0, still=1e-9).parameters


def _nll(log_probs: Tensor, labels: Tensor) -> Tensor:
    return -log_probs.gather(1, labels[:, None]).squeeze(1)
