"""BalCAL trained jointly: two classifiers on one network, their mixture, and the share found after each epoch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from commands import run
from small_images import digits
from temperance.errors import InputError
from temperance.training import Balanced, Job, Recipe, make_network, open_run, predict, train
from temperance.training.recipe import RECIPES
from temperance.training.simplex import class_scale, mean_confidence

QUICK = Recipe(epochs=6, batch_size=40, lr=0.1, crop=0, flip=False, balance=0.8)


def network(name: str = "small-resnet", **settings: Any) -> Balanced:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        plain = make_network(name, classes=10, image_size=8, channels=1)
        return Balanced(plain, **settings)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["small-cnn", "small-resnet", "preresnet56"])
def test_both_classifiers_and_their_mixture(name: str, images: torch.Tensor) -> None:
    found = network(name, share=0.3)
    both = found(images)
    assert both.shape == (2, 12, 10)
    assert float(both[1].detach().abs().max()) <= 1 + 1e-5, "cosines"
    found.eval()
    with torch.no_grad():
        mixture, linear = found(images), found.network(images)
        maps = found.network.maps(images)
        g = found.network.pooled(found.after(found.adaptor(maps)))
    even = g / g.norm(dim=1, keepdim=True) @ found.simplex
    assert torch.allclose(mixture, 0.3 * linear + 0.7 * even, atol=1e-5)


def test_its_value(images: torch.Tensor) -> None:
    found, labels = network(share=0.7), torch.tensor([0, 0, 0, 1, 3, 3, 4, 5, 6, 7, 8, 9])
    both = found(images)
    value, seen = found.value(both, labels, lambda logits: F.cross_entropy(logits, labels))
    even = both[1] * class_scale(labels, 10)
    expected = 0.7 * F.cross_entropy(both[0], labels) + 0.3 * F.cross_entropy(even, labels)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    assert torch.equal(seen, torch.stack([both[0], even]))
    value.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in found.parameters())


def test_the_share_balances_confidence_and_accuracy() -> None:
    found = network(acc_discount=0.8)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 10
    linear = 6 * F.one_hot(labels, 10).float() + torch.randn(200, 10, generator=generator)
    even = linear / linear.norm(dim=1, keepdim=True)
    for half in (slice(100), slice(100, 200)):
        found.remember(torch.stack([linear[half], even[half]]), labels[half])
    row = found.end_epoch()
    assert row["share"] == pytest.approx(0.8) and row["confidence"] == mean_confidence(torch.lerp(even, linear, 0.8))
    share = float(found.mix)
    accuracy = float((torch.lerp(even, linear, 0.8).argmax(1) == labels).double().mean())
    assert mean_confidence(torch.lerp(even, linear, share)) == pytest.approx(0.8 * accuracy, abs=1e-3)
    # The next epoch begins with nothing kept.
    found.remember(torch.stack([0.01 * linear, even]), labels)
    found.end_epoch()
    assert float(found.mix) == 1, "the linear classifier is less confident than it should be"


def test_it_learns_to_be_as_confident_as_it_should_be() -> None:
    data = digits(700)
    made = train(network().network, data, recipe=QUICK)
    assert isinstance(made.network, Balanced)
    last = made.history[-1]
    assert last["val_accuracy"] > 0.7
    assert last["confidence"] == pytest.approx(0.8 * last["accuracy"], abs=0.05)
    assert made.history[0]["share"] == pytest.approx(0.8)
    assert len({row["share"] for row in made.history}) > 2
    again = predict(made.network, data.test, mean=made.mean, std=made.std)
    assert torch.allclose(again, made.predictions["test"].scores.float(), atol=1e-5)


def test_any_loss_and_any_memory() -> None:
    for loss in ("focal:gamma=2", "adafocal", "crl", "mdca"):
        recipe = Recipe(**{**vars(QUICK), "epochs": 2})
        made = train(network().network, digits(200), loss, recipe)
        first, last = made.history
        assert math.isfinite(last["loss"]) and first["share"] != last["share"]


def test_from_the_command_line(tmp_path: Path) -> None:
    options = ("--network", "small-cnn", "--epochs", "1", "--batch-size", "40", "--crop", "0", "--no-flip")
    found = run("train", "digits", "-o", tmp_path / "run", *options, "--balance", "0.95", "--bootstrap", "0")
    assert found.code == 0, found.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["details"]["job"]["balance"] == 0.95
    opened, data = open_run(tmp_path / "run")
    assert isinstance(opened.network, Balanced)
    logits = predict(opened.network, data.test, mean=opened.mean, std=opened.std)
    assert torch.allclose(logits, opened.predictions["test"].scores.float(), atol=1e-5)
    again = run("retrain", tmp_path / "run", "-o", tmp_path / "out")
    assert again.code == 2 and "was trained with two classifiers" in again.err


def test_the_same_seed_is_the_same_second_classifier() -> None:
    job = Job.of(data="digits", network="small-cnn", epochs=1, balance=0.95)
    one, two = (job.make_network(digits(100)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert RECIPES["balcal"].balance == 0.95


def test_incompatible_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="balance needs a network of temperance"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits(100), recipe=QUICK)
    with pytest.raises(InputError, match="leave out mix"):
        recipe = Recipe(**{**vars(QUICK), "mix": "mixup"})
        train(make_network("small-cnn", classes=10, image_size=8, channels=1), digits(100), recipe=recipe)
    with pytest.raises(InputError, match="balcal needs at least as many features as classes; small-cnn has 64 for 100"):
        Balanced(make_network("small-cnn", classes=100, image_size=8, channels=1))
