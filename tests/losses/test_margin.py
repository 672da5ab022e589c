"""MbLS and ACLS: golden values and gradients, variants and ablations, invariances."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import ACLS, CrossEntropy, MbLS, acls_penalty, mbls_penalty


@pytest.fixture
def wide(vectors: Any) -> tuple[Tensor, Tensor]:
    """Two rows of logits: the first farther apart than the margin of 6, the second not."""
    golden = vectors["mbls_hand"]
    return torch.tensor(golden["logits"], dtype=torch.float64), torch.tensor(golden["labels"])


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


def test_mbls_takes_the_papers_word_for_its_strength() -> None:
    given: Any = 0.2
    assert repr(MbLS(margin=6.0, weight=given)) == repr(MbLS(strength=0.2))
    classes = MbLS(weight=torch.ones(3))
    assert classes.strength == 0.1 and classes.weight is not None and len(classes.weight) == 3
    for wrong in (-1.0, True):
        given = wrong
        with pytest.raises(InputError, match="strength must be a number"):
            MbLS(weight=given)


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
        ({"neg_agg": "sum"}, "reg_paper_neg_sum"),
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
    neg = acls_penalty(wide[0], pos_weight=0.0, neg_weight=1.0, neg_agg="sum")
    expected = [sum(x**2 for x in row) for row in golden["neg"]]
    assert neg.tolist() == pytest.approx(expected, abs=1e-6)


def test_acls_gradients(vectors: Any, wide: tuple[Tensor, Tensor]) -> None:
    golden = vectors["acls_grad_row0_eq12"]
    for halved, key in ((True, "eq12"), (False, "eq13_literal")):
        found = slope(lambda z, halved=halved: acls_penalty(z, neg_agg="sum", halved=halved), wide[0][0])
        assert found == pytest.approx(golden[key], abs=1e-6)
    # "mean" divides the push on the other classes by their number, and leaves the top class alone.
    mean = slope(acls_penalty, wide[0][0])
    assert mean == pytest.approx([golden["eq13_literal"][0], *[g / 2 for g in golden["eq13_literal"][1:]]], abs=1e-6)


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("amount", ["adaptive", "constant"])
@pytest.mark.parametrize("condition", ["margin", "always"])
def test_acls_without_detaching_has_the_gradient_of_its_value(variant: str, amount: str, condition: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(20, 6, generator=generator, dtype=torch.float64) + 3

    def written(z: Tensor) -> Tensor:
        top = z.amax(1, keepdim=True)
        pos = top - 2 if variant == "released" else top - z.amin(1, keepdim=True) - 2
        neg = (top - z - 2).masked_fill(z == top, 0)
        if condition == "margin":
            pos, neg = pos.relu(), neg.relu()
        if amount == "adaptive":
            pos, neg = pos.square(), neg.square()
        return (0.3 * pos.squeeze(1) + 0.2 * neg.sum(1) / 5).sum()

    def penalty(z: Tensor, *, detach: bool) -> Tensor:
        settings = {"margin": 2.0, "pos_weight": 0.3, "neg_weight": 0.2}
        choice = {"variant": variant, "amount": amount, "condition": condition}
        return acls_penalty(z, **settings, **choice, detach=detach).sum()  # type: ignore[arg-type]

    expected, exact, pattern = (
        torch.autograd.grad(function(z := logits.clone().requires_grad_()), z)[0]
        for function in (written, lambda z: penalty(z, detach=False), lambda z: penalty(z, detach=True))
    )
    assert torch.allclose(penalty(logits, detach=False), written(logits))
    assert torch.allclose(exact, expected)
    if variant == "paper":
        assert exact.sum(1).abs().amax() < 1e-12 < pattern.sum(1).abs().amax()


def test_the_pushes_of_acls_move_all_logits_down_for_ever() -> None:
    """Down the gradient, biases of classes that are each the top one in turn: eq. 12's pattern never comes to rest."""
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
        ({"condition": "always"}, "ar_only_sum"),
        ({"amount": "constant"}, "cr_only_sum"),
        ({}, "full_sum"),
    ):
        found = acls_penalty(wide[0][row : row + 1], neg_agg="sum", **choice)  # type: ignore[arg-type]
        assert float(found) == pytest.approx(golden[key], abs=1e-6)


def test_acls_ablation_gradients(wide: tuple[Tensor, Tensor]) -> None:
    """Eq. 8 with f of eq. 10 and no condition; with constant f and the margin condition."""
    logits = wide[0][1]
    always = slope(lambda z: acls_penalty(z, neg_agg="sum", condition="always", halved=True), logits)
    assert always == pytest.approx([-0.01 * (2 - 1 - 6), 0.1 * (2 - 0 - 6), -0.01 * (2 - 0 - 6)])
    constant = slope(lambda z: acls_penalty(z, neg_agg="sum", amount="constant"), wide[0][0])
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
