"""The training loop: from a network, images, a loss and a recipe to a trained network and its predictions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.data import ImageBatch, ImageData, Part, draw_moves, normalised
from temperance.errors import DeviceError, InputError
from temperance.files import check_writable, make_folder
from temperance.losses import Loss
from temperance.losses.distributed import all_sum, processes
from temperance.metrics import accuracy, ece, nll
from temperance.predictions import Predictions
from temperance.progress import Progress, no_progress
from temperance.showing import percent
from temperance.training.balanced import Balanced, balanced
from temperance.training.checkpoint import Progressed, load_checkpoint, save_checkpoint
from temperance.training.checks import check_kinds, check_together, configuration_of
from temperance.training.criterion import as_loss
from temperance.training.freezing import ProgressiveFreezing
from temperance.training.prediction import device_of, predict
from temperance.training.processes import own_share, process_group, rank, wait
from temperance.training.randomness import own_randomness, reproducible, seed_of
from temperance.training.recipe import Recipe
from temperance.training.refined import refined_nll
from temperance.training.run import LOG, Run, read_weights, refuse_taken, write_log, write_run, write_weights

# Steps between two updates of the progress bar.
TELL_EVERY = 20

# The first process calls it after every epoch, with the epoch's row of the log.
EachEpoch = Callable[[Mapping[str, Any]], None]


def no_line(row: Mapping[str, Any]) -> None:
    """Ignore the row."""


def train(
    network: nn.Module,
    data: ImageData,
    loss: Loss | str = "cross-entropy",
    recipe: Recipe | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    details: Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
    each_epoch: EachEpoch = no_line,
) -> Run:
    """Train a network on its device, and predict the validation and test parts with it.

    network     any module that turns images (n, channels, height, width) into logits (n, k)
    loss        a loss of temperance, or its name, such as "acls:margin=6"
    folder      for checkpoints, the log, the weights and the predictions; without it nothing is written
    resume      continue from the folder's checkpoint, bit for bit as if the run had never stopped
    details     saved with the run, such as how the network and the data were made
    each_epoch  called with the row of the log after every epoch

    With `recipe.balance` the run's network is the given one with a second classifier (BalCAL).

    Under `torchrun` every process trains on its share of each batch, with the result of a single process: batch-level
    losses see the whole batch. So does BatchNorm on GPUs; on CPUs it uses the statistics of each process's share.
    """
    chosen = Recipe() if recipe is None else recipe
    check_kinds(network, data, chosen)
    place = None if folder is None else Path(folder)
    device = device_of(network)
    if chosen.balance is not None:
        with own_randomness(torch.device("cpu"), seed_of(chosen.seed)):
            network = balanced(network, chosen.balance).to(device)
    with process_group(device):
        training = Training(network, data, as_loss(loss, len(data.train)), chosen)
        with run_folder(place, resume=resume), reproducible(chosen.deterministic), enough_memory(chosen, place):
            progressed = training.run(place, resume=resume, progress=progress, each_epoch=each_epoch)
            predictions = training.predictions()
        run = Run(network, data.mean, data.std, progressed.history, predictions, place, dict(details or {}))
        if place is not None and rank() == 0:
            write_run(run, training.configuration)
        wait()
        del training  # it refers to the process group
    return run


class Training:
    """A training in progress, epoch by epoch."""

    def __init__(self, network: nn.Module, data: ImageData, loss: Loss, recipe: Recipe) -> None:
        self.device = device_of(network)
        self.recipe = recipe
        self.mix = recipe.mixing()
        self.data = data
        self.loss = loss.to(self.device)
        self.balanced = network if isinstance(network, Balanced) else None
        self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        check_together(network, data, loss, recipe)
        self.train_part = data.train.to(self.device)
        self.val_part = data.val.to(self.device)
        self.shift, self.scale = (torch.tensor(values, device=self.device) for values in (data.mean, data.std))
        # With CUDA graphs, because the host cannot launch kernels this small fast enough.
        self.graphs = recipe.compile and self.device.type == "cuda"
        self.optimiser = recipe.make_optimiser(network)
        self.freezing = ProgressiveFreezing(network, recipe.epochs, groups=recipe.freeze) if recipe.freeze else None
        self.forward = self._prepared_forward()
        self.value_of = self._compiled(self._value_of)
        self.configuration = configuration_of(network, data, loss, recipe)

    def _prepared_forward(self) -> nn.Module:
        """The network as training calls it: distributed over processes and compiled, if asked for."""
        forward: Any = self.network
        if processes() > 1:
            on_gpu = self.device.type == "cuda"
            together: Any = nn.SyncBatchNorm  # has no types
            forward = together.convert_sync_batchnorm(forward) if on_gpu else forward
            forward = nn.parallel.DistributedDataParallel(forward, device_ids=[self.device.index] if on_gpu else None)
        # With mixtures only the network is compiled; otherwise the whole step is.
        prepared: nn.Module = forward if self.mix is None else self._compiled(forward)
        return prepared

    def _compiled(self, function: Any) -> Any:
        return (
            torch.compile(function, mode="reduce-overhead" if self.graphs else None)
            if self.recipe.compile
            else function
        )

    def run(self, folder: Path | None, *, resume: bool, progress: Progress, each_epoch: EachEpoch) -> Progressed:
        """Train all remaining epochs, and write a checkpoint after each."""
        history: list[dict[str, Any]] = []
        best: int | None = None
        if folder is not None and resume and (folder / "checkpoint.safetensors").exists():
            found = load_checkpoint(
                folder / "checkpoint.safetensors", self.network, self.optimiser, self.loss, self.configuration
            )
            history, best = found.history, found.best
        kept = self._weights() if best is None or folder is None else read_weights(folder / "best.safetensors")
        for epoch in range(len(history), self.recipe.epochs):
            row = self.epoch(epoch, history, progress)
            history = [*history, row]
            if self.recipe.keep != "last" and epoch >= self.recipe.first_kept:
                measure = "val_loss" if self.recipe.keep == "best" else "val_refined_nll"
                if row[measure] == min(row[measure] for row in history[self.recipe.first_kept :]):
                    best, kept = epoch, self._weights()
                    if folder is not None and rank() == 0:
                        write_weights(folder / "best.safetensors", kept)
            if folder is not None and rank() == 0:
                write_log(folder / LOG, history)
                save_checkpoint(
                    folder / "checkpoint.safetensors",
                    self.network,
                    self.optimiser,
                    self.loss,
                    self.configuration,
                    Progressed(history, best),
                )
            if rank() == 0:
                each_epoch(row)
            wait()
        if best is not None:
            self.network.load_state_dict(kept)
        return Progressed(history, best)

    def epoch(self, epoch: int, history: list[dict[str, Any]], progress: Progress) -> dict[str, Any]:
        """One pass over the training part and one over the validation part; the epoch's row of the log."""
        recipe, start = self.recipe, time.perf_counter()
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.lr_at(epoch)
        n, steps = len(self.train_part), len(self.train_part) // recipe.batch_size
        generator = torch.Generator().manual_seed(seed_of(recipe.seed, epoch))
        order = torch.randperm(n, generator=generator)[: steps * recipe.batch_size]
        moves = None
        border = recipe.border(*self.train_part.shape[:2])
        if border or recipe.flip:
            moves = draw_moves(n, pad=border, flip=recipe.flip, generator=generator)
        # Each process takes one slice of every batch, in the order of ranks; batch-level losses rely on that order.
        size = recipe.batch_size // processes()
        mine = order.view(steps, processes(), size)[:, rank()].flatten()
        total, hits = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.network.train()
        self.loss.train()
        with own_randomness(self.device, seed_of(recipe.seed, epoch, rank())):
            for step, batch in enumerate(self.train_part.batches(mine, size, device=self.device, moves=moves)):
                if step % TELL_EVERY == 0:
                    progress(epoch * steps + step, recipe.epochs * steps, bar_text(epoch, recipe.epochs, history))
                value, right = self._step(epoch, batch, generator)
                total += value
                hits += right
        self.loss.end_epoch()
        mean_loss, share = (all_sum(torch.stack([total, hits])) / processes()).tolist()
        seconds = time.perf_counter() - start
        if not math.isfinite(mean_loss):
            clip = "set clip" if recipe.clip is None else f"lower clip ({recipe.clip:g})"
            raise InputError(
                f"the loss became {mean_loss / steps} in epoch {epoch + 1}: {self.loss.remedy or clip}, or lower the "
                f"learning rate ({recipe.lr:g})" + ("; the checkpoint of the epoch before is intact" if epoch else ""),
                flags={"set clip": "set --clip", "lower clip": "lower --clip"},
            )
        balance = {} if self.balanced is None else self.balanced.end_epoch()
        measured = self._validate()
        return {
            "epoch": epoch + 1,
            "lr": recipe.lr_at(epoch),
            "loss": mean_loss / steps,
            "accuracy": share / (steps * size) if self.mix is None else None,
            **balance,
            **measured,
            "seconds": round(seconds, 4),
            "seconds_of_validation": round(time.perf_counter() - start - seconds, 4),
        }

    def _step(self, epoch: int, batch: ImageBatch, generator: torch.Generator) -> tuple[Tensor, Tensor | float]:
        """One optimiser step: the loss of the batch, and the number of correct predictions (NaN for mixtures)."""
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        if self.mix is None:
            value, right, output = self.value_of(*batch)
        else:
            value, right, output = self._mixed_value(batch, generator), math.nan, None
        if self.loss.reduction == "sum":
            # Processes average their gradients, which would divide a sum by their number.
            value = value * processes()
        self.optimiser.zero_grad()
        value.backward()
        if self.freezing is not None:
            for parameter in self.freezing.frozen(epoch):
                parameter.grad = None
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        self.optimiser.step()
        if output is not None:
            logits = output.detach()
            if self.balanced is not None:
                logits = self.balanced.remember(logits, batch.labels)
            if self.loss.learns_from == "training":
                self.loss.update(logits, batch.labels, *self._known(batch.indices))
        return value.detach(), right

    def _value_of(self, pixels: Tensor, labels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of a batch, the number of correct predictions, and the logits: (n, k), or (2, n, k) if balanced."""
        with self._autocast():
            output = self.forward(normalised(pixels, self.shift, self.scale))

        def loss(logits: Tensor) -> Tensor:
            value: Tensor = self.loss(logits, labels, *self._known(indices))
            return value

        if self.balanced is None:
            value, logits = loss(output), output
        else:
            value, output = self.balanced.value(output, labels, loss)
            logits = self.balanced.mixed(output)
        return value, (logits.detach().argmax(1) == labels).sum(), output

    def _mixed_value(self, batch: ImageBatch, generator: torch.Generator) -> Tensor:
        """The loss of a batch whose images are mixed."""
        assert self.mix is not None
        mixed = self.mix(normalised(batch.pixels, self.shift, self.scale), batch.labels, generator=generator)
        with self._autocast():
            value: Tensor = mixed.loss(self.loss, self.forward, *self._known(batch.indices))
        return value

    def _known(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The indices of the samples, for a loss that keeps a record of each sample."""
        return (indices,) if self.loss.needs_indices else ()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, self.recipe.precision == "bfloat16")

    def _validate(self) -> dict[str, float]:
        """Measure the network on the validation part, and update a loss that learns from it."""
        logits = self._predict(self.val_part, self.recipe.precision)
        labels = self.val_part.labels.to(self.device)
        measured = {
            "val_accuracy": accuracy(logits, labels, from_logits=True),
            "val_ece": ece(logits, labels, from_logits=True),
            "val_nll": nll(logits, labels, from_logits=True),
        }
        if self.recipe.keep == "refined":
            measured["val_refined_nll"] = refined_nll(logits, labels)
        self.loss.eval()
        with torch.no_grad():
            # A loss that keeps a record of the training samples has no value for others.
            own = self.loss.needs_indices or self.loss.reduction == "sum"
            measured["val_loss"] = measured["val_nll"] if own else float(self.loss(logits, labels))
        self.loss.train()
        if self.loss.learns_from == "validation":
            mine = own_share(len(labels)).to(self.device)
            self.loss.update(logits[mine], labels[mine])
        return measured

    def _predict(self, part: Part, precision: str = "float32") -> Tensor:
        return predict(self.network, part, mean=self.data.mean, std=self.data.std, precision=precision)

    def predictions(self) -> dict[str, Predictions]:
        """The float32 logits of the validation and test parts."""
        return {
            name: Predictions.of(
                self._predict(part).cpu(), part.labels.cpu(), from_logits=True, class_names=self.data.class_names
            )
            for name, part in (("val", self.val_part), ("test", self.data.test.to(self.device)))
        }

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}


