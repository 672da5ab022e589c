"""MbLS and ACLS: golden values and gradients, variants and ablations, invariances."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import ACLS, CrossEntropy, MbLS
from temperance.losses.rows import Rows


@pytest.fixture
def wide(vectors: Any) -> tuple[Tensor, Tensor]:
    """Two rows of logits: the first farther apart than the margin of 6, the second not."""
    golden = vectors["mbls_hand"]
    return torch.tensor(golden["logits"], dtype=torch.float64), torch.tensor(golden["labels"])


def mbls_penalty(logits: Tensor, **settings: Any) -> Tensor:
    """The penalty of each row, at a strength of 1."""
    labels = torch.zeros(len(logits), dtype=torch.int64)
    with_penalty = MbLS(strength=1.0, reduction="none", **settings)(logits, labels)
    found: Tensor = with_penalty - CrossEntropy(reduction="none")(logits, labels)
    return found


def acls_penalty(logits: Tensor, **settings: Any) -> Tensor:
    """The penalty of each row."""
    return ACLS(**settings)._penalty(Rows(logits, torch.zeros(len(logits), dtype=torch.int64)))


def slope(penalty: Any, row: Tensor) -> list[float]:
    z = row.clone().requires_grad_()
    (found,) = torch.autograd.grad(penalty(z[None]).sum(), z)
    values: list[float] = found.tolist()
    return values


# ---------------------------------------------------------------------------------------------------------------- MbLS


def test_mbls_by_hand(vectors: Any, wide: tuple[Tensor, Tensor]) -> None:
    golden = vectors["mbls_hand"]
    penalty = mbls_penalty(wide[0], margin=golden["margin"])
    assert float(penalty.mean()) == pytest.approx(golden["penalty_mean"], abs=1e-6)
    assert (3 * penalty).tolist() == pytest.approx(golden["penalty_per_sample_sum"], abs=1e-6)
    assert float(CrossEntropy()(*wide)) == pytest.approx(golden["ce"], abs=1e-6)
    total = MbLS(margin=golden["margin"], strength=golden["alpha"])(*wide)
    assert float(total) == pytest.approx(golden["total_official"], abs=1e-6)


@pytest.mark.parametrize("weight", [0.2, 1, True])
def test_a_number_for_the_class_weights_is_refused_and_strength_is_named(weight: Any) -> None:
    with pytest.raises(
        InputError, match=r"weight must be a tensor of class weights.*weight of the penalty is `strength`"
    ):
        MbLS(weight=weight)
    assert MbLS(weight=torch.ones(3)).strength == 0.1


def test_mbls_gradient_at_the_top_class(vectors: Any, wide: tuple[Tensor, Tensor]) -> None:
    golden = vectors["mbls_true_grad_row0_sum_reduction"]["grad"]
    assert slope(lambda z: 3 * mbls_penalty(z), wide[0][0]) == pytest.approx(golden, abs=1e-6)
    held = slope(lambda z: 3 * mbls_penalty(z, detach_max=True), wide[0][0])
    assert held == pytest.approx([0, *golden[1:]], abs=1e-6)
    assert torch.equal(MbLS(detach_max=True)(*wide), MbLS()(*wide))


# ---------------------------------------------------------------------------------------------------------------- ACLS


@pytest.mark.parametrize(
    ("choice", "key"),
    [
        ({}, "reg_paper_neg_mean"),
        ({"aggregation": "sum"}, "reg_paper_neg_sum"),
        ({"variant": "released"}, "reg_official"),
    ],
)
def test_acls_by_hand(vectors: Any, wide: tuple[Tensor, Tensor], choice: dict[str, Any], key: str) -> None:
    golden = vectors["acls_hand"]
    weights = {"margin": golden["margin"], "pos_weight": golden["lam1"], "neg_weight": golden["lam2"]}
    assert float(acls_penalty(wide[0], **weights, **choice).mean()) == pytest.approx(golden[key], abs=1e-6)
    total = ACLS(**weights, **choice)(*wide) - CrossEntropy()(*wide)
    assert float(total) == pytest.approx(golden[key], abs=1e-6)


def test_acls_total(vectors: Any, wide: tuple[Tensor, Tensor]) -> None:
    assert float(ACLS()(*wide)) == pytest.approx(vectors["acls_hand"]["total_paper_neg_mean"], abs=1e-6)


def test_acls_terms_by_hand(vectors: Any, wide: tuple[Tensor, Tensor]) -> None:
    golden = vectors["acls_hand"]
    for variant, key in (("paper", "pos_paper"), ("released", "pos_official")):
        pos = acls_penalty(wide[0], pos_weight=1.0, neg_weight=0.0, variant=variant)
        assert pos.sqrt().tolist() == pytest.approx(golden[key], abs=1e-6)
    neg = acls_penalty(wide[0], pos_weight=0.0, neg_weight=1.0, aggregation="sum")
    expected = [sum(x**2 for x in row) for row in golden["neg"]]
    assert neg.tolist() == pytest.approx(expected, abs=1e-6)


def test_acls_gradients(vectors: Any, wide: tuple[Tensor, Tensor]) -> None:
    """Eq. 13 has twice the gradient of eq. 12, and its pattern only if the paper's terms are held constant."""
    golden = vectors["acls_grad_row0_eq12"]
    held = slope(lambda z: acls_penalty(z, aggregation="sum", detach=True), wide[0][0])
    assert held == pytest.approx(golden["eq13_literal"], abs=1e-6)
    half: dict[str, Any] = {"pos_weight": 0.05, "neg_weight": 0.005}
    halved = slope(lambda z: acls_penalty(z, aggregation="sum", detach=True, **half), wide[0][0])
    assert halved == pytest.approx(golden["eq12"], abs=1e-6)
    # Nothing held constant: the top class is pushed down by every term, and the least logit up by the first.
    top, second, least = golden["eq13_literal"]
    free = slope(lambda z: acls_penalty(z, aggregation="sum"), wide[0][0])
    assert free == pytest.approx([top - second - least, second, least - top], abs=1e-6)


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("terms", ["both", "adaptive", "conditional"])
def test_acls_is_its_formula(variant: str, terms: str) -> None:
    """Sample by sample, with what the released program holds constant."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(20, 6, generator=generator, dtype=torch.float64) + 3

    def written(row: Tensor) -> Tensor:
        top, t = row.max(), int(row.argmax())
        pos = top - 2 if variant == "released" else top - row.min() - 2
        constant = top.detach() if variant == "released" else top
        neg = torch.stack([constant - row[j] - 2 for j in range(6) if j != t])
        if terms != "adaptive":
            pos, neg = pos.relu(), neg.relu()
        power = 1 if terms == "conditional" else 2
        return 0.3 * pos**power + 0.2 * (neg**power).mean()

    def penalty(z: Tensor) -> Tensor:
        return acls_penalty(z, margin=2.0, pos_weight=0.3, neg_weight=0.2, terms=terms, variant=variant)

    z = logits.requires_grad_()
    expected = torch.stack([written(row) for row in z])
    assert torch.allclose(penalty(z), expected)
    (found,), (right,) = (torch.autograd.grad(value.sum(), z) for value in (penalty(z), expected))
    assert torch.allclose(found, right)


def test_detach_belongs_to_the_paper() -> None:
    with pytest.raises(InputError, match='detach needs variant="paper"'):
        ACLS(variant="released", detach=True)


@pytest.mark.parametrize("terms", ["both", "adaptive", "conditional"])
def test_gradients_of_acls_sum_to_zero_over_the_classes_unless_detached(terms: str) -> None:
    logits, _ = random_predictions(20, 6, sharpness=4.0)
    sums = {}
    for detach in (False, True):
        z = logits.clone().requires_grad_()
        (found,) = torch.autograd.grad(acls_penalty(z, margin=2.0, terms=terms, detach=detach).sum(), z)
        sums[detach] = float(found.sum(1).abs().amax())
    assert sums[False] < 1e-12 < sums[True]


def test_detached_acls_makes_all_logits_drift() -> None:
    """Gradient descent on biases of classes that are each the top one in turn: eq. 12's pattern never comes to rest."""
    evidence = 20 * torch.eye(4, dtype=torch.float64)
    means = {}
    for detach in (True, False):
        biases = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        for _ in range(200):
            (step,) = torch.autograd.grad(acls_penalty(evidence + biases, margin=10.0, detach=detach).mean(), biases)
            biases = (biases - step).detach().requires_grad_()
        means[detach] = float(biases.detach().mean())
    assert means[True] < -50 and means[False] == pytest.approx(0)


