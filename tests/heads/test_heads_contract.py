"""What every registered head must do, read from the registry: none is exempt by name."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from temperance import heads
from temperance.errors import FileError, InputError, NotFittedError
from temperance.heads import HEADS, Head, load_head, make_head
from temperance.heads.base import HeadClaims
from temperance.heads.features import Features
from temperance.losses import LOSSES, Focal, make_loss
from temperance.settings import defaults_of

EPOCHS = 2

each_head = pytest.mark.parametrize("kind", list(HEADS), ids=HEADS.names)


def digits(**changes: Any) -> Features:
    """Handwritten digits: their pixels as features of 600 + 200 + 200 samples, and a classifier of some sort."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rows = torch.from_numpy(pixels).float() / 16
    means = torch.stack([rows[labels == c].mean(0) for c in range(10)])
    given: dict[str, Any] = {
        "train_features": rows[:600],
        "train_labels": labels[:600],
        "val_features": rows[600:800],
        "val_labels": labels[600:800],
        "test_features": rows[800:1000],
        "test_labels": labels[800:1000],
        "classifier_weight": means,
        "classifier_bias": -means.square().sum(1) / 2,
    }
    given |= changes
    return Features.of(given.pop("train_features"), given.pop("train_labels"), **given)


@pytest.fixture(scope="module")
def features() -> Features:
    return digits()


def make(kind: type[Head], **settings: Any) -> Head:
    return make_head(kind.name, **{"epochs": EPOCHS, **settings})


def accuracy(head: Head, features: Features) -> float:
    assert features.test is not None
    return float((head(features.test.features).argmax(1) == features.test.labels).double().mean())


# ------------------------------------------------------------------------------------------------------------ training


@each_head
def test_it_learns(kind: type[Head], features: Features) -> None:
    # So few samples are few steps: an optimiser made for long epochs takes larger ones here.
    head = make(kind, epochs=12, batch_size=32, lr=max(defaults_of(kind)["lr"], 1e-3)).fit(features)
    assert accuracy(head, features) > 0.6, "one in ten is chance"
    assert head.history[-1]["val_nll"] < head.history[0]["val_nll"]


@each_head
@pytest.mark.parametrize("loss", ["focal:gamma=2", "adafocal", "crl", "mmce", "label-smoothing"])
def test_any_loss(kind: type[Head], loss: str, features: Features) -> None:
    plain = make(kind).fit(features)
    head = make(kind).fit(features, loss=loss)
    z = head(features.train.features)
    assert bool(torch.isfinite(z).all())
    assert not torch.equal(z, plain(features.train.features))


@each_head
def test_every_loss(kind: type[Head], features: Features) -> None:
    for name in LOSSES.names:
        row = make(kind, epochs=1, batch_size=200).fit(features, loss=name).history[0]
        assert math.isfinite(row["loss"]), name


@each_head
def test_losses_with_memory_learn_and_the_callers_does_not_change(kind: type[Head], features: Features) -> None:
    for loss in (make_loss("adafocal"), make_loss("crl", n_samples=600)):
        before = copy.deepcopy(loss.state_dict())
        a = make(kind).fit(features, loss=loss)
        b = make(kind).fit(features, loss=loss.name)
        assert torch.equal(a(features.train.features), b(features.train.features))
        assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


