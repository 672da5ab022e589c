"""MaC-Cal: vectors, the masks, the keep rate, every way to measure and deploy, the ablation, masked inference."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from temperance.errors import InputError
from temperance.heads import MaCCal, make_head, masked_inference
from temperance.heads.features import Features
from temperance.heads.masked import Layout, moved_rate, step_bound


@pytest.fixture(scope="module")
def features() -> Features:
    """Four noisy classes in ten dimensions, whose network's classifier compares with the true means."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(4, 10, generator=generator)
    labels = torch.arange(600) % 4
    rows = means[labels] + 0.8 * torch.randn(600, 10, generator=generator)
    return Features.of(
        rows[:400],
        labels[:400],
        val_features=rows[400:500],
        val_labels=labels[400:500],
        test_features=rows[500:],
        test_labels=labels[500:],
        classifier_weight=2 * means,
        classifier_bias=-means.square().sum(1),
    )


def fit(features: Features, seed: int = 0, **settings: Any) -> MaCCal:
    return MaCCal(**{"epochs": 3, **settings}).fit(features, seed=seed)


def trained(features: Features, **settings: Any) -> Tensor:
    """The weights as they were trained."""
    return fit(features, deploy="full", **settings).weights


def rates(head: MaCCal) -> list[float]:
    return [row["keep_rate"] for row in head.history]


# ------------------------------------------------------------------------------------------------------------- vectors


def test_bound_of_the_steps(vectors: Any) -> None:
    found = vectors["maccal_eta"]
    for epoch in (0, 1, 10, 20, 40):
        assert step_bound(epoch, 40) == pytest.approx(found[f"eta{epoch}"], abs=5e-7)
    assert sum(step_bound(t, 40) for t in range(1, 41)) == pytest.approx(found["sum_1_to_40"], abs=5e-7)
    assert step_bound(7, 40, 0.1, 0.1) == pytest.approx(0.1)


def test_step_of_the_rate(vectors: Any) -> None:
    found, bound = vectors["maccal_q_update"], step_bound(1, 40)
    assert moved_rate(0.5, 0.99, 0.98, 0.95, bound) == pytest.approx(found["over"], abs=1e-6)
    assert moved_rate(0.5, 0.80, 0.98, 0.95, bound) == pytest.approx(found["under"], abs=1e-6)
    assert moved_rate(0.5, 0.935, 0.98, 0.95, bound) == pytest.approx(found["small"], abs=1e-6)
    assert moved_rate(0.97, 0.99, 0.98, 0.9, bound) == found["clamp"]


def test_rate_under_a_constant_gap(vectors: Any) -> None:
    q, path = 0.5, {}
    for epoch in range(1, 41):
        q = path[epoch] = moved_rate(q, 0.95, 1.0, 0.9, step_bound(epoch, 40))
    for epoch in (5, 10, 20, 40):
        assert path[epoch] == pytest.approx(vectors["maccal_constant_gap_0p05"][f"q_epoch_{epoch}"], abs=1e-6)


@pytest.mark.parametrize("restrict", ["grad", "none"])
def test_masked_step(vectors: Any, restrict: str) -> None:
    """One step by hand: forward with the mask, gradient with or without it."""
    found = vectors["maccal_masked_step"]
    head = MaCCal(width=None, restrict=restrict)
    head._build(3, 2)
    # The vector of a layer holds its weight as torch does, (outputs, inputs).
    turned, mask = torch.tensor(found["W"]).T, torch.tensor(found["mask"]).T.float()
    head._trained = torch.nn.Parameter(torch.cat([turned.flatten(), torch.zeros(2)]))
    head._mask = torch.cat([mask.flatten(), torch.ones(2)])
    head.mask_every = "epoch"
    logits = head._logits(torch.tensor([found["z"]]), torch.Generator())
    assert torch.allclose(logits, torch.tensor([found["logits"]]), atol=1e-6)
    F.cross_entropy(logits, torch.tensor([found["y"]])).backward()  # type: ignore[no-untyped-call]
    name = "grad_masked" if restrict == "grad" else "grad_unmasked_straight_through"
    assert head._trained.grad is not None
    gradient = head._trained.grad[:6].reshape(2, 3)
    assert torch.allclose(gradient, torch.tensor(found[name]).T, atol=2e-6)
    if restrict == "grad":
        assert torch.allclose(turned - 0.1 * gradient, torch.tensor(found["W_after_lr0p1"]).T, atol=2e-6)


# ---------------------------------------------------------------------------------------------------------- properties

share = st.floats(0, 1)


@given(share, share, share, st.floats(0.01, 1), st.floats(1e-4, 0.5))
def test_rate_moves_by_no_more_than_the_bound(q: float, conf: float, acc: float, discount: float, bound: float) -> None:
    found = moved_rate(q, conf, acc, discount, bound)
    assert 0 <= found <= 1 and abs(found - q) <= bound + 1e-12
    assert (found - q) * (conf - discount * acc) >= 0


