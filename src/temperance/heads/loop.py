"""The training loop of heads: epoch by epoch over features in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from temperance.errors import InputError
from temperance.heads.features import Features, FeatureSet
from temperance.losses import Loss
from temperance.threads import one_thread
from temperance.training.randomness import seed_of

if TYPE_CHECKING:
    from temperance.heads.base import Head

# Batches of up to this many numbers are trained on with one CPU thread.
SMALL_BATCH = 1 << 18

# Steps of an epoch on a GPU before the step is captured as a graph.
WARM_UP = 3


class Measured(NamedTuple):
    """Accuracy and mean confidence as shares, and NLL in nats, on a part."""

    accuracy: float
    confidence: float
    nll: float


class FeatureBatch(NamedTuple):
    """Some training samples: features (b, d), labels (b,) and their indices in the training part (b,)."""

    features: Tensor
    labels: Tensor
    indices: Tensor


class Loop:
    """The epochs of a training; iterating runs them and yields the history row of each."""

    def __init__(self, head: Head, features: Features, loss: Loss, seed: int) -> None:
        self.head = head
        self.features = features
        self.loss = loss
        self.seed = seed
        self.optimiser = self._make_optimiser()
        train, copies = features.train.features, features.copies
        # Sample i is in row i, and its copies, if any, are in rows n + i, 2 n + i, …
        self.versions = train if copies is None else torch.cat([train, copies.flatten(0, 1)])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for epoch in range(1, self.head.epochs + 1):
            yield self._epoch(epoch)

    def _epoch(self, epoch: int) -> dict[str, Any]:
        head, features, loss = self.head, self.features, self.loss
        order, version = self._order(epoch)
        generator = generator_of(features.device, self.seed, epoch, 1)
        for group in self.optimiser.param_groups:
            group["lr"] = self._lr(epoch)
        total = torch.zeros((), device=features.device)
        with torch.no_grad():
            head._begin_epoch(generator)

        def step(index: Tensor) -> None:
            chosen = index if version is None else version[index]
            batch = FeatureBatch(self.versions.index_select(0, chosen), features.train.labels[index], index)
            value, logits = head._objective(batch, loss, generator)
            self.optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            if head.clip is not None:
                nn.utils.clip_grad_norm_(head.parameters(), head.clip)
            self.optimiser.step()
            with torch.no_grad():
                head._after_step()
                total.add_(value.detach() * len(index))
            if loss.learns_from == "training":
                loss.update(logits.detach(), batch.labels, index)

        # A loss that learns during training makes decisions on the host, which a graph cannot contain.
        if features.device.type == "cuda" and loss.learns_from is None:
            replayed(step, order, head.batch_size, generator)
        else:
            with one_thread(where=head.batch_size * features.d <= SMALL_BATCH):
                for index in torch.split(order, head.batch_size):
                    step(index)
        row: dict[str, Any] = {"epoch": epoch, "loss": float(total) / len(features.train)}
        with torch.no_grad():
            row |= head._end_epoch(epoch, features, generator)
            row |= self._on_val(row)
        loss.end_epoch()
        if not math.isfinite(row["loss"]):
            raise InputError(
                f"training of {head.name} broke down in epoch {epoch}: its loss is not finite; "
                f"{loss.remedy or 'set clip'}, or lower lr"
            )
        return row

    def _order(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """The order of the samples in an epoch, and the version of each that is used, if there are copies."""
        n, device = len(self.features.train), self.features.device
        generator = generator_of("cpu", self.seed, epoch)
        order = torch.randperm(n, generator=generator).to(device)
        if self.features.copies is None:
            return order, None
        which = torch.randint(1 + len(self.features.copies), (n,), generator=generator)
        return order, (which * n + torch.arange(n)).to(device)

    def _on_val(self, row: Mapping[str, Any]) -> dict[str, float]:
        val = self.features.val
        if val is None:
            return {}
        if self.loss.learns_from == "validation":
            self.loss.update(self.head._deployed(val.features), val.labels)
        if "val_nll" in row:
            return {}
        return on_val(measured(self.head._deployed, val))

    def _lr(self, epoch: int) -> float:
        if self.head.schedule == "constant":
            return self.head.lr
        return self.head.lr * (1 + math.cos(math.pi * (epoch - 1) / self.head.epochs)) / 2

    def _make_optimiser(self) -> torch.optim.Optimizer:
        head = self.head
        parameters = list(head.parameters())
        fused = all(parameter.is_cuda for parameter in parameters)
        if head.optimiser == "adam":
            return torch.optim.Adam(parameters, head.lr, weight_decay=head.weight_decay, fused=fused, capturable=fused)
        return torch.optim.SGD(parameters, head.lr, momentum=head.momentum, weight_decay=head.weight_decay, fused=fused)


def replayed(step: Callable[[Tensor], None], order: Tensor, size: int, generator: torch.Generator) -> None:
    """Take a step for each batch of an order on a GPU, most of them by replaying one captured graph.

    The operations are so small that launching them one by one takes many times longer than running them. The first
    steps run as usual, because they allocate what a graph cannot; so does the last step, if its batch is smaller.
    """
    batches = torch.split(order, size)
    whole = [batch for batch in batches if len(batch) == size]
    stream = torch.cuda.Stream(order.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(order.device))
    with torch.cuda.stream(stream):
        for batch in whole[:WARM_UP]:
            step(batch)
        if len(whole) > WARM_UP:
            index = torch.empty_like(whole[0])
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(generator)
            with torch.cuda.graph(graph, stream=stream):
                step(index)
            for batch in whole[WARM_UP:]:
                index.copy_(batch)
                graph.replay()
        for batch in batches[len(whole) :]:
            step(batch)
    torch.cuda.current_stream(order.device).wait_stream(stream)


def measured(logits_of: Callable[[Tensor], Tensor], part: FeatureSet) -> Measured:
    """Accuracy, mean confidence and NLL on a part."""
    sums = torch.zeros(3, dtype=torch.float64, device=part.features.device)
    for x, y in part.blocks():
        log_probs = logits_of(x).log_softmax(1)
        top, prediction = log_probs.max(1)
        of_label = log_probs.gather(1, y[:, None])
        sums += torch.stack([(prediction == y).sum().double(), top.double().exp().sum(), -of_label.double().sum()])
    return Measured(*(sums / len(part)).tolist())


def nll_of(logits_of: Callable[[Tensor], Tensor], part: FeatureSet) -> Tensor:
    """The NLL of every sample of a part. float64 (n,)"""
    found = [logits_of(x).log_softmax(1).gather(1, y[:, None])[:, 0] for x, y in part.blocks()]
    return -torch.cat(found).double()


def on_val(found: Measured) -> dict[str, float]:
    """The entries of the history for the validation part."""
    return {f"val_{name}": value for name, value in found._asdict().items()}


def generator_of(device: torch.device | str, *numbers: int) -> torch.Generator:
    """A generator on a device, seeded by numbers: a seed, an epoch (0 before the first), a purpose."""
    return torch.Generator(device).manual_seed(seed_of(*numbers))


def start_layer(layer: nn.Linear, generator: torch.Generator) -> None:
    """Set a linear layer's initial values as torch does, uniform within ±1/√inputs, with a CPU generator."""
    bound = 1 / math.sqrt(layer.in_features)
    for parameter in (layer.weight, layer.bias):
        parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))


def empty_layer(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with uninitialised values; `nn.Linear` would draw them from the global generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
    return layer
