"""What the registry claims of losses is true, and a false claim is found."""

import copy
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from losses.made import N_SAMPLES, batch, close, each_loss, gradient, made, make, numbers
from temperance.errors import InputError
from temperance.losses import LOSSES, CrossEntropy, Loss
from temperance.losses.base import LossClaims

# A check takes a loss and fails if its claim is false. `FALSE` has a false claim for each, which the check must refuse.


def check_paper(kind: type[Loss]) -> None:
    assert re.search(r"\b(19|20)\d\d\b", kind.paper), "a paper has a year"


def check_per_sample(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    loss = made(kind, reduction="none")
    each = loss(logits, labels, indices)
    alone = torch.cat([loss(logits[i : i + 1], labels[i : i + 1], indices[i : i + 1]) for i in range(len(labels))])
    assert close(alone, each) == kind.per_sample


def check_shift_invariant(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    shift = torch.linspace(-20, 20, len(labels), dtype=torch.float64)[:, None]
    loss = made(kind)
    same_value = close(loss(logits + shift, labels, indices), loss(logits, labels, indices), 1e-9)
    moved, still = (gradient(loss, z, labels, indices) for z in (logits + shift, logits))
    assert (same_value and close(moved, still, 1e-9)) == kind.shift_invariant


def check_exact_gradient(kind: type[Loss]) -> None:
    """Against finite differences, with logits within every margin and beyond."""
    loss, found = made(kind), []
    for sharpness in (1.0, 4.0):
        logits, labels, indices = batch(5, 4, sharpness=sharpness)
        of_logits = partial(lambda y, i, z: loss(z, y, i), labels, indices)
        found.append(torch.autograd.gradcheck(of_logits, logits.requires_grad_(), raise_exception=False))
    assert all(found) == kind.exact_gradient


def check_proper(kind: type[Loss]) -> None:
    """On average over labels drawn from the truth, the truth is a minimum, and no other forecast is as good."""
    labels, loss = torch.tensor([0] * 6 + [1] * 3 + [2]), make(kind)

    def expected(forecast: list[float]) -> tuple[Tensor, Tensor]:
        logits = torch.tensor(forecast, dtype=torch.float64).log().expand(10, 3)
        given = logits, labels, numbers(labels)
        return loss(*given), gradient(loss, *given).sum(0)

    best, slope = expected([0.6, 0.3, 0.1])
    assert close(slope, torch.zeros_like(slope))
    for other in ([0.5, 0.4, 0.1], [0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3], [0.6, 0.25, 0.15]):
        assert expected(other)[0] > best + 1e-6


def check_equals_cross_entropy_at(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    assert kind.equals_cross_entropy_at is not None
    loss = make(kind, **kind.equals_cross_entropy_at)
    assert close(loss(logits, labels, indices), F.cross_entropy(logits, labels))
    assert close(gradient(loss, logits, labels, indices), gradient(CrossEntropy(), logits, labels, indices))


def check_soft_targets(kind: type[Loss]) -> None:
    """One-hot targets give the value and gradient of labels, and where the most probable class changes, nothing jumps.

    A loss that does not take them says so, by its name.
    """
    logits, labels, indices = batch()
    targets = F.one_hot(labels, 5).to(logits.dtype)
    even = (targets + targets.roll(1, 1)) / 2
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0])
    for settings in ({}, {"reduction": "none"}, {"reduction": "sum", "weight": weight}):
        loss = made(kind, **settings)
        if not kind.soft_targets:
            with pytest.raises(InputError, match=rf"^{kind.name} is not defined for target probabilities"):
                loss(logits, targets, indices)
            continue
        assert close(loss(logits, targets, indices), loss(logits, labels, indices))
        before, after = (loss(logits, even + by * targets, indices) for by in (-1e-9, 1e-9))
        assert close(before, after, 1e-6)
        if "reduction" not in settings:
            assert close(gradient(loss, logits, targets, indices), gradient(loss, logits, labels, indices))


def check_learns_from(kind: type[Loss]) -> None:
    """A memory is in the buffers, changes with updates, and continues bit by bit after save and load."""
    assert kind.learns_from in (None, "training", "validation")
    logits, labels, indices = batch()
    loss = make(kind)
    before = copy.deepcopy(loss.state_dict())
    loss.update(logits, labels, indices)
    after = loss.state_dict()
    changed = any(not torch.equal(after[name], before[name]) for name in before)
    assert changed == bool(before) == (kind.learns_from is not None)
    resumed = make(kind)
    resumed.load_state_dict(after)
    for seed in (1, 2):
        other = batch(seed=seed)
        for one in (loss, resumed):
            one.update(*other)
            one.end_epoch()
        for name, value in loss.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[name])
        assert torch.equal(loss(logits, labels, indices), resumed(logits, labels, indices))


def check_needs_indices(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    assert ("n_samples" in kind.own_settings()) == kind.needs_indices
    loss = made(kind)
    if kind.needs_indices:
        for call in (loss, loss.update):
            with pytest.raises(InputError, match="pass the indices of the samples too"):
                call(logits, labels)
            with pytest.raises(InputError, match=f"found {N_SAMPLES}"):
                call(logits, labels, indices + N_SAMPLES - 23)
    else:
        assert torch.equal(loss(logits, labels), loss(logits, labels, indices))


CHECKS: dict[str, Callable[[type[Loss]], None]] = {
    "paper": check_paper,
    "per_sample": check_per_sample,
    "shift_invariant": check_shift_invariant,
    "exact_gradient": check_exact_gradient,
    "proper": check_proper,
    "soft_targets": check_soft_targets,
    "learns_from": check_learns_from,
    "needs_indices": check_needs_indices,
    "equals_cross_entropy_at": check_equals_cross_entropy_at,
}

FALSE: dict[str, tuple[str, object]] = {
    "paper": ("focal", "to appear"),
    "per_sample": ("mdca", True),
    "shift_invariant": ("focal", False),
    "exact_gradient": ("crl-margin", True),
    "proper": ("focal", True),
    "soft_targets": ("dual-focal", True),
    "learns_from": ("focal", "training"),
    "needs_indices": ("focal", True),
    "equals_cross_entropy_at": ("focal", {"gamma": 1.0}),
}

# These two promise nothing where they are not made.
OPTIONAL = {"proper": False, "equals_cross_entropy_at": None}


@each_loss
def test_claims_are_true(kind: type[Loss]) -> None:
    assert set(kind.claims()) == set(LossClaims.__annotations__)
    for claim in LossClaims.__annotations__:
        if claim not in OPTIONAL or getattr(kind, claim) != OPTIONAL[claim]:
            CHECKS[claim](kind)


@pytest.mark.parametrize("claim", LossClaims.__annotations__)
def test_false_claims_are_found(claim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, false = FALSE[claim]
    assert getattr(LOSSES[name], claim) != false
    monkeypatch.setattr(LOSSES[name], claim, false)
    with pytest.raises((AssertionError, InputError)):
        CHECKS[claim](LOSSES[name])