@contextmanager
def run_folder(folder: Path | None, *, resume: bool) -> Iterator[None]:
    """Make the folder of a run; refuse one that holds another run, unless `resume` continues it.

    If the training fails before anything was written, no empty folder is left.
    """
    if folder is None:
        yield
        return
    if not (resume and (folder / "checkpoint.safetensors").exists()):
        refuse_taken(folder, "continue it with --resume (`resume=True`), or train in another folder")
    is_new = rank() == 0 and not folder.exists()
    if rank() == 0:
        make_folder(folder)
        check_writable(folder / "checkpoint.safetensors")
    wait()
    try:
        yield
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def enough_memory(recipe: Recipe, folder: Path | None) -> Iterator[None]:
    """Turn a GPU's out-of-memory error into one that says what to do."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        kept = "" if folder is None else f"; the last checkpoint in {folder} is intact"
        raise DeviceError(
            f"the GPU has too little memory for batches of {recipe.batch_size}: lower batch_size, or use "
            f"precision=bfloat16{kept}",
            flags={"batch_size": "--batch-size", "precision=bfloat16": "--precision bfloat16"},
        ) from error


def bar_text(epoch: int, epochs: int, history: list[dict[str, Any]]) -> str:
    """Epoch, loss, accuracy and ECE, for the progress bar."""
    now = f"epoch {epoch + 1}/{epochs}"
    if not history:
        return now
    last = history[-1]
    return f"{now}  loss {last['loss']:.3f}  val {percent(last['val_accuracy'], 1)}  ECE {percent(last['val_ece'], 1)}"
