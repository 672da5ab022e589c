"""The gradient of losses as label smoothing: golden numbers, formulas against autograd, what pictures show."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import random_predictions
from temperance.diagnose.gradient import (
    REFERENCE_SIZE,
    against_probability,
    beside_rival,
    gradients,
    overconfident_batch,
    probe,
    smoothed_distribution,
    sweep,
)
from temperance.diagnose.smoothing import FORMULAS
from temperance.errors import InputError
from temperance.losses import (
    ACLS,
    AU,
    AURC,
    CPC,
    CRL,
    FLSD,
    LOSSES,
    MDCA,
    CrossEntropy,
    DualFocal,
    Focal,
    InverseFocal,
    LabelSmoothing,
    Loss,
    MbLS,
    make_loss,
)

TINY = 2e-6  # the golden numbers are rounded to six decimals


def row(vectors: Any) -> tuple[Tensor, Tensor]:
    return torch.tensor([vectors["gradient_analysis"]["z"]], dtype=torch.float64), torch.tensor([0])


def crl(n: int, *, margin: bool = True) -> CRL:
    """A ranking loss for n samples, some of which were right before."""
    loss = CRL(n_samples=n, strength=0.7, margin=margin)
    logits, labels = random_predictions(n, 4, seed=5, sharpness=0.5)
    for _ in range(3):
        loss.update(logits, labels, torch.arange(n))
        loss.end_epoch()
        logits = logits.roll(1, 0)
    return loss


EXACT: dict[str, Loss] = {
    "label-smoothing": LabelSmoothing(smoothing=0.1),
    "label-smoothing-others": LabelSmoothing(smoothing=0.1, convention="others"),
    "focal": Focal(gamma=3.0),
    "focal-fraction": Focal(gamma=0.5),
    "focal-detached": Focal(gamma=2.0, detach_weight=True),
    "flsd": FLSD(),
    "inverse-focal": InverseFocal(gamma=2.0),
    "mdca": MDCA(strength=2.0),
    "cpc": CPC(),
    "mbls": MbLS(margin=3.0),
    "mbls-detached": MbLS(margin=3.0, detach_max=True),
    "acls": ACLS(margin=3.0),
    "acls-detached": ACLS(margin=3.0, detach=True),
    "acls-sum": ACLS(margin=3.0, aggregation="sum"),
    "acls-conditional": ACLS(margin=3.0, terms="conditional"),
    "acls-conditional-detached": ACLS(margin=3.0, terms="conditional", detach=True),
    "acls-adaptive": ACLS(margin=3.0, terms="adaptive"),
    "acls-adaptive-detached": ACLS(margin=3.0, terms="adaptive", detach=True),
    "crl": crl(40),
    "crl-without-margin": crl(40, margin=False),
}


@pytest.mark.parametrize("name", EXACT)
def test_formulas_are_what_autograd_finds(name: str) -> None:
    """Right and wrong predictions alike, with some samples ignored."""
    loss = EXACT[name]
    logits, labels = random_predictions(40, 4, seed=3)
    labels[[2, 9, 39]] = -100
    indices = torch.arange(40) if loss.needs_indices else None
    formula = gradients(loss, logits, labels, indices, source="formula")
    found = gradients(loss, logits, labels, indices)
    assert torch.allclose(found.amount, formula.amount, rtol=1e-9, atol=1e-10)
    assert torch.equal(found.top, formula.top)
    assert bool((found.C <= formula.C).all())
    assert formula.amount.abs().amax() > 1e-3


def test_every_formula_is_tested() -> None:
    assert {type(loss) for loss in EXACT.values()} == set(FORMULAS)


@pytest.mark.parametrize("kind", [kind for kind in LOSSES if not kind.needs_indices], ids=lambda kind: kind.name)
def test_smoothing_gives_the_gradient_back(kind: type[Loss]) -> None:
    """Eq. 8: the gradient is that of cross-entropy with the smoothed label."""
    logits, labels = random_predictions(12, 4, seed=1)
    labels[4] = -100
    loss = kind(reduction="sum")
    z = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(z, labels), z)
    found = gradients(loss, logits, labels)
    kept = labels >= 0
    targets = found.targets(labels.clamp_min(0))
    assert torch.allclose((logits.softmax(1) - targets)[kept], expected[kept], atol=1e-9)
    assert not found.amount[~kept].any()


def test_a_loss_can_be_named_and_cross_entropy_smooths_nothing() -> None:
    logits, labels = random_predictions(12, 4)
    found = gradients("cross-entropy", logits, labels)
    assert not found.C.any() and not found.amount.any()
    assert torch.equal(found.targets(labels), torch.nn.functional.one_hot(labels, 4).double())


def test_golden_label_smoothing_and_focal(vectors: Any) -> None:
    v, g = vectors["gradient_analysis"], vectors["focal_gradient_factor"]
    for source in ("autograd", "formula"):
        found = gradients(LabelSmoothing(smoothing=0.05), *row(vectors), source=source)
        assert found.amount[0].tolist() == pytest.approx(v["ls_eps0p05"], abs=TINY)
        found = gradients(Focal(gamma=g["gamma"]), *row(vectors), source=source)
        assert found.amount[0].tolist() == pytest.approx(g["equivalent_f"], abs=TINY)


def test_golden_cpc(vectors: Any) -> None:
    v = vectors["gradient_analysis"]
    unit = CPC(discrimination_weight=2.0, exclusion_weight=4.0)  # one for each pair of three classes
    for source in ("autograd", "formula"):
        found = gradients(unit, *row(vectors), source=source)
        assert found.amount[0].tolist() == pytest.approx(v["cpc_f_correct_l1_l2_1"], abs=TINY)


def test_golden_mdca(vectors: Any) -> None:
    """In a batch where class 0 is predicted too often and the others not often enough."""
    v = vectors["gradient_analysis"]
    z, _ = row(vectors)
    logits, labels = z.expand(4, 3), torch.tensor([0, 0, 1, 2])
    unit = MDCA(strength=3.0)
    for source in ("autograd", "formula"):
        found = gradients(unit, logits, labels, source=source)
        assert found.amount[0].tolist() == pytest.approx(v["mdca_exact"], abs=TINY)


def test_golden_margins(vectors: Any) -> None:
    v = vectors["gradient_analysis"]
    # The squares of eq. 13 double the gradient of Table 2.
    acls = ACLS(margin=2.5, pos_weight=0.5, neg_weight=0.5, aggregation="sum", detach=True)
    found = gradients(acls, *row(vectors), source="formula")
    assert found.f[0].tolist() == pytest.approx(v["acls_M2p5_l1_l2_1"], abs=TINY)
    assert found.C[0].tolist() == [bool(c) for c in v["acls_M2p5_C"]]
    # Table 2 has MbLS with the maximum held constant.
    detached = gradients(MbLS(margin=2.5, strength=3.0, detach_max=True), *row(vectors))
    assert detached.C[0].tolist() == [bool(c) for c in v["mbls_M2p5_C_table"]]
    assert detached.amount[0].tolist() == pytest.approx([0, 0, 1])
    assert gradients(MbLS(margin=2.5, strength=3.0), *row(vectors)).amount[0].tolist() == pytest.approx([1, 0, 1])


def test_golden_crl(vectors: Any) -> None:
    """The first sample was never right and is the more confident one; the second was always right."""
    v = vectors["gradient_analysis"]
    logits = torch.tensor([v["z"], [0.5, 0.2, 0.1]], dtype=torch.float64)
    labels, indices = torch.tensor([0, 0]), torch.tensor([0, 1])
    loss = CRL(n_samples=2, strength=1.0)
    loss.update(logits, torch.tensor([1, 0]), indices)
    # Each sample is in two pairs, here twice with the same one.
    for source in ("autograd", "formula"):
        found = gradients(loss, logits, labels, indices, source=source)
        assert found.amount[0].tolist() == pytest.approx([2 * x for x in v["crl"]], abs=2 * TINY)


def test_a_loss_without_a_formula_is_refused() -> None:
    logits, labels = random_predictions(5, 3)
    for loss, message in (
        (AURC(), "no formula is known for the gradient of aurc"),
        (MDCA(base="focal"), "the formula for mdca is for a base of cross-entropy; its base is focal"),
        (ACLS(variant="released"), 'variant="paper"'),
    ):
        with pytest.raises(InputError, match=message):
            gradients(loss, logits, labels, source="formula")
    with pytest.raises(InputError, match="source must be one of"):
        gradients("focal", logits, labels, source="paper")


# -------------------------------------------------------------------------------------------------------------- curves


@pytest.mark.parametrize("name", LOSSES.names)
def test_every_loss_can_be_swept(name: str) -> None:
    loss = probe(name, k=5)
    for place in ("top", "other"):
        found = sweep(loss, place, k=5, points=7)
        assert found.f.shape == found.C.shape == found.logit.shape == found.prob.shape == (7,)
        assert bool(torch.isfinite(found.f).all()) and bool((found.logit.diff() > 0).all())
        assert bool((found.prob.diff() > 0).all())


def test_sweeps_say_what_the_formulas_say() -> None:
    top, other = (sweep(ACLS(margin=6.0, detach=True), place) for place in ("top", "other"))
    assert torch.allclose(top.f, 2 * 0.1 * (top.logit - 6))
    assert torch.equal(top.C, top.logit > 6)
    assert torch.allclose(other.f, 2 * 0.01 / 9 * (12 - other.logit - 6))
    assert torch.equal(other.C, other.logit < 6)
    crl_top = sweep(probe("crl"), "top")
    assert bool(crl_top.C.all())
    p = crl_top.prob
    assert torch.allclose((crl_top.f / (p * (1 - p))).round(), crl_top.f / (p * (1 - p)), atol=1e-6)


def test_the_reference_batch_is_overconfident_in_class_0() -> None:
    logits, labels = overconfident_batch(10)
    surplus = logits.softmax(1).mean(0) - torch.bincount(labels, minlength=10) / REFERENCE_SIZE
    assert float(surplus[0]) > 0.1 and bool((surplus[1:] < 0).all())
    mdca = sweep(make_loss("mdca"), "top")
    assert torch.allclose(mdca.f, 2 / 10 * mdca.prob * (1 - mdca.prob))


def test_dual_focal_beside_a_rival() -> None:
    """(1 − p + 0.45)^γ by eq. 24, and without the rival where it is above the label by eqs 25 and 26."""
    intended, described = (beside_rival(DualFocal(gamma=2.0, behaviour=behaviour)) for behaviour in ("eq24", "eq25-26"))
    p = intended.prob
    assert torch.allclose(intended.weight, (1 - p + 0.45) ** 2)
    assert torch.allclose(described.weight, torch.where(p >= 0.45, (1 - p + 0.45) ** 2, (1 - p) ** 2))
    assert torch.allclose(intended.slope, -2 * (1.45 - p) * -p.log() - (1.45 - p) ** 2 / p)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 3.0])
def test_focal_against_probability(gamma: float) -> None:
    found = against_probability(Focal(gamma=gamma), points=200)
    p, scale = found.prob, gamma + 1  # the mean of (1 − p)^gamma is 1 / (gamma + 1)
    assert torch.allclose(found.weight, scale * (1 - p) ** gamma, rtol=2e-3, atol=1e-3)
    slope = gamma * (1 - p) ** (gamma - 1) * p.log() - (1 - p) ** gamma / p
    assert torch.allclose(found.slope, scale * slope, rtol=2e-3, atol=2e-3)
    assert torch.allclose(found.loss, found.weight * -p.log())


def test_aurc_and_au_against_probability() -> None:
    found = against_probability(AURC(), points=400)
    assert torch.allclose(found.weight, -(1 - found.prob).log(), atol=0.05, rtol=0.05)
    au = against_probability(AU(low_conf_coverage=0.5, cdf_bandwidth=0.005, variant="paper"), points=400)
    assert torch.allclose(au.weight[202:], au.weight[-1], rtol=1e-12)
    assert bool((au.weight.diff() >= -1e-9).all())
    assert float(au.weight.mean()) == pytest.approx(1)


def test_inverse_focal_pushes_down_beyond_the_critical_gamma(vectors: Any) -> None:
    v = vectors["inverse_focal_critical_gamma"]
    below = against_probability(InverseFocal(gamma=v["gamma_star"] - 0.05, allow_reversal=True))
    above = against_probability(InverseFocal(gamma=v["gamma_star"] + 0.05, allow_reversal=True))
    assert float(below.slope.amax()) < 0 < float(above.slope.amax())
    assert float(above.prob[above.slope.argmax()]) == pytest.approx(v["at_p"], abs=0.05)


def test_a_narrow_bandwidth_gives_the_distribution_itself() -> None:
    found = smoothed_distribution((0.001, 0.1, 0.5), n_bins=512)
    errors = [float((smooth - found.exact).abs().amax()) for smooth in found.smooth.values()]
    assert errors[0] < 0.01 and errors == sorted(errors)
    assert np.all(np.diff(found.exact.numpy()) >= 0) and math.isclose(float(found.exact[-1]), 1)


def test_cross_entropy_is_the_measure_of_weights() -> None:
    found = against_probability(CrossEntropy())
    assert torch.allclose(found.weight, torch.ones_like(found.weight))
    assert torch.allclose(found.slope, -1 / found.prob)


@pytest.mark.parametrize("name", ["focal:gamma=0", "focal:gamma=0.5", "focal", "flsd", "inverse-focal"])
def test_formulas_at_probabilities_of_exactly_0_and_1(name: str) -> None:
    logits = torch.tensor([[800.0, 0.0, 0.0], [0.0, 800.0, 0.0]])
    found = gradients(name, logits, torch.tensor([0, 0]), source="formula")
    assert found.f.abs().tolist() == [[0, 0, 0], [0, 0, 0]]
