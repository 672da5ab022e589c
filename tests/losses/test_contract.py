"""What every registered loss must do; no loss is exempt by name. What the registry claims: test_claims_contract."""

import copy
import math
import pickle
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from losses.made import batch, close, each_loss, gradient, made, make, numbers
from temperance import losses
from temperance.errors import InputError
from temperance.losses import LOSSES, CrossEntropy, Focal, Loss, Regulariser, make_loss

# --------------------------------------------------------------------------------------------------- as cross-entropy


@each_loss
def test_reductions(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    each = made(kind, reduction="none")(logits, labels, indices)
    assert each.shape == labels.shape
    assert close(made(kind)(logits, labels, indices), each.mean())
    assert close(made(kind, reduction="sum")(logits, labels, indices), each.sum())


@each_loss
def test_class_weights_weight_samples(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0])
    each = made(kind, reduction="none")(logits, labels, indices)
    counts = weight[labels].double()
    for reduction, expected in {
        "none": counts * each,
        "sum": (counts * each).sum(),
        "mean": (counts * each).sum() / counts.sum(),
    }.items():
        assert close(made(kind, weight=weight, reduction=reduction)(logits, labels, indices), expected)
    assert made(kind, weight=torch.zeros(5))(logits, labels, indices) == 0


@each_loss
def test_ignored_samples_have_no_effect(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    labels[labels == 3] = 2
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[[0, 4, 5, 6, 23]] = False
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0])
    variants: list[dict[str, Any]] = [{}, {"reduction": "sum"}, {"weight": weight}]
    for ignore_index, settings in product((-100, 255, 3), variants):
        some = labels.masked_fill(~kept, ignore_index)
        loss = made(kind, ignore_index=ignore_index, **settings)
        alone = gradient(loss, logits[kept], labels[kept], indices[kept])
        assert close(loss(logits, some, indices), loss(logits[kept], labels[kept], indices[kept]))
        found = gradient(loss, logits, some, indices)
        assert close(found[kept], alone)
        assert not found[~kept].any()
        each = made(kind, ignore_index=ignore_index, reduction="none")(logits, some, indices)
        assert not each[~kept].any()


