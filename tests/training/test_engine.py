"""The training loop: it learns, it can be killed anywhere, and several processes are one."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import random_predictions
from small_images import digits
from small_trainings import QUICK, same, small_network, weights
from temperance.errors import InputError
from temperance.files import read_tensors
from temperance.losses import LOSSES, AdaFocal, CrossEntropy
from temperance.metrics import nll
from temperance.predictions import read_pair
from temperance.training import Recipe, read_run, train
from temperance.training.checkpoint import Progressed, load_checkpoint, save_checkpoint
from temperance.training.processes import process_group
from temperance.training.refined import refined_nll

SHARED = ("cross-entropy", "mdca", "crl")  # a loss of each sample, of the batch, and with a record of every sample
EVEN = torch.ones(10)


class Killed(Exception):
    pass


def killed_in_epoch(epoch: int) -> Any:
    """A progress callback that ends the training in the middle of an epoch, counted from 1."""
    seen: dict[str, int] = {}

    def tell(done: int, steps: int, what: str) -> None:
        seen[what] = seen.get(what, 0) + 1
        if what.startswith(f"epoch {epoch}/"):
            raise Killed

    return tell


# ------------------------------------------------------------------------------------------------------------- learning


def test_small_images_have_a_small_border() -> None:
    """A border of four pixels would leave little of an image of eight."""
    data, usual = digits(200), Recipe(epochs=1, batch_size=40)
    found, expected, other = (
        weights(train(small_network(), data, "cross-entropy", recipe).network)
        for recipe in (usual, dataclasses.replace(usual, crop=1), dataclasses.replace(usual, crop=4))
    )
    assert same(found, expected) and not same(found, other)


def test_it_learns_and_predicts(tmp_path: Path) -> None:
    data = digits(1000)
    recipe = Recipe(epochs=12, batch_size=32, lr=0.05, crop=0, flip=False)
    run = train(small_network(), data, "cross-entropy", recipe, folder=tmp_path / "run")
    assert run.history[-1]["loss"] < 0.5 * run.history[0]["loss"]
    assert run.history[-1]["val_accuracy"] > 0.85
    val, test = read_pair(tmp_path / "run" / "predictions.npz")
    assert (val.n, test.n, val.k) == (len(data.val), len(data.test), 10)
    assert torch.equal(test.scores, run.predictions["test"].scores)
    assert float((test.scores.argmax(1) == test.labels).double().mean()) > 0.85
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log == run.history and [row["epoch"] for row in log] == list(range(1, 13))
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["measured"]["test"]["accuracy"] == pytest.approx(
        float((test.scores.argmax(1) == test.labels).double().mean())
    )
    again = read_run(tmp_path / "run", small_network(seed=9))
    assert same(weights(again.network), weights(run.network)) and again.history == run.history


@pytest.mark.parametrize("name", LOSSES.names)
def test_every_loss_trains(name: str) -> None:
    run = train(small_network(), digits(300), name, QUICK)
    assert all(torch.isfinite(tensor).all() for tensor in run.network.state_dict().values())
    assert not same(weights(run.network), weights(small_network()))


@pytest.mark.parametrize("mix", ["mixup", "cutmix", "mit"])
@pytest.mark.parametrize("loss", ["cross-entropy", "acls"])
def test_mixtures_train_with_any_loss(mix: str, loss: str) -> None:
    run = train(small_network(), digits(300), loss, Recipe(**{**vars(QUICK), "mix": mix}))
    assert run.history[-1]["accuracy"] is None and run.history[-1]["loss"] < run.history[0]["loss"]


def test_the_same_seed_is_the_same_training() -> None:
    first, second = (train(small_network(), digits(200), "focal", QUICK) for _ in range(2))
    other = train(small_network(), digits(200), "focal", Recipe(**{**vars(QUICK), "seed": 1}))
    assert same(weights(first.network), weights(second.network))
    assert not same(weights(first.network), weights(other.network))


def test_nothing_global_is_touched() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(small_network(name="small-resnet"), digits(200), "cross-entropy", QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_adamw_cosine_clipping_and_bfloat16() -> None:
    recipe = Recipe(
        epochs=3, batch_size=20, optimiser="adamw", lr=0.003, schedule="cosine", clip=1.0, precision="bfloat16", crop=0
    )
    run = train(small_network(), digits(300), "mbls", recipe)
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert run.predictions["test"].scores.dtype == torch.float32


@pytest.mark.parametrize(("keep", "measure"), [("best", "val_loss"), ("refined", "val_refined_nll")])
@pytest.mark.parametrize("keep_from", [None, 0])
def test_the_best_network_is_kept(keep: Any, measure: str, keep_from: int | None) -> None:
    recipe = Recipe(
        epochs=6, batch_size=20, lr=0.5, crop=0, flip=False, keep=keep, keep_from=keep_from, schedule="constant"
    )
    assert recipe.first_kept == (2 if keep_from is None else 0)
    run = train(small_network(), digits(300), "cross-entropy", recipe)
    best = min(run.history[recipe.first_kept :], key=lambda row: row[measure])
    val = run.predictions["val"]
    assert nll(val.scores, val.labels, from_logits=True) == pytest.approx(best["val_nll"], abs=1e-5)


def test_refined_nll_of_a_single_sample_is_its_nll() -> None:
    logits, labels = torch.tensor([[1.0, 3.0]]), torch.tensor([0])
    assert refined_nll(logits, labels) == pytest.approx(nll(logits, labels, from_logits=True))


def test_refined_nll_does_not_mind_how_sure_a_network_is() -> None:
    logits, labels = random_predictions(1000, 5, seed=0)
    found = refined_nll(logits, labels)
    assert refined_nll(4 * logits, labels) == pytest.approx(found, abs=1e-6)
    assert found <= nll(4 * logits, labels, from_logits=True)
    better = logits + 2 * torch.nn.functional.one_hot(labels, 5)
    assert refined_nll(better, labels) < found


def test_nothing_is_kept_after_the_end() -> None:
    with pytest.raises(InputError, match="keep_from must be less than the 5 epochs; got 5"):
        Recipe(epochs=5, keep="best", keep_from=5)


def test_frozen_groups_no_longer_move(tmp_path: Path) -> None:
    network = small_network()
    recipe = Recipe(epochs=4, batch_size=40, lr=0.05, crop=0, flip=False, freeze=4)
    history: dict[int, dict[str, Tensor]] = {}

    def tell(done: int, steps: int, what: str) -> None:
        history.setdefault(int(what.split()[1].split("/")[0]), weights(network))

    train(network, digits(300), "cross-entropy", recipe, progress=tell)
    after = weights(network)
    for name in after:
        moved = [not torch.equal(history[epoch][name], history.get(epoch + 1, after)[name]) for epoch in range(1, 5)]
        # From the classifier down, one group less after every epoch; the stem is trained to the end.
        assert moved == sorted(moved, reverse=True), name
        assert moved[0] and (moved[-1] == name.startswith("stem"))
        assert name not in ("classifier.weight", "classifier.bias") or sum(moved) == 1


def test_a_loss_can_learn_from_the_validation_part(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small_network(), digits(300), "adafocal", QUICK, folder=folder)
    tensors, _ = read_tensors(folder / "checkpoint.safetensors")
    for name, tensor in AdaFocal().state_dict().items():
        assert not torch.equal(tensors[f"loss.{name}"], tensor), name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it imports its compiler
def test_compiled_training_is_training() -> None:
    plain = train(small_network(), digits(120), "cross-entropy", Recipe(**{**vars(QUICK), "epochs": 1}))
    compiled = train(
        small_network(), digits(120), "cross-entropy", Recipe(**{**vars(QUICK), "epochs": 1, "compile": True})
    )
    for name, tensor in weights(plain.network).items():
        assert torch.allclose(tensor, weights(compiled.network)[name], atol=1e-5), name


# ------------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    ("loss", "recipe"),
    [
        ("cross-entropy", {}),
        ("adafocal", {"keep": "best"}),
        ("crl", {"optimiser": "adamw", "lr": 0.01}),
        ("au", {"freeze": 3}),
        ("focal", {"mix": "mixup"}),
        ("cross-entropy", {"balance": 0.9}),
    ],
)
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_killed_training_resumes_bit_for_bit(loss: str, recipe: dict[str, Any], epoch: int, tmp_path: Path) -> None:
    chosen = Recipe(**{**vars(QUICK), "epochs": 4, **recipe})
    data = digits(200)
    whole = train(small_network(name="small-resnet"), data, loss, chosen)
    with pytest.raises(Killed):
        network = small_network(name="small-resnet")
        train(network, data, loss, chosen, folder=tmp_path / "run", progress=killed_in_epoch(epoch))
    network = small_network(name="small-resnet")
    resumed = train(network, data, loss, chosen, folder=tmp_path / "run", resume=True)
    assert same(weights(whole.network), weights(resumed.network))
    assert torch.equal(whole.predictions["test"].scores, resumed.predictions["test"].scores)
    untimed = [{name: v for name, v in row.items() if "seconds" not in name} for row in resumed.history]
    assert untimed == [{name: v for name, v in row.items() if "seconds" not in name} for row in whole.history]


def test_a_checkpoint_restores_the_memory_format_of_the_optimiser_s_state(tmp_path: Path) -> None:
    """Fused optimisers on a GPU refuse a momentum that is laid out in another way than its parameter."""
    path = tmp_path / "checkpoint.safetensors"

    def stepped() -> tuple[nn.Module, torch.optim.Optimizer]:
        network: Any = small_network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
        network(torch.rand(2, 1, 8, 8)).sum().backward()
        optimiser.step()
        return network, optimiser

    saved, restored = stepped(), stepped()
    save_checkpoint(path, *saved, CrossEntropy(), {}, Progressed([], None))
    load_checkpoint(path, *restored, CrossEntropy(), {})
    for ours, theirs in zip(saved[0].parameters(), restored[0].parameters(), strict=True):
        one, other = (o.state[p]["momentum_buffer"] for p, o in ((ours, saved[1]), (theirs, restored[1])))
        assert torch.equal(one, other)
        assert other.stride() == theirs.stride()


ALONE = """
import sys
from training.test_engine import train_digits