def test_all_weights_kept_is_plain_retraining(features: Features) -> None:
    plain = make_head("linear", epochs=3).fit(features)
    for restrict in ("grad", "update", "none"):
        head = fit(features, width=None, adapt=False, keep_prob=1.0, restrict=restrict)
        assert torch.allclose(head(features.train.features), plain(features.train.features), atol=1e-5)


def test_masked_weights_do_not_move(features: Features) -> None:
    """With one mask for one epoch: "update" leaves dropped weights where they were, "grad" only decays them."""
    settings = {"epochs": 1, "mask_every": "epoch", "adapt": False, "weight_decay": 0.1}
    start, n = trained(features, width=5, epochs=0), 5 * (10 + 4)
    dropped = (trained(features, width=5, restrict="update", **settings) == start)[:n]
    assert 0.2 < float(dropped.double().mean()) < 0.8
    decayed = trained(features, width=5, restrict="grad", **settings)[:n][dropped]
    assert bool((decayed.abs() < start[:n][dropped].abs()).all())
    assert torch.allclose(decayed / start[:n][dropped], (decayed / start[:n][dropped])[:1], rtol=1e-3)
    free = trained(features, width=5, restrict="none", **settings)[:n]
    assert not bool((free == start[:n]).any())


def test_only_the_chosen_layers_are_masked(features: Features) -> None:
    layout = Layout((10, 6, 4), "relu")
    both, first, last = (layout.weights(which) for which in ("both", "first", "last"))
    assert (both.start, both.stop) == (0, 84)
    assert (first.start, first.stop, last.start, last.stop) == (0, 60, 60, 84)
    assert layout.size == 84 + 10
    for which, masked in (("both", both), ("first", first), ("last", last)):
        head = fit(features, width=6, mask_layers=which, deploy="last_mask", adapt=False, keep_prob=0.3)
        zero = head.weights == 0
        assert 0.5 < float(zero[masked].double().mean()) < 0.9
        zero[masked] = False
        assert not bool(zero.any())


def test_layout_is_the_two_layers(features: Features) -> None:
    layout = Layout((10, 6, 4), "relu")
    vector = layout.start(torch.Generator().manual_seed(1))
    (w1, b1), (w2, b2) = layout.layers(vector)
    x = features.train.features
    assert torch.allclose(layout.logits(vector, x), torch.relu(x @ w1.T + b1) @ w2.T + b2, atol=1e-6)
    plain = Layout((10, 6, 4), None)
    assert torch.allclose(plain.logits(vector, x), (x @ w1.T + b1) @ w2.T + b2, atol=1e-6)
    assert float(w1.abs().max()) <= 10**-0.5 and float(w2.abs().max()) <= 6**-0.5


def test_weights_zeroed_in_place_stay_zero(features: Features) -> None:
    """With a mask an epoch a weight dropped last is zero; without a gradient it cannot come back within the epoch."""
    head = fit(features, in_place=True, mask_every="epoch", deploy="full", adapt=False, restrict="update")
    masked = head._layout.weights("both")
    assert 0.3 < float((head.weights[masked] == 0).double().mean()) < 0.7
    assert not bool((fit(features, mask_every="epoch", deploy="full", adapt=False).weights == 0).any())


# ------------------------------------------------------------------------------------------------- measure and deploy


def test_deployed_as_trained(features: Features) -> None:
    """One training, deployed in each way: the same weights, scaled, whole, masked or averaged over masks."""
    x = features.train.features
    ways = {way: fit(features, deploy=way, adapt=False) for way in ("scaled", "full", "last_mask", "mc_masks")}
    full, masked = ways["full"].weights, ways["full"]._layout.weights("both")
    scaled = full.clone()
    scaled[masked] *= 0.5
    assert torch.equal(ways["scaled"].weights, scaled)
    kept = ways["last_mask"].weights != 0
    assert torch.equal(ways["last_mask"].weights, full * kept)
    mean = ways["mc_masks"]
    assert torch.equal(mean.weights, full) and mean.masks.shape == (10, masked.stop)
    assert float(mean.masks.double().mean()) == pytest.approx(0.5, abs=0.1)
    slow = torch.zeros(400, 4)
    for mask in mean.masks:
        vector = full.clone()
        vector[masked] *= mask
        slow += mean._layout.logits(vector, x).softmax(1) / 10
    assert torch.allclose(mean(x).exp(), slow, atol=1e-5)


@pytest.mark.parametrize("measure", ["scaled", "full", "last_mask", "mc_masks"])
def test_measured_as_said(features: Features, measure: str) -> None:
    head = fit(features, measure=measure, deploy=measure, epochs=1)
    row = head.history[0]
    probs = head(features.train.features).softmax(1)
    assert row["keep_rate"] == 0.5
    assert row["accuracy"] == pytest.approx(float((probs.argmax(1) == features.train.labels).double().mean()))
    assert row["confidence"] == pytest.approx(float(probs.amax(1).mean()), abs=1e-5)


