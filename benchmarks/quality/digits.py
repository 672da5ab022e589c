"""Train a small network on handwritten digits with every loss at its defaults.

    python -m benchmarks.quality.digits --out benchmarks/results/digits.jsonl

Two layers on scikit-learn's digits (8 × 8 pixels, ten classes), SGD with momentum 0.9 and a learning rate of 0.1 that
falls to 0 on a cosine, without warm-up or clipping: a loss whose defaults work does not break down here. Accuracy and
ECE are those of the test part, means over seeds. It takes about a minute on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.quality.table import made_with, table, write
from temperance.losses import LOSSES
from temperance.metrics import ece
from temperance.training.criterion import as_loss

LR, MOMENTUM = 0.1, 0.9
EPOCHS, BATCH_SIZE = 10, 32
SEEDS = 3


class Part(NamedTuple):
    """Images as rows of pixels from 0 to 1 (n, 64), and their digits (n,)."""

    images: Tensor
    labels: Tensor


class Scores(NamedTuple):
    """A trained network on the test part."""

    accuracy: float
    ece: float


def digits(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """All images in a random order, as rows of pixels from 0 to 1, and their digits."""
    from sklearn.datasets import load_digits

    images, labels = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=generator)
    return images.float()[order] / 16, labels[order]


def new_network(seed: int) -> nn.Module:
    """Two layers, with initial values that are drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def parts() -> tuple[Part, Part, Part]:
    """1000 samples to train on, 300 to validate on, and 497 to test on."""
    found = digits(torch.Generator().manual_seed(0))
    pieces = zip(*(torch.split(each, [1000, 300, 497]) for each in found), strict=True)
    train, val, test = (Part(*piece) for piece in pieces)
    return train, val, test


@cache
def trained(name: str, seed: int = 0) -> Scores:
    """Train once with a loss, by its name."""
    train, val, test = parts()
    generator = torch.Generator().manual_seed(seed)
    network = new_network(seed)
    loss = as_loss(name, len(train.labels))
    optimiser = torch.optim.SGD(network.parameters(), lr=LR, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(train.labels), generator=generator), BATCH_SIZE):
            logits, labels = network(train.images[rows]), train.labels[rows]
            optimiser.zero_grad()
            loss(logits, labels, rows).backward()
            optimiser.step()
            if loss.learns_from == "training":
                loss.update(logits, labels, rows)
        if loss.learns_from == "validation":
            loss.update(network(val.images), val.labels)
        loss.end_epoch()
        schedule.step()
    with torch.no_grad():
        logits = network(test.images)
    if not bool(torch.isfinite(logits).all()):
        return Scores(0.0, 1.0)
    accuracy = float((logits.argmax(1) == test.labels).float().mean())
    return Scores(accuracy, ece(logits, test.labels, from_logits=True))


def markdown(lines: Iterable[dict[str, Any]]) -> str:
    """The results as a table, the most accurate first."""
    rows = (
        [line["loss"], f"{100 * line['accuracy']:.1f}", f"{100 * line['ece']:.1f}"]
        for line in sorted(lines, key=lambda line: -line["accuracy"])
    )
    return table(["loss", "accuracy, %", "ECE, %"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("losses", nargs="*", default=LOSSES.names, metavar="LOSS", help="default: all of them")
    parser.add_argument("--out", type=Path, help="write the results as JSON lines, in place of what is there")
    args = parser.parse_args()
    lines = []
    for name in args.losses:
        found = [trained(name, seed) for seed in range(SEEDS)]
        each = {key: round(mean(getattr(one, key) for one in found), 4) for key in Scores._fields}
        lines.append({"loss": name, **each, "seeds": SEEDS, "epochs": EPOCHS, **made_with()})
        print(f"{name:18} {100 * each['accuracy']:6.1f} {100 * each['ece']:6.1f}", flush=True)
    if args.out:
        write(args.out, lines)


if __name__ == "__main__":
    main()