@pytest.mark.parametrize("row", [0, 1])
def test_acls_ablations(vectors: Any, wide: tuple[Tensor, Tensor], row: int) -> None:
    golden = vectors[f"acls_ablation_row{row}"]
    for choice, key in (
        ({"terms": "adaptive"}, "ar_only_sum"),
        ({"terms": "conditional"}, "cr_only_sum"),
        ({}, "full_sum"),
    ):
        found = acls_penalty(wide[0][row : row + 1], aggregation="sum", **choice)
        assert float(found) == pytest.approx(golden[key], abs=1e-6)


def test_acls_ablation_gradients(wide: tuple[Tensor, Tensor]) -> None:
    """Eq. 8 with f of eq. 10 and no condition; with constant f and the margin condition."""
    logits = wide[0][1]
    half: dict[str, Any] = {"pos_weight": 0.05, "neg_weight": 0.005}
    always = slope(lambda z: acls_penalty(z, aggregation="sum", terms="adaptive", detach=True, **half), logits)
    assert always == pytest.approx([-0.01 * (2 - 1 - 6), 0.1 * (2 - 0 - 6), -0.01 * (2 - 0 - 6)])
    constant = slope(lambda z: acls_penalty(z, aggregation="sum", terms="conditional", detach=True), wide[0][0])
    assert constant == pytest.approx([0.1, -0.01, -0.01])


def test_released_variant_counts_every_class_that_shares_the_top() -> None:
    tied = torch.tensor([[8.0, 8.0, 0.0]])
    once = acls_penalty(tied, neg_weight=0.0)
    twice = acls_penalty(tied, neg_weight=0.0, variant="released")
    assert float(once) == pytest.approx(0.1 * 2**2) and float(twice) == pytest.approx(2 * 0.1 * 2**2)


def test_released_variant_depends_on_a_shift() -> None:
    logits, labels = random_predictions(50, 5, sharpness=4.0)
    for loss, invariant in ((ACLS(), True), (ACLS(variant="released"), False), (MbLS(), True)):
        same = torch.allclose(loss(logits + 7, labels), loss(logits, labels))
        assert same == invariant


@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0, 20))
@settings(max_examples=50, deadline=None)
def test_nothing_within_the_margin_is_penalised(seed: int, k: int, margin: float) -> None:
    logits, _ = random_predictions(10, k, seed, sharpness=4.0)
    within = logits.amax(1) - logits.amin(1) <= margin
    for penalty in (mbls_penalty(logits, margin=margin), acls_penalty(logits, margin=margin)):
        assert torch.equal(penalty == 0, within)
