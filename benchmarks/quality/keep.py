"""Which epoch's network to keep, if it is calibrated afterwards: the last, the best or the refined one.

    python -m benchmarks.quality.keep --out benchmarks/results/keep.jsonl

Two layers on scikit-learn's digits: 400 images to train on, 400 to choose the epoch and fit a temperature, 997 to test
on, drawn anew for each seed. Digits have hardly any wrong labels, so a network hardly overfits; with one label in five
drawn at random, in all three parts, it does. The numbers are those of the test part, after the temperature. It takes a
minute on one core.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from scipy.stats import t as student
from torch import Tensor

from benchmarks.quality.digits import LR, MOMENTUM, digits, new_network
from benchmarks.quality.table import made_with, table, write
from temperance.calibrators import Temperature
from temperance.losses import CrossEntropy
from temperance.metrics import accuracy, nll
from temperance.report.formats import signed
from temperance.training.refined import refined_nll

EPOCHS, BATCH_SIZE = 100, 32
TRAIN, VAL = 400, 400
SEEDS = 20

KEPT = ("last", "best", "refined")
LABELS = {"as they are": 0.0, "one in five at random": 0.2}


class Kept(NamedTuple):
    """The network of an epoch on the test part, after a temperature."""

    nll: float
    accuracy: float
    epoch: int


def noisy_digits(noise: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The images and their digits, a share of which is drawn at random."""
    images, labels = digits(generator)
    drawn = torch.randint(10, labels.shape, generator=generator)
    is_drawn = torch.rand(labels.shape, generator=generator) < noise
    return images, torch.where(is_drawn, drawn, labels)


def trained(noise: float, seed: int, epochs: int = EPOCHS) -> dict[str, Kept]:
    """Train once, and measure the network that each rule keeps."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = noisy_digits(noise, generator)
    sizes = [TRAIN, VAL, len(labels) - TRAIN - VAL]
    (train, val, test), (y_train, y_val, y_test) = torch.split(images, sizes), torch.split(labels, sizes)
    network = new_network(seed)
    loss, optimiser = CrossEntropy(), torch.optim.SGD(network.parameters(), lr=LR, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    least = dict.fromkeys(KEPT, math.inf)
    kept: dict[str, tuple[int, Tensor, Tensor]] = {}
    for epoch in range(1, epochs + 1):
        for rows in torch.split(torch.randperm(TRAIN, generator=generator), BATCH_SIZE):
            optimiser.zero_grad()
            loss(network(train[rows]), y_train[rows]).backward()
            optimiser.step()
        schedule.step()
        with torch.no_grad():
            on_val, on_test = network(val), network(test)
            losses = (-float(epoch), nll(on_val, y_val, from_logits=True), refined_nll(on_val, y_val))
        for rule, value in zip(KEPT, losses, strict=True):
            if value < least[rule]:
                least[rule], kept[rule] = value, (epoch, on_val, on_test)
    found = {}
    for rule, (epoch, on_val, on_test) in kept.items():
        probs = Temperature().fit(on_val, y_val).predict_proba(on_test)
        found[rule] = Kept(nll(probs, y_test), accuracy(probs, y_test), epoch)
    return found


def summary(found: list[dict[str, Kept]]) -> Iterable[dict[str, Any]]:
    """The means of each rule, and how much lower the NLL of "refined" is, with a 95 % interval over seeds."""
    n = len(found)
    for rule in KEPT:
        means = {key: round(mean(getattr(one[rule], key) for one in found), 4) for key in Kept._fields}
        gains = [one[rule].nll - one["refined"].nll for one in found]
        reach = float(student.ppf(0.975, n - 1)) * stdev(gains) / math.sqrt(n)
        gain = [round(each, 4) for each in (mean(gains), mean(gains) - reach, mean(gains) + reach)]
        yield {"keep": rule, **means, "refined_gains": None if rule == "refined" else gain, "seeds": n}


def markdown(lines: Iterable[dict[str, Any]]) -> str:
    """The results as a table."""
    rows = []
    for line in lines:
        gains = [signed(each, 3) for each in line["refined_gains"] or ()]
        gain = "{} ({} … {})".format(*gains) if gains else ""
        values = (f"{line['nll']:.3f}", f"{100 * line['accuracy']:.1f}", f"{line['epoch']:.0f}")
        rows.append([line["labels"], f"`{line['keep']}`", *values, gain])
    return table(["labels", "kept", "NLL", "accuracy, %", "epoch", "refined is lower by"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results as JSON lines, in place of what is there")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # few mistakes of early folds, about which a fit warns
    lines = []
    for said, noise in LABELS.items():
        found = [trained(noise, seed) for seed in range(SEEDS)]
        lines += [{"labels": said, **line, **made_with()} for line in summary(found)]
    print(markdown(lines))
    if args.out:
        write(args.out, lines)


if __name__ == "__main__":
    main()
