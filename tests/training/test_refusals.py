"""The training loop refuses what cannot be trained or resumed, in a sentence."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from small_images import digits
from small_trainings import QUICK, same, small_network, weights
from temperance.data import ImageData, Images
from temperance.errors import DeviceError, FileError, InputError
from temperance.files import read_tensors, write_tensors
from temperance.losses import CrossEntropy, make_loss
from temperance.training import Recipe, train
from temperance.training.engine import enough_memory
from temperance.training.networks import make_network
from temperance.training.randomness import seed_of

EVEN = torch.ones(10)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train(small_network(), digits(200), folder=tmp_path / "run", recipe=QUICK)
    with pytest.raises(InputError, match="already holds a run"):
        train(small_network(), digits(200), folder=tmp_path / "run", recipe=QUICK)


@pytest.mark.parametrize(
    ("network", "loss", "recipe", "n", "said"),
    [
        ("small-resnet", "cross-entropy", {}, 200, "with network 'small-cnn of.*not .small-resnet"),
        ("small-cnn", "focal", {}, 200, "with loss 'CrossEntropy"),
        ("small-cnn", "cross-entropy", {"lr": 0.2}, 200, r"with lr 0\.05, not 0\.2"),
        ("small-cnn", "cross-entropy", {}, 240, "with data"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    network: str, loss: str, recipe: dict[str, Any], n: int, said: str, tmp_path: Path
) -> None:
    train(small_network(), digits(200), folder=tmp_path / "run", recipe=QUICK)
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    with pytest.raises(FileError, match=said):
        train(
            small_network(name=network),
            digits(n),
            loss,
            Recipe(**{**vars(QUICK), **recipe}),
            folder=tmp_path / "run",
            resume=True,
        )
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network": {"survival": 0.9}}, r"network_settings \{.*'survival': 0\.5\}, not \{.*'survival': 0\.9\}"),
        ({"weight": torch.linspace(0.5, 2, 10)}, r"class_weights '10 numbers \(\w+\)', not '10 numbers"),
        ({"weight": None}, r"class_weights '10 numbers \(\w+\)', not None"),
        ({"pixels": lambda x: 255 - x}, r"images '8×8 pixels and 1 channel of 0\.\d+ ± 0\.\d+', not '8×8"),
        ({"pixels": lambda x: x.repeat(1, 2, 2, 1)}, "images '8×8 pixels .*not '16×16 pixels"),
    ],
    ids=["network", "weights", "no weights", "pixels", "size"],
)
def test_what_a_checkpoint_s_weights_do_not_show_must_be_the_same(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    def trained(
        resume: bool = False, network: Any = None, pixels: Any = lambda x: x, weight: Tensor | None = EVEN
    ) -> None:
        data = digits(200)
        train_part, val, test = (
            Images(pixels(part.pixels), part.labels)  # type: ignore[attr-defined]
            for part in (data.train, data.val, data.test)
        )
        scaled = train_part.pixels.double() / 255
        mean, std = (float(scaled.mean()),), (float(scaled.std()),)
        data = ImageData("digits", train_part, val, test, data.class_names, mean, std)
        chosen: Any = small_network()
        chosen.settings = {**chosen.settings, **(network or {"survival": 0.5})}
        train(chosen, data, CrossEntropy(weight=weight), QUICK, folder=tmp_path / "run", resume=resume)

    trained()
    with pytest.raises(FileError, match=said):
        trained(resume=True, **changes)


def test_a_checkpoint_of_an_earlier_version_says_less(tmp_path: Path) -> None:
    path = tmp_path / "run" / "checkpoint.safetensors"
    train(small_network(), digits(200), folder=tmp_path / "run", recipe=QUICK)
    tensors, header = read_tensors(path)
    said = json.loads(header["configuration"])
    del said["images"], said["class_weights"], said["network_settings"]
    write_tensors(path, tensors, {**header, "configuration": json.dumps(said)})
    train(small_network(), digits(200), folder=tmp_path / "run", recipe=QUICK, resume=True)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    train(small_network(), digits(200), folder=tmp_path / "run", recipe=QUICK)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(FileError, match=r"checkpoint\.safetensors cannot be read"):
        train(small_network(), digits(200), folder=tmp_path / "run", recipe=QUICK, resume=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipe": {"batch_size": 1000}}, "batch_size 1000 exceeds the [0-9]+ training images: lower it"),
        ({"loss": CrossEntropy(reduction="none")}, "must return one number"),
        ({"loss": "au", "recipe": {"mix": "mixup"}}, "not on mixtures"),
        ({"loss": "focall"}, "did you mean focal"),
        ({"network": make_network("small-cnn", classes=7, image_size=8, channels=1)}, r"logits \(n, 10\) for the 10"),
        ({"network": nn.Sequential(nn.Flatten(), nn.Linear(5, 10))}, "cannot take images of 8×8 pixels"),
        ({"network": nn.Flatten()}, "no parameters"),
        ({"network": make_network}, "network must be a module, such as make_network"),
        ({"data": "digits"}, r"data must be images, as read_images\(...\) returns them; got 'digits'"),
        ({"loss": nn.CrossEntropyLoss()}, r"loss of temperance .*, such as 'cross-entropy'; got CrossEntropyLoss\(\)"),
    ],
)
def test_incompatible_arguments_are_refused(changes: dict[str, Any], said: str) -> None:
    recipe = Recipe(**{**vars(QUICK), **changes.get("recipe", {})})
    given = {"network": small_network(), "data": digits(200), **changes, "recipe": recipe}
    with pytest.raises(InputError, match=said):
        train(**given)


def test_one_training_image_is_not_called_images() -> None:
    data = digits(200)
    with pytest.raises(InputError, match="exceeds the 1 training image: lower it"):
        train(small_network(), dataclasses.replace(data, train=data.train.take(torch.tensor([0]))), recipe=QUICK)


@pytest.mark.parametrize(("clip", "said"), [(None, "set clip, or"), (1e12, r"lower clip \(1e\+12\), or")])
def test_an_exploding_loss_is_reported(clip: float | None, said: str, tmp_path: Path) -> None:
    recipe = Recipe(epochs=5, batch_size=20, lr=1e12, clip=clip, crop=0, flip=False)
    with pytest.raises(
        InputError, match=rf"the loss became nan in epoch 1: {said} lower the learning rate \(1e\+12\)$"
    ):
        train(small_network(), digits(200), make_loss("brier"), recipe, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()  # nothing was written


def test_a_steep_penalty_trains_because_its_gradient_is_clipped() -> None:
    steep, usual = make_loss("acls", margin=0.0, pos_weight=1e4), Recipe(epochs=2, batch_size=20, crop=0, flip=False)
    with pytest.raises(InputError, match="set clip"):
        train(small_network(), digits(200), steep, dataclasses.replace(usual, clip=None))
    assert math.isfinite(train(small_network(), digits(200), steep, usual).history[-1]["loss"])


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, recipe = digits(200), Recipe(**{**vars(QUICK), "epochs": 3})
    whole = train(small_network(), data, recipe=recipe)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill(done: int, steps: int, what: str) -> None:
        if what.startswith("epoch 2/"):
            # As a disk with 10 kB left: what is larger can no longer be written.
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))

    try:
        with pytest.raises(FileError, match=r"checkpoint\.safetensors cannot be written"):
            train(small_network(), data, recipe=recipe, folder=tmp_path / "run", progress=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    resumed = train(small_network(), data, recipe=recipe, folder=tmp_path / "run", resume=True)
    assert same(weights(whole.network), weights(resumed.network))
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_too_little_memory_on_a_gpu_is_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(DeviceError, match=r"batches of 40: lower batch_size.*checkpoint"),
        enough_memory(QUICK, tmp_path),
    ):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")


def test_seeds_of_neighbours_are_far_apart() -> None:
    seeds = {seed_of(a, b) for a in range(20) for b in range(20)}
    assert len(seeds) == 400 and max(seeds) < 1 << 63
