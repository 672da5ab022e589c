"""MaC-Cal: vectors, the masks, the keep rate, every way to measure and deploy, the ablation, masked inference."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from temperance.errors import InputError
from temperance.heads import LinearHead, MaCCal, make_head, masked_inference
from temperance.heads.features import Features
from temperance.heads.masked import Layout, lower, moved_rate, step_bound
from temperance.numerics import zero_of


def classes(d: int, n: int, noise: float) -> Features:
    """Four noisy classes, n samples in all, whose network's classifier compares with the true means."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(4, d, generator=generator)
    labels = torch.arange(n) % 4
    rows = means[labels] + noise * torch.randn(n, d, generator=generator)
    first, second = 2 * n // 3, 5 * n // 6
    return Features.of(
        rows[:first],
        labels[:first],
        val_features=rows[first:second],
        val_labels=labels[first:second],
        test_features=rows[second:],
        test_labels=labels[second:],
        classifier_weight=2 * means,
        classifier_bias=-means.square().sum(1),
    )


@pytest.fixture(scope="module")
def features() -> Features:
    return classes(10, 600, noise=0.8)


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


@pytest.mark.parametrize("restrict", ["grad", None])
def test_masked_step(vectors: Any, restrict: Any) -> None:
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
    for restrict in ("grad", "update", None):
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
    free = trained(features, width=5, restrict=None, **settings)[:n]
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


def test_measured_in_the_steps_of_training(features: Features) -> None:
    """With a learning rate of 0 the passes of an epoch with one mask are those of the head with that mask."""
    still: Any = {"measure": "training", "acc_discount": 0.95, "lr": 0.0, "weight_decay": 0.0, "batch_size": 7}
    still["epochs"] = 1
    head = fit(features, mask_every="epoch", deploy="last_mask", **still)
    probs = head(features.train.features).softmax(1).double()
    right = probs.argmax(1) == features.train.labels
    assert head.history[0]["confidence"] == pytest.approx(float(probs.amax(1).mean()), abs=1e-5)
    assert head.history[0]["accuracy"] == pytest.approx(float(right.double().mean()))
    # With a mask a batch, the confidence under single masks is above the confidence of the mean over masks.
    still |= {"start": "classifier", "deploy": "mc_masks", "n_masks": 200}
    head = fit(features, **still)
    mean = float(head(features.train.features).softmax(1).amax(1).mean())
    assert head.history[0]["confidence"] > mean + 0.05


def test_rate_follows_what_was_measured_in_training(features: Features) -> None:
    head = fit(features, measure="training", epochs=6, acc_discount=0.9)
    for row, after in pairwise(head.history):
        bound = step_bound(row["epoch"], 6)
        step = min(max(row["confidence"] - 0.9 * row["accuracy"], -bound), bound)
        assert after["keep_rate"] == pytest.approx(min(max(row["keep_rate"] - step, 0.05), 1))
    assert rates(head) != rates(fit(features, epochs=6, acc_discount=0.9))


def test_measured_in_training_and_on_held_out_data_exclude_each_other() -> None:
    with pytest.raises(InputError, match="acc_discount='auto' measures on held-out features"):
        make_head("mac-cal", measure="training", acc_discount="auto")


@pytest.mark.parametrize("measure", ["scaled", "full", "last_mask", "mc_masks"])
def test_measured_as_the_setting_says(features: Features, measure: str) -> None:
    head = fit(features, measure=measure, deploy=measure, acc_discount=0.95, epochs=1)
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
    assert head.info["settled"] and not head.caveat
    assert not {"accuracy", "confidence"} & set(row), "these are of the training part"
    probs = head(features.train.features).softmax(1)
    accuracy = float((probs.argmax(1) == features.train.labels).double().mean())
    assert head.info["acc_discount"] == pytest.approx(float(probs.amax(1).mean()) / accuracy, abs=1e-5)


def test_history_names_the_part_that_was_measured(features: Features) -> None:
    """Where held-out data is measured otherwise than deployed, both are in the history."""
    row = fit(features, acc_discount="auto", measure="full", epochs=1).history[0]
    assert {"val_accuracy_full", "val_confidence_full", "val_accuracy", "val_confidence"} <= set(row)
    assert row["val_confidence_full"] > row["val_confidence"]


def test_an_unsettled_rate_is_reported(features: Features) -> None:
    head = fit(features, epochs=2, first_step=0.001, acc_discount=0.5)
    assert head.info["settled"] is False and "had not settled after 2 epochs" in head.caveat
    # At its limit it cannot move any further.
    head = fit(features, epochs=12, acc_discount=0.01, last_step=0.1, keep_min=0.2)
    assert head.info["settled"] and not head.caveat


def test_missing_held_out_data_is_refused(features: Features) -> None:
    without = Features.of(features.train.features, features.train.labels)
    with pytest.raises(InputError, match="acc_discount='auto' needs held-out features"):
        fit(without, acc_discount="auto")
    with pytest.raises(InputError, match="search=True needs held-out features"):
        fit(without, search=True, deploy="mc_masks")


# ---------------------------------------------------------------------------------------------------------- the search


@given(st.floats(-0.2, 1.2), st.floats(0.01, 9))
def test_zero_of(where: float, slope: float) -> None:
    calls = []

    def rising(x: float) -> float:
        calls.append(x)
        return slope * (x - where)

    assert zero_of(rising, 0.0, 1.0) == pytest.approx(min(max(where, 0), 1), abs=1e-3)
    assert len(calls) <= 12