@each_loss
def test_memory_skips_ignored_samples(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    kept = labels != 2
    with_ignored, without = make(kind), make(kind)
    with_ignored.update(logits, labels.masked_fill(~kept, -100), indices)
    without.update(logits[kept], labels[kept], indices[kept])
    for name, value in with_ignored.state_dict().items():
        assert torch.equal(value, without.state_dict()[name])


@each_loss
def test_batches_without_a_sample_give_zero(kind: type[Loss]) -> None:
    logits, labels, indices = batch(6)
    for reduction, settings in product(("mean", "sum", "none"), ({}, {"weight": torch.rand(5)})):
        loss = made(kind, reduction=reduction, **settings)
        z = logits.clone().requires_grad_()
        value = loss(z, torch.full_like(labels, -100), indices)
        assert not value.any()
        value.sum().backward()
        assert z.grad is not None and not z.grad.any()
        assert not loss(logits[:0], labels[:0], indices[:0]).any()


@each_loss
def test_dense_predictions_are_rows(kind: type[Loss]) -> None:
    logits, labels, indices = batch(2 * 3 * 4)
    dense = logits.reshape(2, 3, 4, 5).movedim(-1, 1)
    truth, places = labels.reshape(2, 3, 4), indices.reshape(2, 3, 4)
    assert close(made(kind)(dense, truth, places), made(kind)(logits, labels, indices))
    each = made(kind, reduction="none")
    assert close(each(dense, truth, places), each(logits, labels, indices).reshape(2, 3, 4))
    found = gradient(made(kind), dense, truth, places)
    assert close(found.movedim(1, -1).reshape(-1, 5), gradient(made(kind), logits, labels, indices))


@each_loss
def test_labels_of_any_integer_type(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    loss = made(kind)
    expected = loss(logits, labels, indices)
    for dtype in (torch.int32, torch.uint8):
        assert torch.equal(loss(logits, labels.to(dtype), indices.to(torch.int32)), expected)


def test_cross_entropy_is_torchs() -> None:
    logits, labels, _ = batch()
    labels[3] = -100
    weight = torch.rand(5, dtype=torch.float64)
    for reduction in ("mean", "sum", "none"):
        for w in (None, weight):
            found = CrossEntropy(weight=w, reduction=reduction)(logits, labels)
            assert close(found, F.cross_entropy(logits, labels, weight=w, reduction=reduction))


# --------------------------------------------------------------------------------------------------- kinds of numbers


@each_loss
def test_half_precision_is_computed_in_float32(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    loss = made(kind)
    for dtype in (torch.bfloat16, torch.float16):
        half = logits.to(dtype)
        expected = loss(half.float(), labels, indices)
        assert expected.dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(loss(half, labels, indices), expected)
            assert torch.equal(loss(half.float(), labels, indices), expected)
        slope = gradient(loss, half, labels, indices)
        assert slope.dtype == dtype and bool(torch.isfinite(slope).all())


@each_loss
def test_float32_agrees_with_float64(kind: type[Loss], fixture_a: Any) -> None:
    logits, labels = (torch.from_numpy(x) for x in fixture_a)
    indices, loss = numbers(labels), make(kind)
    exact = loss(logits, labels, indices)
    assert exact.dtype == torch.float64
    assert close(loss(logits.float(), labels, indices).double(), exact, 1e-4)
    slope = gradient(loss, logits.float(), labels, indices)
    assert close(slope.double(), gradient(loss, logits, labels, indices), 1e-4)


@each_loss
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_cpu(kind: type[Loss]) -> None:
    # Confidences that float32 can tell apart: kernels have a kink where two are equal.
    logits, labels, indices = batch(sharpness=1.0)
    labels[3] = -100
    loss = made(kind)
    expected = loss(logits, labels, indices), gradient(loss, logits, labels, indices)
    loss = copy.deepcopy(loss).cuda()
    given = logits.float().cuda(), labels.cuda(), indices.cuda()
    for found, value in zip((loss(*given), gradient(loss, *given)), expected, strict=True):
        assert close(found.cpu().double(), value, 1e-4)


# ------------------------------------------------------------------------------------------------------- hard batches


def hard_batches() -> dict[str, tuple[Tensor, Tensor]]:
    logits, labels, _ = batch(8, 4)
    right = logits.argmax(1)
    huge = torch.where(logits > 0, 1e4, -1e4)
    return {
        "one sample": (logits[:1], labels[:1]),
        "all right": (logits, right),
        "all wrong": (logits, (right + 1) % 4),
        "one class": (logits, torch.zeros_like(labels)),
        "equal logits": (torch.full_like(logits, 0.3), labels),
        "equal samples": (logits[:1].expand(8, 4), labels),
        "two classes": (logits[:, :2], labels % 2),
        "one class only": (logits[:, :1], torch.zeros_like(labels)),
        "huge and right": (huge + logits, (huge + logits).argmax(1)),
        "huge and wrong": (huge + logits, (huge + logits).argmin(1)),
        "all huge": (logits + 1e4, labels),
        "all tiny": (logits - 1e4, labels),
    }


@each_loss
def test_value_and_gradient_are_finite(kind: type[Loss]) -> None:
    for loss, (name, (logits, labels)) in product((make(kind), made(kind)), hard_batches().items()):
        for dtype in (torch.float32, torch.float64):
            z = logits.to(dtype)
            assert bool(torch.isfinite(loss(z, labels, numbers(labels)))), name
            assert bool(torch.isfinite(gradient(loss, z, labels, numbers(labels))).all()), name


# ----------------------------------------------------------------------------------------------- settings and memories


@each_loss
def test_documented_and_public(kind: type[Loss]) -> None:
    assert kind.summary and len(kind.summary) < 120
    assert getattr(losses, kind.__name__) is kind
    assert kind.__name__ in losses.__all__


@each_loss
def test_training_leaves_the_memory_alone(kind: type[Loss]) -> None:
    loss = made(kind)
    before = copy.deepcopy(loss.state_dict())
    gradient(loss, *batch())
    for name, value in loss.state_dict().items():
        assert torch.equal(value, before[name])


@each_loss
def test_class_weights_and_memory_are_not_rounded_when_a_network_is_cast(kind: type[Loss]) -> None:
    loss = made(kind, weight=torch.rand(5))
    before = copy.deepcopy(loss.state_dict())
    torch.nn.ModuleList([loss]).to(torch.bfloat16)
    for name, value in loss.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
    assert next(iter(loss.to("meta").buffers())).device.type == "meta"


@each_loss
def test_hyper_parameters_of_the_papers_can_be_set(kind: type[Loss]) -> None:
    for used in kind.hyper_parameters:
        loss = make(kind, **used.settings)
        assert used.data and used.source
        assert bool(torch.isfinite(loss(*batch())))
        assert used.settings.items() <= loss.settings.items()


@each_loss
def test_settings_are_kept_and_shown(kind: type[Loss]) -> None:
    loss = make(kind)
    known = {name: s.default for name, s in kind.own_settings().items() if name not in ("n_samples", "base")}
    assert known.items() <= loss.settings.items()
    shown = repr(make(kind, reduction="sum"))
    assert all(f"{name}={value!r}" in shown for name, value in known.items()) and "reduction='sum'" in shown


@each_loss
def test_copies_are_alike_and_repeat_exactly(kind: type[Loss]) -> None:
    loss = made(kind, weight=torch.rand(5))
    again, copied, pickled = loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))
    for other in (again, copied, pickled):
        assert torch.equal(other(*batch()), loss(*batch()))
        assert torch.equal(gradient(other, *batch()), gradient(loss, *batch()))


# -------------------------------------------------------------------------------------------------------- composition

each_regulariser = pytest.mark.parametrize(
    "kind", [kind for kind in LOSSES if issubclass(kind, Regulariser)], ids=lambda kind: kind.name
)


@each_regulariser
def test_penalty_is_added_to_any_base(kind: type[Loss]) -> None:
    given = batch()
    added = kind._penalty is not Regulariser._penalty  # type: ignore[attr-defined]
    rest = {}
    for name, base in {"cross-entropy": CrossEntropy, "focal": Focal}.items():
        total = made(kind, base=name, reduction="none")(*given)
        assert torch.equal(made(kind, base=base(), reduction="none")(*given), total)
        of_base = make_loss(name, reduction="none")(*given)
        rest[name] = total - of_base if added else total / of_base
    assert close(rest["cross-entropy"], rest["focal"])


@each_regulariser
def test_class_weights_apply_to_the_smoothing_of_the_base(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    labels[[0, 7]] = -100
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    counts = (labels >= 0) * weight[labels.clamp_min(0)]
    smoothed = F.cross_entropy(logits, labels, weight, label_smoothing=0.2, reduction="none")
    each, of_base = (
        loss(logits, labels, indices) for loss in (made(kind, reduction="none"), CrossEntropy(reduction="none"))
    )
    if kind._penalty is not Regulariser._penalty:  # type: ignore[attr-defined]
        expected = smoothed + counts * (each - of_base)
    else:
        expected = smoothed * (each / of_base.where(labels >= 0, 1))
    base = "cross-entropy:label_smoothing=0.2"
    for reduction, value in {"none": expected, "sum": expected.sum(), "mean": expected.sum() / counts.sum()}.items():
        loss = made(kind, base=base, weight=weight, reduction=reduction)
        assert close(loss(logits, labels, indices), value)


@each_regulariser
def test_base_with_memory_is_fed(kind: type[Loss]) -> None:
    memory = "crl" if kind.learns_from == "training" else "adafocal"
    inner = make(LOSSES[memory])
    before = copy.deepcopy(inner.state_dict())
    loss = make(kind, base=inner)
    assert loss.learns_from == inner.learns_from
    assert loss.needs_indices == (inner.needs_indices or kind.needs_indices)
    loss.update(*batch())
    assert any(not torch.equal(value, before[name]) for name, value in inner.state_dict().items())


@each_regulariser
def test_base_must_not_set_the_reduction(kind: type[Loss]) -> None:
    for base in (Focal(reduction="sum"), Focal(weight=torch.ones(5)), Focal(ignore_index=255)):
        with pytest.raises(InputError, match=f"give weight, ignore_index and reduction to {kind.name}"):
            make(kind, base=base)
    with pytest.raises(InputError, match=f"{kind.name}: base must be a name or a loss"):
        make(kind, base=torch.nn.CrossEntropyLoss())
    with pytest.raises(InputError, match="did you mean focal"):
        make(kind, base="focl")


def test_memories_of_different_kinds_do_not_mix() -> None:
    with pytest.raises(InputError, match="learns from training predictions and its base adafocal from validation"):
        make_loss("crl", n_samples=5, base="adafocal")


# -------------------------------------------------------------------------------------------------------------- errors


@each_loss
def test_wrong_input_is_refused_in_a_sentence(kind: type[Loss]) -> None:
    logits, labels, indices = batch()
    loss = make(kind)
    wrong: list[tuple[Tensor, Tensor, str]] = [
        (logits, labels + 1, "labels must lie in 0 … 4 for 5 classes, or be ignore_index=-100; found 5"),
        (logits, labels - 1, "found -1"),
        (logits, labels[:-1], r"labels must be class numbers of shape \(24,\)"),
        (logits, F.one_hot(labels, 5), r"labels must be class numbers of shape \(24,\) to fit logits \(24, 5\)"),
        (logits, labels.double(), "labels must be class numbers"),
        (logits, labels > 1, "labels must be class numbers"),
        (logits[:, 0], labels, "logits must be floating-point numbers"),
        (logits.long(), labels, "logits must be floating-point numbers"),
    ]
    for z, y, says in wrong:
        with pytest.raises(InputError, match=says):
            loss(z, y, indices[: len(y)])
    with pytest.raises(InputError, match="indices must have the shape of labels"):
        loss(logits, labels, indices[:-1])
    with pytest.raises(InputError, match="weight must have one number for each of the 5 classes; it has 3"):
        make(kind, weight=torch.ones(3))(logits, labels, indices)


@each_loss
def test_wrong_class_weights_are_refused_in_a_sentence(kind: type[Loss]) -> None:
    for settings, says in (
        ({"weight": [1.0, 2.0]}, "weight must be a tensor"),
        ({"weight": torch.tensor([1.0, -2.0])}, "weight must be finite and not negative"),
        ({"weight": torch.tensor([1.0, math.nan])}, "weight must be finite and not negative"),
    ):
        with pytest.raises(InputError, match=says):
            make(kind, **settings)


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="there is no loss named 'focl'; did you mean focal"):
        make_loss("focl")
    with pytest.raises(InputError, match="there is no setting of focal named 'gama'; did you mean gamma"):
        make_loss("focal", gama=2)
    with pytest.raises(InputError, match="crl needs n_samples"):
        make_loss("crl")
