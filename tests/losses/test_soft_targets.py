"""Losses with target probabilities, as timm's and torchvision's mixup give them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.errors import InputError
from temperance.losses import ACLS, LOSSES, MDCA, Brier, CrossEntropy, LabelSmoothing, Loss, MbLS, make_loss
from temperance.losses.mixup import Mixed

SOFT = [kind for kind in LOSSES if kind.soft_targets]
each_soft = pytest.mark.parametrize("kind", SOFT, ids=lambda kind: kind.name)


def soft_batch(*space: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(12, 5, *space, generator=generator, dtype=torch.float64)
    targets = torch.randn(12, 5, *space, generator=generator, dtype=torch.float64).softmax(1)
    return logits.to(dtype), targets.to(dtype)


def slope(loss: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
    z = logits.detach().requires_grad_()
    return torch.autograd.grad(loss(z, targets).sum(), z)[0]


@pytest.mark.parametrize("space", [(), (3,), (2, 3)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("smoothing", "weighted"), [(0.0, False), (0.0, True), (0.1, False), (0.1, True)])
def test_cross_entropy_is_torchs(space: tuple[int, ...], reduction: str, smoothing: float, weighted: bool) -> None:
    logits, targets = soft_batch(*space)
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64) if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    ours, theirs = CrossEntropy(**options), nn.CrossEntropyLoss(**options)  # type: ignore[arg-type]
    torch.testing.assert_close(ours(logits, targets), theirs(logits, targets))
    torch.testing.assert_close(slope(ours, logits, targets), slope(theirs, logits, targets))


def test_label_smoothing_of_labels_is_torchs() -> None:
    logits, targets = soft_batch()
    labels = targets.argmax(1)
    labels[3] = -100
    for weight in (None, torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)):
        for reduction in ("mean", "sum", "none"):
            found = CrossEntropy(label_smoothing=0.2, weight=weight, reduction=reduction)(logits, labels)
            expected = F.cross_entropy(logits, labels, weight, label_smoothing=0.2, reduction=reduction)
            torch.testing.assert_close(found, expected)


def test_label_smoothing_loss_smooths_target_probabilities() -> None:
    logits, targets = soft_batch()
    expected = F.cross_entropy(logits, targets, label_smoothing=0.2)
    torch.testing.assert_close(LabelSmoothing(smoothing=0.2)(logits, targets), expected)


def test_brier_is_the_squared_distance() -> None:
    logits, targets = soft_batch()
    expected = (logits.softmax(1) - targets).square().sum(1).mean()
    torch.testing.assert_close(Brier()(logits, targets), expected)


def test_mdca_compares_with_the_mean_target() -> None:
    logits, targets = soft_batch()
    penalty = (logits.softmax(1).mean(0) - targets.mean(0)).abs().mean()
    torch.testing.assert_close(MDCA(strength=2.0)(logits, targets), F.cross_entropy(logits, targets) + 2 * penalty)


@pytest.mark.parametrize("kind", [CrossEntropy, LabelSmoothing, MbLS, ACLS])
def test_targets_of_mixed_images_give_the_loss_of_the_mixture(kind: type[Loss]) -> None:
    """Mixup here combines two losses of labels; others mix the labels. For these losses it is the same."""
    logits, targets = soft_batch()
    labels, partner = targets.argmax(1), torch.arange(12).roll(1)
    mixed = Mixed(labels, partner, torch.empty(0), 0.3)
    one_hot = F.one_hot(labels, 5).double()
    soft = 0.3 * one_hot + 0.7 * one_hot[partner]
    loss = kind()
    torch.testing.assert_close(loss(logits, soft), mixed.loss(loss, lambda images: logits))


@each_soft
def test_a_masked_class_with_a_target_of_zero_changes_nothing(kind: type[Loss]) -> None:
    logits, labels = torch.tensor([[1.0, 2.0, -1e30], [0.5, 0.0, 1.0]]), torch.tensor([0, 2])
    loss = make_loss(kind.name)
    torch.testing.assert_close(loss(logits, F.one_hot(labels, 3).float()), loss(logits, labels))


def test_a_class_with_probability_zero_and_target_zero_adds_nothing() -> None:
    logits = torch.tensor([[1.0, 2.0, -torch.inf]])
    found = CrossEntropy()(logits, torch.tensor([[0.25, 0.75, 0.0]]))
    torch.testing.assert_close(found, F.cross_entropy(logits[:, :2], torch.tensor([[0.25, 0.75]])))


@each_soft
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(kind: type[Loss], dtype: torch.dtype) -> None:
    logits, targets = soft_batch(dtype=dtype)
    loss = make_loss(kind.name)
    found = loss(logits, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss(logits.float(), targets.float()))


@each_soft
def test_compiles_without_a_graph_break(kind: type[Loss]) -> None:
    logits, targets = soft_batch()
    loss = make_loss(kind.name)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, targets), loss(logits, targets))


def test_refusals_name_the_loss() -> None:
    logits, targets = soft_batch()
    for loss, says in (
        (make_loss("focal"), "^focal is not defined for target probabilities: pass class numbers"),
        (MbLS(base="focal"), "^focal is not defined"),
        (ACLS(base="mmce"), "^mmce is not defined"),
        (make_loss("mmce"), "^mmce is not defined"),
        (CrossEntropy(ignore_index=3), "no label to ignore, but cross-entropy was made with ignore_index=3"),
    ):
        with pytest.raises(InputError, match=says):
            loss(logits, targets)
    with pytest.raises(InputError, match="labels must be class numbers"):
        CrossEntropy()(logits, targets[:, :4])