def test_rate_follows_eq_12(features: Features) -> None:
    for q_means, sign in (("sparsity", -1), ("retention", 1)):
        head = fit(features, epochs=6, q_means=q_means, acc_discount=0.9)
        for row, after in pairwise(head.history):
            bound = step_bound(row["epoch"], 6)
            step = min(max(row["confidence"] - 0.9 * row["accuracy"], -bound), bound)
            assert after["keep_rate"] == pytest.approx(min(max(row["keep_rate"] + sign * step, 0.05), 1))
        assert head.info["keep_rate"] == head.history[-1]["keep_rate"]
    assert set(rates(fit(features, adapt=False, keep_prob=0.3))) == {0.3}


def test_rate_stays_above_its_minimum(features: Features) -> None:
    settings: Any = {"epochs": 12, "acc_discount": 0.01, "last_step": 0.1}
    assert rates(fit(features, keep_min=0.2, **settings))[-1] == 0.2
    assert rates(fit(features, keep_min=0.0, **settings))[-1] == 0.0
    assert rates(fit(features, q_means="retention", **settings))[-1] == 1.0


def test_auto_discount_closes_the_gap_on_held_out_data(features: Features) -> None:
    head = fit(features, epochs=40, acc_discount="auto")
    for row, after in pairwise(head.history):
        bound = step_bound(row["epoch"], 40)
        step = min(max(row["val_confidence"] - row["val_accuracy"], -bound), bound)
        assert after["keep_rate"] == pytest.approx(min(max(row["keep_rate"] - step, 0.05), 1))
    assert abs(row["val_confidence"] - row["val_accuracy"]) < 0.03
    probs = head(features.train.features).softmax(1)
    accuracy = float((probs.argmax(1) == features.train.labels).double().mean())
    assert head.info["acc_discount"] == pytest.approx(float(probs.amax(1).mean()) / accuracy, abs=1e-5)


def test_auto_discount_needs_held_out_data(features: Features) -> None:
    without = Features.of(features.train.features, features.train.labels)
    with pytest.raises(InputError, match="acc_discount='auto' needs held-out features"):
        fit(without, acc_discount="auto")


# ------------------------------------------------------------------------------------------------------------- presets


def test_vanilla_is_the_network_as_it_was(features: Features) -> None:
    assert features.classifier is not None
    weight, bias = features.classifier
    head = make_head("mac-cal", preset="vanilla").fit(features)
    assert torch.allclose(head(features.train.features), F.linear(features.train.features, weight, bias), atol=1e-5)


def test_each_row_of_the_ablation_adds_to_the_one_before() -> None:
    rows = [
        make_head("mac-cal", preset=name).get_params()
        for name in (
            "masked-retraining",
            "gradient-restriction",
            "classifier-restructure",
            "static-sparsity",
            "decaying-sparsity",
        )
    ]
    changes = [{name for name in a if a[name] != b[name]} for a, b in pairwise(rows)]
    assert changes == [{"restrict"}, {"width"}, {"adapt", "last_step"}, {"last_step"}]
    assert rows[-1] == MaCCal().get_params()


def test_start_from_the_classifier(features: Features) -> None:
    """Before any step the scaled head is the network's classifier, whatever the keep rate."""
    head = fit(features, width=None, start="classifier", epochs=0, keep_prob=0.3)
    vanilla = make_head("mac-cal", preset="vanilla").fit(features)
    assert torch.allclose(head(features.train.features), vanilla(features.train.features), atol=1e-4)
    with pytest.raises(InputError, match="start='classifier' needs a single layer"):
        fit(features, start="classifier")
    with pytest.raises(InputError, match="give classifier_weight"):
        fit(Features.of(features.train.features, features.train.labels), width=None, start="classifier")


# ---------------------------------------------------------------------------------------------------- masked inference


def test_masked_inference(features: Features) -> None:
    assert features.classifier is not None and features.test is not None
    found = masked_inference(features, n_bins=10, batch_size=7)
    assert [row.ratio for row in found] == pytest.approx([r / 10 for r in range(10)])
    probs = F.linear(features.test.features, *features.classifier).softmax(1)
    assert found[0].confidence == pytest.approx(float(probs.amax(1).mean()), abs=1e-6)
    assert found[0].accuracy == float((probs.argmax(1) == features.test.labels).double().mean())
    assert found[0].histogram == tuple(torch.histc(probs.amax(1), 10, 0, 1).long().tolist())
    assert all(sum(row.histogram) == 100 for row in found)
    assert found[9].accuracy < found[0].accuracy and found[9].confidence < found[0].confidence
    assert found == masked_inference(features, n_bins=10, batch_size=7)
    assert found != masked_inference(features, n_bins=10, batch_size=7, seed=1)


def test_masked_inference_says_what_it_needs(features: Features) -> None:
    bare = Features.of(features.train.features, features.train.labels)
    with pytest.raises(InputError, match="no features of a part 'test'"):
        masked_inference(bare)
    with pytest.raises(InputError, match="needs the network's classifier"):
        masked_inference(bare, part="train")
    with pytest.raises(InputError, match="ratio must be"):
        masked_inference(features, ratios=[1.0])