@each_head
def test_same_seed_same_weights(kind: type[Head], features: Features) -> None:
    one, two, other = (make(kind).fit(features, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())
    assert one.history == two.history
    assert any(not torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@each_head
def test_no_global_state_is_touched(kind: type[Head], features: Features) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    make(kind).fit(features)(features.train.features)
    assert torch.equal(torch.get_rng_state(), before)


@each_head
def test_refit_forgets(kind: type[Head], features: Features) -> None:
    fewer = digits(
        train_features=features.train.features[:300, ::2],
        train_labels=features.train.labels[:300],
        val_features=features.train.features[300:400, ::2],
        val_labels=features.train.labels[300:400],
        classifier_weight=torch.ones(10, 32),
        test_features=features.train.features[:, ::2],
        test_labels=features.train.labels,
    )
    head = make(kind).fit(fewer, seed=1).fit(features, seed=5)
    fresh = make(kind).fit(features, seed=5)
    assert torch.equal(head(features.train.features), fresh(features.train.features))
    assert head.history == fresh.history and head.info == fresh.info
    assert head.state_dict().keys() == fresh.state_dict().keys()


@each_head
def test_history_and_progress(kind: type[Head], features: Features) -> None:
    told: list[tuple[int, int, str]] = []
    head = make(kind, epochs=3).fit(features, progress=lambda *now: told.append(now))
    assert told == [(i + 1, 3, f"loss {row['loss']:.4f}") for i, row in enumerate(head.history)]
    assert [row["epoch"] for row in head.history] == [1, 2, 3]
    assert head.seconds > 0
    for row in head.history:
        assert {"loss", "val_nll", "val_accuracy", "val_confidence"} <= set(row)
        assert all(math.isfinite(value) for value in row.values())


@each_head
def test_copies_are_shown(kind: type[Head], features: Features) -> None:
    noise = torch.randn(2, 600, 64, generator=torch.Generator().manual_seed(0))
    moved = digits(train_copies=features.train.features + 0.1 * noise)
    assert not torch.equal(make(kind).fit(moved)(noise[0]), make(kind).fit(features)(noise[0]))
    same = digits(train_copies=features.train.features[None])
    assert math.isfinite(make(kind).fit(same).history[-1]["loss"])


@each_head
def test_a_cosine_schedule_ends_near_zero(kind: type[Head], features: Features) -> None:
    plain, cosine = (make(kind, schedule=schedule).fit(features) for schedule in ("constant", "cosine"))
    assert plain.history[0]["loss"] == cosine.history[0]["loss"]
    assert plain.history[1]["loss"] != cosine.history[1]["loss"]


# --------------------------------------------------------------------------------------------------------------- using


@each_head
def test_same_answer_every_time(kind: type[Head], features: Features) -> None:
    head = make(kind).fit(features)
    x = features.train.features
    logits = head(x)
    assert logits.shape == (600, 10) and logits.dtype == torch.float32 and not logits.requires_grad
    assert torch.equal(head(x), logits)
    assert torch.equal(head.eval()(x), logits)
    assert torch.allclose(head(x[:7]), logits[:7], atol=1e-5)
    assert head.k == 10


@each_head
def test_saved_and_loaded_bit_by_bit(kind: type[Head], features: Features, tmp_path: Path) -> None:
    for preset in (None, *kind.presets):
        chosen = (
            {"epochs": EPOCHS} if preset is None else {"epochs": min(EPOCHS, kind.presets[preset].get("epochs", 9))}
        )
        head = make_head(kind.name, preset=preset, **chosen).fit(features)
        head.save(tmp_path / "head.safetensors")
        found = load_head(tmp_path / "head.safetensors")
        assert type(found) is kind
        assert torch.equal(found(features.train.features), head(features.train.features))
        assert found.get_params() == head.get_params()
        assert (found.info, found.history) == (head.info, head.history)


@each_head
def test_moves_and_copies_like_a_layer(kind: type[Head], features: Features) -> None:
    head = make(kind).fit(features)
    assert torch.equal(copy.deepcopy(head)(features.train.features), head(features.train.features))
    network = torch.nn.Sequential(torch.nn.Flatten(), head)
    assert torch.equal(network(features.train.features.reshape(600, 8, 8)), head(features.train.features))


@each_head
def test_in_a_network_that_is_cast_it_computes_in_float32(kind: type[Head], features: Features) -> None:
    head, x = make(kind).fit(features), features.train.features[:5].bfloat16()
    expected = head(x)
    network = torch.nn.Sequential(head)
    for dtype in (torch.bfloat16, torch.float64):
        assert torch.equal(network.to(dtype)(x), expected)
    assert {tensor.device.type for tensor in network.to("meta").state_dict().values()} == {"meta"}


# ---------------------------------------------------------------------------------------------------------- the claims


def test_every_claim_is_verified_here() -> None:
    verified = set()
    for name, value in globals().items():
        if name.startswith("test_") and name != "test_every_claim_is_verified_here":
            verified |= set(value.__code__.co_names)
    assert set(HeadClaims.__annotations__) <= verified


@each_head
def test_documented_and_public(kind: type[Head]) -> None:
    assert kind.summary and len(kind.summary) < 120
    assert kind.paper
    assert getattr(heads, kind.__name__) is kind
    assert kind.__name__ in heads.__all__
    assert set(kind.claims()) == set(HeadClaims.__annotations__)


@each_head
def test_needs_val(kind: type[Head]) -> None:
    without = digits(val_features=None, val_labels=None)
    if kind.needs_val:
        with pytest.raises(InputError, match=f"{kind.name} with .* needs held-out features: pass val_features"):
            make(kind).fit(without)
    else:
        head = make(kind).fit(without)
        assert "val_nll" not in head.history[0]


@each_head
def test_needs_wide_features(kind: type[Head], features: Features) -> None:
    few = digits(
        train_features=features.train.features[:, 20:25],
        val_features=features.train.features[:200, 20:25],
        test_features=features.train.features[:200, 20:25],
        classifier_weight=torch.ones(10, 5),
    )
    if kind.needs_wide_features:
        with pytest.raises(InputError, match=f"{kind.name} needs at least as many features as classes; got 5 for 10"):
            make(kind).fit(few)
    else:
        assert make(kind).fit(few)(features.train.features[:, 20:25]).shape == (600, 10)


@each_head
def test_gives_log_probs(kind: type[Head], features: Features) -> None:
    total = make(kind).fit(features)(features.train.features).logsumexp(1)
    assert bool((total.abs() < 1e-5).all()) == kind.gives_log_probs


@each_head
def test_settings_are_stored_and_shown(kind: type[Head]) -> None:
    head = make_head(kind.name)
    assert head.get_params() == defaults_of(kind)
    for name, value in defaults_of(kind).items():
        assert f"{name}={value!r}" in repr(head)
    for preset, settings in kind.presets.items():
        assert make_head(kind.name, preset=preset).get_params() == {**defaults_of(kind), **settings}
        assert make_head(kind.name, preset=preset, epochs=7).epochs == 7


# -------------------------------------------------------------------------------------------------------------- errors


@each_head
def test_settings_that_were_changed_are_checked_by_fit(kind: type[Head], features: Features) -> None:
    head = make_head(kind.name)
    head.epochs = -1
    with pytest.raises(InputError, match=f"{kind.name}: epochs must be a whole number of at least 0; got -1"):
        head.fit(features)


@each_head
def test_wrong_names_and_seeds_are_refused(kind: type[Head], features: Features) -> None:
    with pytest.raises(InputError, match="seed must be a whole number of at least 0"):
        make(kind).fit(features, seed=-1)
    with pytest.raises(InputError, match=f"there is no setting of {kind.name} named 'epoch'; did you mean epochs"):
        make_head(kind.name, epoch=3)
    with pytest.raises(InputError, match=f"there is no preset of {kind.name} named 'best of all'"):
        make_head(kind.name, preset="best of all")


@each_head
def test_wrong_use_is_refused(kind: type[Head], features: Features, tmp_path: Path) -> None:
    head = make(kind)
    for use in (lambda: head(features.train.features), lambda: head.save(tmp_path / "a"), lambda: head.k):
        with pytest.raises(NotFittedError, match=f"this {kind.name} head is not fitted yet"):
            use()
    head.fit(features)
    with pytest.raises(NotFittedError, match=rf"this {kind.name} head is not fitted yet.*put load_head\(file\)"):
        make(kind).load_state_dict(head.state_dict())
    with pytest.raises(InputError, match=r"fitted on 64 features per sample; these are \(600, 63\)"):
        head(features.train.features[:, 1:])
    with pytest.raises(InputError, match="there is no loss named 'focl'; did you mean focal"):
        head.fit(features, loss="focl")
    with pytest.raises(InputError, match=f"no setting of {kind.name} named 'epoch'; did you mean epochs"):
        kind(epoch=3)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="loss must be a loss of temperance"):
        head.fit(features, loss=torch.nn.CrossEntropyLoss())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"must return one number to train with; use focal\(reduction='mean'\)"):
        head.fit(features, loss="focal:reduction=none")
    with pytest.raises(InputError, match=r"features must be made by .*Features.of\(arrays\); got Tensor"):
        head.fit(features.train.features)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="found 599"):
        head.fit(features, loss="crl:n_samples=599")