train_digits(*sys.argv[1:])
"""
# As torchrun does it, but the processes are forks of one that has imported what they need.
TWO_PROCESSES = """
import sys
import sklearn.datasets, torch._dynamo
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from training.test_engine import train_digits

standalone = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "two", "start_method": "fork"}
elastic_launch(LaunchConfig(1, 1, 2, **standalone), train_digits)(*sys.argv[1:])
"""


def train_digits(folder: Path | str, epochs: str, *losses: str, resume: bool = False) -> None:
    """Train with each loss, whose name ends the name of the folder: what the processes of the tests below do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with process_group(torch.device("cpu")):
            for loss in losses:
                recipe = Recipe(epochs=int(epochs), batch_size=40, lr=0.05, crop=1, flip=False)
                train(small_network(), digits(1000), loss, recipe, folder=f"{folder}-{loss}", resume=resume)
    finally:
        torch.set_num_threads(before)


def started(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process that runs `train_digits`."""
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join(map(str, (tests.parent / "src", tests)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], env=environment)


@pytest.mark.slow
def test_kill_nine_and_resume_give_the_same_weights(tmp_path: Path) -> None:
    arguments = ["12", "cross-entropy"]
    process = started(ALONE, str(tmp_path / "killed"), *arguments)
    log = tmp_path / "killed-cross-entropy" / "log.jsonl"
    while not log.exists() or len(log.read_text().splitlines()) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    whole, killed = (tmp_path / f"{name}-cross-entropy" / "network.safetensors" for name in ("whole", "killed"))
    assert not killed.exists()
    train_digits(tmp_path / "killed", *arguments, resume=True)
    train_digits(tmp_path / "whole", *arguments)
    assert whole.read_bytes() == killed.read_bytes()


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings by one process and by two, with each of the losses in `SHARED`."""
    folder = tmp_path_factory.mktemp("processes")
    process = started(TWO_PROCESSES, str(folder / "two"), "2", *SHARED)
    train_digits(folder / "one", "2", *SHARED)
    assert process.wait() == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("loss", SHARED)
def test_two_processes_are_one(loss: str, one_and_two: Path) -> None:
    one, both = (read_run(one_and_two / f"{name}-{loss}", small_network()) for name in ("one", "two"))
    for name, tensor in weights(one.network).items():
        assert torch.allclose(tensor, weights(both.network)[name], atol=1e-5), name
    for row, other in zip(one.history, both.history, strict=True):
        for name in ("loss", "accuracy", "val_accuracy", "val_nll"):
            assert row[name] == pytest.approx(other[name], abs=1e-4), name
    assert torch.allclose(one.predictions["test"].scores, both.predictions["test"].scores, atol=1e-4)