def test_lower_beyond_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    values, noise = (torch.randn(200, generator=generator, dtype=torch.float64) for _ in range(2))
    assert lower(values - 0.1, values + 0.01 * noise)
    assert not lower(values, values) and not lower(values + 0.1, values) and not lower(values[:1] - 1, values[:1])
    by_chance = [lower(torch.randn(30, generator=generator), torch.zeros(30)) for _ in range(400)]
    assert 0.02 < sum(by_chance) / 400 < 0.08


def sure(features: Features, factor: float) -> Features:
    """The same features, whose classifier is more or less sure."""
    assert features.classifier is not None
    weight, bias = features.classifier
    return replace(features, classifier=(factor * weight, factor * bias))


def val_nll(features: Features, logits_of: Any) -> float:
    assert features.val is not None
    return float(F.cross_entropy(logits_of(features.val.features), features.val.labels))


def test_search_finds_the_rate_of_an_overconfident_classifier() -> None:
    over = sure(classes(30, 800, noise=2.0), 2.0)
    assert over.classifier is not None and over.val is not None
    head = make_head("mac-cal", preset="kept-accuracy").fit(over)
    rate = head.info["keep_rate"]
    assert 0.05 < rate < 0.95 and not head.caveat
    probs = head(over.val.features).exp()
    right = (probs.argmax(1) == over.val.labels).double().mean()
    # As exactly as one sample more or less allows.
    assert float(probs.amax(1).mean()) == pytest.approx(float(right), abs=1 / len(over.val))
    assert val_nll(over, head) < val_nll(over, lambda x: F.linear(x, *over.classifier)) - 0.1
    # It has converged: rates on both sides were tried, near by.
    tried = [x for x, _ in head.info["tried"]]
    assert min(rate - x for x in tried if x < rate) < 1e-3 and min(x - rate for x in tried if x > rate) < 1e-3
    # Without training the rate that it starts from does not matter.
    other = make_head("mac-cal", preset="kept-accuracy", keep_prob=0.9).fit(over)
    assert other.info["keep_rate"] == pytest.approx(rate, abs=2e-3)


def test_search_leaves_a_classifier_alone_that_masks_do_not_help(features: Features) -> None:
    under = sure(features, 0.3)
    assert under.classifier is not None
    head = make_head("mac-cal", preset="kept-accuracy").fit(under)
    assert isinstance(head, MaCCal) and head.info["keep_rate"] == 1 and len(head.masks) == 0
    assert torch.allclose(head(under.train.features), F.linear(under.train.features, *under.classifier), atol=1e-5)
    assert head.caveat == (
        "Masks do not lower the NLL on the validation samples significantly, so the head keeps every weight."
    )


def test_search_leaves_a_classifier_alone_whose_nll_does_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    over = sure(classes(30, 800, noise=2.0), 2.0)
    monkeypatch.setattr("temperance.heads.maccal.lower", lambda values, others: False)
    head = make_head("mac-cal", preset="kept-accuracy").fit(over)
    assert head.info["keep_rate"] == 1 and head.caveat and len(head.info["tried"]) > 5


def test_search_after_training(features: Features) -> None:
    head = fit(features, search=True, deploy="mc_masks", n_masks=50, epochs=5)
    assert len(head.history) == 5 and head.info["keep_rate"] != head.history[-1]["keep_rate"]
    with pytest.raises(InputError, match="search=True finds the keep rate of averaged masks"):
        make_head("mac-cal", search=True)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kept_accuracy_is_not_worse_on_held_out_digits(seed: int) -> None:
    """A small network on easy data is calibrated as it is, and the search must find that out."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rows = torch.from_numpy(pixels).float() / 16
    parts = {"train": slice(900), "val": slice(900, 1200), "test": slice(1200, 1797)}
    given: dict[str, Any] = {f"{name}_features": rows[part] for name, part in parts.items()}
    given |= {f"{name}_labels": labels[part] for name, part in parts.items()}
    plain = LinearHead(epochs=20).fit(Features.of(**given), seed=seed)
    digits = Features.of(**given, classifier_weight=plain.layer.weight, classifier_bias=plain.layer.bias)
    head = make_head("mac-cal", preset="kept-accuracy").fit(digits, seed=seed)
    assert val_nll(digits, head) <= val_nll(digits, plain) + 1e-6


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
            "paper",
        )
    ]
    changes = [{name for name in a if a[name] != b[name]} for a, b in pairwise(rows)]
    assert changes == [{"restrict"}, {"width"}, {"adapt", "acc_discount", "last_step"}, {"last_step"}]


def test_the_method_of_the_paper_is_a_preset(features: Features) -> None:
    """It has two layers, and a γ that needs no held-out features, which the default does."""
    without = Features.of(features.train.features, features.train.labels)
    paper = make_head("mac-cal", preset="paper", epochs=1).fit(without)
    assert (paper.get_params()["width"], paper.get_params()["acc_discount"]) == ("auto", 0.95)
    fit(without, adapt=False)
    with pytest.raises(InputError, match="mac-cal with acc_discount='auto' needs held-out features"):
        fit(without)


def test_start_from_the_classifier(features: Features) -> None:
    """Before any step the scaled head is the network's classifier, whatever the keep rate."""
    head = fit(features, width=None, start="classifier", epochs=0, keep_prob=0.3)
    vanilla = make_head("mac-cal", preset="vanilla").fit(features)
    plain = LinearHead(start="classifier", epochs=0).fit(features)
    for each in (head, plain):
        assert torch.allclose(each(features.train.features), vanilla(features.train.features), atol=1e-4)
    with pytest.raises(InputError, match="start='classifier' needs a single layer"):
        fit(features, start="classifier", width=5)
    with pytest.raises(InputError, match="pass classifier_weight"):
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