@each_head
def test_divergence_is_a_sentence(kind: type[Head], features: Features) -> None:
    with pytest.raises(InputError, match=f"training of {kind.name} broke down in epoch 1.*lower lr"):
        make_head(kind.name, optimiser="sgd", lr=1e30, epochs=2).fit(features, loss=Focal())
    with pytest.raises(InputError, match=r"set detach=False in acls.*, or lower lr"):
        make_head(kind.name, optimiser="sgd", lr=1e30, epochs=2).fit(features, loss="acls:detach=True")
    head = make(kind).fit(features)
    head.optimiser, head.lr = "sgd", 1e30
    with pytest.raises(InputError, match="broke down"):
        head.fit(features)
    with pytest.raises(NotFittedError):
        head(features.train.features)


def test_a_loss_that_learns_from_held_out_data_needs_some() -> None:
    with pytest.raises(InputError, match="adafocal learns from held-out predictions"):
        make_head("linear").fit(digits(val_features=None, val_labels=None), loss="adafocal")


def test_other_files_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(FileError, match="is not a head saved by temperance"):
        load_head(tmp_path / "other.safetensors")
    with pytest.raises(FileError, match="does not exist"):
        load_head(tmp_path / "none.safetensors")


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="there is no head named 'maccal'; did you mean mac-cal"):
        make_head("maccal")
