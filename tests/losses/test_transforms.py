"""Every loss under compilers and transforms, other defaults of torch, other devices, and with NaN in ignored rows."""

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from temperance.errors import InputError
from temperance.losses import AU, LOSSES, AdaFocal, CrossEntropy, EntropyPenalty, Loss, SoftAvUC, make_loss

# Torch's own rules for forward derivatives use parts of torch that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

each_loss = pytest.mark.parametrize("kind", list(LOSSES), ids=LOSSES.names)
each_exact = pytest.mark.parametrize(
    "kind", [kind for kind in LOSSES if kind.exact_gradient], ids=lambda kind: kind.name
)
each_per_sample = pytest.mark.parametrize(
    "kind", [kind for kind in LOSSES if kind.per_sample], ids=lambda kind: kind.name
)


def with_batch(kind: type[Loss], n: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Loss, Tensor, Tensor, Tensor]:
    """A loss and a batch with distances between logits within its margin and beyond."""
    return made(kind.name, n), *batch(n, dtype)


def made(name: str, n: int) -> Loss:
    return make_loss(name, **({"n_samples": n} if LOSSES[name].needs_indices else {}))


def batch(n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return logits.to(dtype), torch.randint(4, (n,), generator=generator), torch.arange(n)


def slope(loss: Loss, logits: Tensor, *rest: Tensor) -> Tensor:
    z = logits.detach().requires_grad_()
    return torch.autograd.grad(loss(z, *rest), z)[0]


# ----------------------------------------------------------------------------------------------------------- compilers


class Together(nn.Module):
    """Several losses of the same batch, so that a compiler sees them all at once. (number of losses,)"""

    def __init__(self, names: Sequence[str], n: int) -> None:
        super().__init__()
        self.losses = nn.ModuleList(made(name, n) for name in names)

    def forward(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        return torch.stack([loss(logits, labels, indices) for loss in self.losses])


def some_ignored(n: int) -> tuple[Tensor, Tensor, Tensor]:
    logits, labels, indices = batch(n)
    labels[[1, 4]] = -100
    return logits, labels, indices


def test_all_compile_without_a_graph_break() -> None:
    together, given = Together(LOSSES.names, 12), some_ignored(12)
    torch.compiler.reset()
    compiled = torch.compile(together, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(*given), together(*given))


def test_compiled_gradients_are_the_same() -> None:
    """Of a per-sample loss and of one with ranks, a histogram and a memory."""
    together, (logits, *rest) = Together(["acls", "au"], 12), some_ignored(12)
    torch.compiler.reset()
    compiled = torch.compile(together, fullgraph=True, backend="aot_eager")
    found, expected = (
        torch.autograd.grad(module(z := logits.clone().requires_grad_(), *rest).dot(logits[0, :2]), z)[0]
        for module in (compiled, together)
    )
    assert torch.allclose(found, expected)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", ["export", "trace", "make_fx"])
def test_all_can_be_traced(how: str) -> None:
    together, (logits, *rest) = Together(LOSSES.names, 12), some_ignored(12)
    if how == "export":
        traced = torch.export.export(together, (logits, *rest)).module()
    elif how == "trace":
        traced = torch.jit.trace(together, (logits, *rest))  # type: ignore[no-untyped-call]
    else:
        traced = make_fx(together)(logits, *rest)
    for other in (logits, logits.flip(1) / 2):
        assert torch.allclose(traced(other, *rest), together(other, *rest))


# ---------------------------------------------------------------------------------------------------------- transforms


@each_exact
def test_second_derivatives(kind: type[Loss]) -> None:
    """By autograd, against differences of the gradient."""
    loss, logits, *rest = with_batch(kind)
    move = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)
    expected = (slope(loss, logits + 1e-6 * move, *rest) - slope(loss, logits - 1e-6 * move, *rest)) / 2e-6
    z = logits.requires_grad_()
    (first,) = torch.autograd.grad(loss(z, *rest), z, create_graph=True)
    (found,) = torch.autograd.grad((first * move).sum(), z)
    assert torch.allclose(found, expected, atol=1e-6)


@each_loss
def test_functional_derivatives_are_those_of_autograd(kind: type[Loss]) -> None:
    loss, logits, *rest = with_batch(kind)

    def value(z: Tensor) -> Tensor:
        found: Tensor = loss(z, *rest)
        return found

    move = torch.ones_like(logits).cumsum(1)
    expected = slope(loss, logits, *rest)
    for by in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        assert torch.allclose(by(value)(logits), expected)
    along = torch.autograd.functional.vhp(value, logits, move)[1]  # type: ignore[no-untyped-call]
    found = torch.einsum("nkml,ml->nk", torch.func.hessian(value)(logits), move)
    assert torch.allclose(found, along)
    with forward_ad.dual_level():
        dual = loss(forward_ad.make_dual(logits, move), *rest)  # type: ignore[no-untyped-call]
        tangent = forward_ad.unpack_dual(dual).tangent  # type: ignore[no-untyped-call]
    assert torch.allclose(tangent, (expected * move).sum())


@each_per_sample
def test_gradients_of_single_samples_by_vmap(kind: type[Loss]) -> None:
    loss, logits, labels, _ = with_batch(kind)
    found = torch.func.vmap(torch.func.grad(lambda z, y: loss(z[None], y[None])))(logits, labels)
    loss.reduction = "sum"
    assert torch.allclose(found, slope(loss, logits, labels))


@each_loss
def test_many_gradients_at_once(kind: type[Loss]) -> None:
    loss, logits, labels, indices = with_batch(kind)
    z = logits.requires_grad_()
    loss.reduction = "none"
    values, times = loss(z, labels, indices), torch.eye(len(labels), dtype=logits.dtype)
    (found,) = torch.autograd.grad(values, z, times, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(values, z, each, retain_graph=True)[0] for each in times]
    assert torch.allclose(found, torch.stack(one_by_one))


# -------------------------------------------------------------------------------------------------- other surroundings


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    try:
        yield request.param
    finally:
        torch.set_default_dtype(torch.float32)


@each_loss
def test_single_precision_whatever_the_default_of_torch(kind: type[Loss], default: torch.dtype) -> None:
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
def test_ignored_rows_may_hold_nan_and_infinity(kind: type[Loss]) -> None:
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
        with pytest.raises(InputError, match="must be on the same device; found cpu and meta"):
            loss(logits, truth)


def test_wrong_batches_are_refused() -> None:
    with pytest.raises(InputError, match=r"at least one class; got \(4, 0\)"):
        CrossEntropy()(torch.zeros(4, 0), torch.full((4,), -100))
    with pytest.raises(InputError, match="must be tensors"):
        CrossEntropy()([[1.0, 2.0]], [0])
    with pytest.raises(InputError, match="ignore_index must be a whole number"):
        CrossEntropy(ignore_index=1 << 64)


@pytest.mark.parametrize("loss", [EntropyPenalty(), SoftAvUC()], ids=lambda loss: loss.name)
def test_entropy_of_classes_that_are_ruled_out(loss: Loss) -> None:
    """A probability of 0 adds nothing to it."""
    for dtype in (torch.float32, torch.float64):
        _, logits, labels, _ = with_batch(CrossEntropy, dtype=dtype)
        wide = F.pad(logits, (0, 1), value=-math.inf).requires_grad_()
        (slope,) = torch.autograd.grad(loss(wide, labels), wide)
        assert bool(torch.isfinite(slope).all()) and not slope[:, 4].any()
