"""Every loss in odd surroundings: who else derives or traces it, other defaults of torch, other devices, no numbers."""

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from temperance.errors import InputError
from temperance.losses import AU, LOSSES, AdaFocal, CrossEntropy, EntropyPenalty, Loss, SoftAvUC, make_loss

# Torch itself compiles rules for forward derivatives by ways that it gives up.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

each_loss = pytest.mark.parametrize("kind", list(LOSSES), ids=LOSSES.names)


def with_batch(kind: type[Loss], n: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Loss, Tensor, Tensor, Tensor]:
    """A loss and a batch whose logits are within its margin here and beyond it there."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (n,), generator=generator)
    return (
        make_loss(kind.name, **({"n_samples": n} if kind.needs_indices else {})),
        logits.to(dtype),
        labels,
        torch.arange(n),
    )


# ---------------------------------------------------------------------------------------------- who else derives it


@each_loss
def test_second_derivatives_are_those_of_the_gradient(kind: type[Loss]) -> None:
    """By autograd, by `torch.func` and, where it is that of a value and so has symmetric ones, by differences."""
    loss, logits, labels, indices = with_batch(kind)

    def value(z: Tensor) -> Tensor:
        found: Tensor = loss(z, labels, indices)
        return found

    def slope(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        return torch.autograd.grad(value(z), z)[0]

    move = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)
    expected = (slope(logits + 1e-6 * move) - slope(logits - 1e-6 * move)) / 2e-6
    again = torch.autograd.functional.vhp(value, logits, move)[1]  # type: ignore[no-untyped-call]
    assert torch.allclose(again, expected, atol=1e-6) or not kind.exact_gradient
    for by in (torch.func.grad, torch.func.jacfwd):
        first = by(value)
        found = torch.func.vjp(first, logits)[1](move)[0]
        assert torch.allclose(found, again)


@each_loss
def test_forward_derivatives(kind: type[Loss]) -> None:
    loss, logits, labels, indices = with_batch(kind)
    z, move = logits.clone().requires_grad_(), torch.ones_like(logits).cumsum(1)
    (slope,) = torch.autograd.grad(loss(z, labels, indices), z)
    with forward_ad.dual_level():
        dual = loss(forward_ad.make_dual(logits, move), labels, indices)  # type: ignore[no-untyped-call]
        found = forward_ad.unpack_dual(dual).tangent  # type: ignore[no-untyped-call]
    assert torch.allclose(found, (slope * move).sum())


@each_loss
def test_many_gradients_at_once(kind: type[Loss]) -> None:
    for dtype in (torch.float32, torch.float64):
        loss, logits, labels, indices = with_batch(kind, dtype=dtype)
        z = logits.requires_grad_()
        loss.reduction = "none"
        values, times = loss(z, labels, indices), torch.eye(len(labels), dtype=dtype)
        (found,) = torch.autograd.grad(values, z, times, is_grads_batched=True, retain_graph=True)
        one_by_one = [torch.autograd.grad(values, z, each, retain_graph=True)[0] for each in times]
        assert torch.allclose(found, torch.stack(one_by_one), atol=1e-6)
        loss.reduction = "mean"
        (both,) = torch.autograd.grad(loss(z, labels, indices), z, times[0, :2], is_grads_batched=True)
        assert torch.allclose(both[0], torch.autograd.grad(loss(z, labels, indices), z)[0], atol=1e-6)
        assert not both[1].any()


@each_loss
def test_tracers_see_what_is_computed(kind: type[Loss]) -> None:
    loss, logits, labels, indices = with_batch(kind, dtype=torch.float32)
    graph = make_fx(lambda z: loss(z, labels, indices))(logits)
    assert torch.allclose(graph(logits + 1), loss(logits + 1, labels, indices), rtol=1e-4)


# ------------------------------------------------------------------------------------------------ other surroundings


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    try:
        yield request.param
    finally:
        torch.set_default_dtype(torch.float32)


@each_loss
def test_single_precision_whatever_torch_s_default_is(kind: type[Loss], default: torch.dtype) -> None:
    loss, logits, labels, indices = with_batch(kind, dtype=torch.float32)
    z = logits.clone().requires_grad_()
    found = loss(z, labels, indices)
    found.backward()
    torch.set_default_dtype(torch.float32)
    usual = logits.clone().requires_grad_()
    expected = with_batch(kind)[0](usual, labels, indices)
    expected.backward()
    assert torch.allclose(found, expected, rtol=1e-5) and found.dtype == torch.float32
    assert z.grad is not None and usual.grad is not None and torch.allclose(z.grad, usual.grad, rtol=1e-4, atol=1e-6)


@each_loss
def test_what_does_not_count_may_be_anything(kind: type[Loss]) -> None:
    for dtype in (torch.float32, torch.float64):
        loss, logits, labels, indices = with_batch(kind, 12, dtype)
        labels[5] = -100
        found = []
        for anything in (0.0, math.nan, math.inf):
            z = logits.clone()
            z[5] = anything
            z.requires_grad_()
            value = loss(z, labels, indices)
            found.append((value, torch.autograd.grad(value, z)[0]))
        assert all(torch.equal(value, found[0][0]) and torch.equal(slope, found[0][1]) for value, slope in found)


def test_another_device_is_refused() -> None:
    _, logits, labels, _ = with_batch(CrossEntropy, dtype=torch.float32)
    for loss, truth in (
        (CrossEntropy(), labels.to("meta")),
        (CrossEntropy(weight=torch.ones(4)).to("meta"), labels),
        (AU().to("meta"), labels),
        (AdaFocal().to("meta"), labels),
    ):
        with pytest.raises(InputError, match="must be on one device; found cpu and meta"):
            loss(logits, truth)


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(InputError, match=r"at least one class; got \(4, 0\)"):
        CrossEntropy()(torch.zeros(4, 0), torch.full((4,), -100))
    with pytest.raises(InputError, match="must be tensors"):
        CrossEntropy()([[1.0, 2.0]], [0])
    with pytest.raises(InputError, match="ignore_index must be a whole number that a label can have"):
        CrossEntropy(ignore_index=1 << 64)


@pytest.mark.parametrize("loss", [EntropyPenalty(), SoftAvUC()], ids=lambda loss: loss.name)
def test_entropy_of_what_is_ruled_out(loss: Loss) -> None:
    """A probability of 0 adds nothing to it."""
    for dtype in (torch.float32, torch.float64):
        _, logits, labels, _ = with_batch(CrossEntropy, dtype=dtype)
        wide = F.pad(logits, (0, 1), value=-math.inf).requires_grad_()
        (slope,) = torch.autograd.grad(loss(wide, labels), wide)
        assert bool(torch.isfinite(slope).all()) and not slope[:, 4].any()
