"""Formulas: every way to evaluate them gives the same loss and the same gradient, and gradients have gradients."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import (
    ACLS,
    FLSD,
    LOSSES,
    AdaFocal,
    Brier,
    CRLMargin,
    CrossEntropy,
    DualFocal,
    EntropyPenalty,
    Focal,
    InverseFocal,
    LabelSmoothing,
    Loss,
    MbLS,
    compiled,
    make_loss,
    plain,
)
from temperance.losses.formula import Batch, Parts, Sample, Term, total
from temperance.losses.rowwise import loss_of

has_compiled = pytest.mark.skipif(compiled.LIBRARY is None, reason="temperance was installed without a C compiler")


def formula_losses() -> Iterator[Loss]:
    """Every form of every loss that is a formula."""
    yield from (CrossEntropy(), Brier(), LabelSmoothing(), LabelSmoothing(convention="others"))
    yield from (Focal(), Focal(gamma=0.5), Focal(detach_weight=True), FLSD(), InverseFocal())
    yield from (DualFocal(behaviour=behaviour) for behaviour in ("released", "eq24", "eq25-26"))
    adapted = AdaFocal(n_bins=4)
    adapted.update(*random_predictions(200, 5))
    yield adapted
    yield from (EntropyPenalty(), MbLS(), MbLS(detach_max=True), CRLMargin())
    for variant in ("paper", "released"):
        for amount in ("adaptive", "constant"):
            yield from (ACLS(variant=variant, amount=amount, condition=c) for c in ("margin", "always"))
    yield ACLS(margin=3.0, base=MbLS(base=Focal(gamma=2.0)))


def name_of(loss: Loss) -> str:
    """Its name, and the settings that are chosen by words."""
    words = [str(value) for value in loss.settings.values() if isinstance(value, str | bool)]
    return " ".join([loss.name, *words])


each_formula = pytest.mark.parametrize("loss", list(formula_losses()), ids=name_of)

SHAPES = ((40, 5), (7, 33), (1, 2), (3, 200), (2, 21, 5, 7), (2, 3, 40), (3, 4, 1))


def batch(loss: Loss, shape: tuple[int, ...], reduction: str = "mean", *, weighted: bool = False) -> Batch:
    """In float64, with labels to be ignored where there are some others."""
    n, k, *space = shape
    generator = torch.Generator().manual_seed(sum(shape))
    logits = 4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(k, (n, *space), generator=generator)
    if labels.numel() > 1:
        labels.view(-1)[::7] = -100
    weight = torch.rand(k, generator=generator) if weighted else None
    terms = loss._terms(k)
    assert terms is not None
    return Batch(logits, labels, weight, terms, -100, reduction)


def test_all_formulas_are_here() -> None:
    """So that a new one is tested too."""
    tested = {term.formula for loss in formula_losses() for term in loss._terms(5) or ()}
    for kind in LOSSES:
        settings = {"n_samples": 5} if kind.needs_indices else {}
        assert {term.formula for term in make_loss(kind.name, **settings)._terms(5) or ()} <= tested, kind.name


# ------------------------------------------------------------------------------------------------ compiled, as by torch


@has_compiled
@each_formula
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_agrees_with_torch(loss: Loss, shape: tuple[int, ...]) -> None:
    for reduction in ("none", "sum", "mean"):
        for weighted in (False, True):
            exact = batch(loss, shape, reduction, weighted=weighted)
            given = exact._replace(logits=exact.logits.float())
            engine = compiled.engine(given)
            assert engine is not None
            expected, found = plain.forward(exact, gradient=False), engine.forward(given, gradient=True)
            assert_close(found.loss, expected.loss)
            of_loss = torch.linspace(0.5, 1.5, found.loss.numel(), dtype=torch.float64).reshape(found.loss.shape)
            of_confidence = None
            if reduction == "none":
                assert found.confidence is not None and expected.confidence is not None
                assert_close(found.confidence, expected.confidence)
                of_confidence = of_loss - 1
            right = plain.backward(exact, of_loss, of_confidence)
            single = None if of_confidence is None else of_confidence.float()
            assert_close(engine.backward(given, of_loss.float(), single), right)
            if found.gradient is not None:
                assert_close(found.gradient * of_loss, right)
                assert_close(engine.class_sums(given), plain.class_sums(exact))
            assert not right[~counted(exact)].any() or reduction == "none"


def counted(given: Batch) -> Tensor:
    return (given.labels != -100)[:, None].expand_as(given.logits)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """To single precision, of numbers some of which are differences of larger ones."""
    assert found.dtype == torch.float32
    scale = 1 + expected.abs().amax() if expected.numel() else 1
    assert torch.allclose(found.double(), expected, rtol=2e-5, atol=float(2e-6 * scale))


@has_compiled
def test_many_samples_are_shared_by_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for shape in ((40_000, 20), (3, 9, 200, 150)):
            exact = batch(MbLS(), shape, weighted=True)
            given = exact._replace(logits=exact.logits.float())
            engine = compiled.engine(given)
            assert engine is not None
            expected, found = plain.forward(exact, gradient=False), engine.forward(given, gradient=True)
            again = engine.forward(given, gradient=True)
            assert_close(found.loss, expected.loss)
            assert found.gradient is not None and again.gradient is not None
            assert_close(1e5 * found.gradient, 1e5 * plain.backward(exact, torch.tensor(1.0), None))
            assert torch.equal(found.loss, again.loss) and torch.equal(found.gradient, again.gradient)
            assert torch.equal(engine.class_sums(given), engine.class_sums(given))
    finally:
        torch.set_num_threads(before)


@has_compiled
@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (torch.exp, -100, 80),
        (torch.expm1, -20, 20),
        (torch.expm1, -0.5, 0.5),
        (lambda x: torch.log(x * x + 1e-12), -50, 50),
        (lambda x: (x * x + 1e-6) ** 2.5, -30, 30),
        (torch.abs, -5, 5),
        (torch.relu, -5, 5),
    ],
)
def test_functions_are_as_exact_as_single_precision(function: Any, low: float, high: float) -> None:
    def formula(sample: Sample) -> Parts:
        return total(function(sample.z)), 0.0, 0.0

    logits = torch.linspace(low, high, 5000, dtype=torch.float32)[:, None]
    given = Batch(logits, torch.zeros(5000, dtype=torch.int64), None, (Term(formula),), -100, "none")
    engine = compiled.engine(given)
    assert engine is not None
    found, expected = engine.forward(given, gradient=False).loss.double(), function(logits.double())[:, 0]
    assert torch.allclose(found, expected, rtol=3e-6, atol=1e-37)


@has_compiled
def test_a_formula_with_an_unknown_step_is_done_by_torch() -> None:
    def formula(sample: Sample) -> Parts:
        return total(torch.sin(sample.z)), 0.0, torch.cos(sample.z)

    logits, labels = random_predictions(12, 4)
    logits = logits.float().requires_grad_()
    assert compiled.engine(Batch(logits, labels, None, (Term(formula),), -100, "none")) is None
    value = loss_of(logits, labels, Term(formula))
    assert torch.allclose(value, logits.sin().sum(1))
    assert torch.allclose(torch.autograd.grad(value.sum(), logits)[0], logits.cos())


@each_formula
def test_torch_does_it_without_a_compiler(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    given = batch(loss, (30, 5))
    logits, labels = given.logits.float().requires_grad_(), given.labels
    expected = loss(logits, labels)
    (slope,) = torch.autograd.grad(expected, logits)
    monkeypatch.setattr(compiled, "LIBRARY", None)
    found = loss(logits, labels)
    assert_close(found.detach(), expected.detach().double())
    assert_close(torch.autograd.grad(found, logits)[0], slope.double())


def test_a_library_that_is_none_counts_as_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert compiled._library() is None
    (tmp_path / "_formulas.so").write_text("not a library")
    assert compiled._library() is None


# ----------------------------------------------------------------------------------------------------- for all of them

each_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@each_type
@each_formula
def test_going_backward_twice_and_from_other_slopes(loss: Loss, dtype: torch.dtype) -> None:
    given = batch(loss, (12, 5))
    logits = given.logits.to(dtype).requires_grad_()
    value = loss(logits, given.labels)
    (once,) = torch.autograd.grad(value, logits, retain_graph=True)
    (again,) = torch.autograd.grad(value, logits, retain_graph=True)
    (thrice,) = torch.autograd.grad(3 * value, logits)
    assert torch.allclose(once, again) and torch.allclose(3 * once, thrice)


@each_type
def test_what_is_not_a_number_is_not_hidden(dtype: torch.dtype) -> None:
    logits, labels = random_predictions(6, 4)
    logits[2, 1] = torch.nan
    for loss in formula_losses():
        assert bool(loss(logits.to(dtype), labels).isnan())
        assert not loss(logits.to(dtype), labels.where(torch.arange(6) != 2, -100)).isnan()


@each_type
def test_classes_that_are_ruled_out(dtype: torch.dtype) -> None:
    """A logit of minus infinity is a probability of 0, as it is for torch."""
    logits, labels = random_predictions(6, 4)
    logits, labels = logits.to(dtype), labels.clamp_min(1)
    logits[:, 0] = -torch.inf
    logits.requires_grad_()
    for loss in (CrossEntropy(), Focal(), FLSD(), InverseFocal(), DualFocal(), Brier()):
        (slope,) = torch.autograd.grad(loss(logits, labels), logits)
        assert bool(torch.isfinite(slope).all()) and not slope[:, 0].any()
    assert torch.allclose(CrossEntropy()(logits, labels), F.cross_entropy(logits, labels))


@each_type
def test_labels_out_of_range_are_refused(dtype: torch.dtype) -> None:
    logits, labels = random_predictions(6, 4)
    labels[3] = 7
    with pytest.raises(InputError, match="labels must lie in 0 … 3 for 4 classes, or be ignore_index=-100; found 7"):
        CrossEntropy()(logits.to(dtype), labels)


@each_formula
def test_transforms_of_functions(loss: Loss) -> None:
    """The gradient of each sample, by `torch.func`."""
    given = batch(loss, (8, 5))
    kept = given.labels >= 0
    logits, labels = given.logits[kept], given.labels[kept]

    def of_one(z: Tensor, y: Tensor) -> Tensor:
        value: Tensor = loss(z[None], y[None])
        return value

    found = torch.func.vmap(torch.func.grad(of_one))(logits, labels)
    z = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(z, labels) * len(labels), z)
    assert torch.allclose(found, expected)
