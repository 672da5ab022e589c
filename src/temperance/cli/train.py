"""temperance train DATA -o RUN: train a network on images, with calibration built in."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from temperance.cli import terminal
from temperance.cli.output import progress_bar
from temperance.settings import ResamplesOrNone, of_kind
from temperance.showing import percent

if TYPE_CHECKING:
    from temperance.progress import Progress

SECONDS_BETWEEN_LINES = 10.0

# Flags that are not settings of the job.
OUTSIDE = ("config", "output", "resume", "device", "download", "bootstrap", "run", "debug")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "train",
        help="train a network on images with a loss that keeps confidence honest",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "data",
        nargs="?",
        metavar="DATA",
        help=".npz, image folder, CIFAR files, or cifar10, cifar100, tiny-imagenet, digits",
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="RUN", help="folder for everything it makes"
    )
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="settings in a file; options override it")
    parser.add_argument("--network", metavar="NAME", help="as `temperance list networks` shows (resnet18)")
    parser.add_argument("--loss", metavar="NAME", help="as `temperance list losses` shows, with :setting=value")
    parser.add_argument(
        "--preset", metavar="NAME", help="a published recipe: cifar, tiny-imagenet, selective-cifar10, …"
    )
    parser.add_argument("--resume", action="store_true", help="resume from the folder's checkpoint")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, … (a GPU if there is one)")
    parser.add_argument("--download", action="store_true", help="fetch a named data set if it is not there")
    parser.add_argument("--bootstrap", type=int, metavar="N", help="resamples for intervals (500; 0: none)")
    add_data_options(parser)
    add_recipe_options(parser)
    parser.set_defaults(run=run)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how the images are read")
    group.add_argument("--val-fraction", type=float, metavar="X", help="share of the training images held out (0.1)")
    group.add_argument("--split", metavar="NAME", help="how these are chosen: random, stratified, … (random)")
    group.add_argument("--split-seed", type=int, metavar="N", help="seed of that choice (0)")
    group.add_argument("--size", type=int, metavar="PIXELS", help="resize images to this height and width")
    group.add_argument(
        "--long-tail", type=float, metavar="X", help="class frequencies fall, the last to this share of the first"
    )


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the recipe")
    whole, real = {"type": int, "metavar": "N"}, {"type": float, "metavar": "X"}
    optional = {"type": number_or_none, "metavar": "X"}
    for name, how, text in (
        ("epochs", whole, "passes over the training images (100)"),
        ("batch-size", whole, "images in a step, over all processes (128)"),
        ("optimiser", {"choices": ("sgd", "adamw")}, "how the weights are updated (sgd)"),
        ("lr", real, "learning rate at the start (0.1)"),
        ("momentum", real, "momentum of SGD (0.9)"),
        ("weight-decay", real, "weight decay (5e-4)"),
        ("schedule", {"choices": ("steps", "cosine", "constant")}, "how the learning rate changes (steps)"),
        ("drops", {"type": numbers, "metavar": "N,N"}, "when the learning rate drops: epochs, or shares (0.43,0.71)"),
        ("factor", real, "factor of each drop (0.1)"),
        ("warmup", whole, "epochs in which the learning rate rises (0)"),
        ("clip", optional, "largest norm of the gradient (2; none: no limit)"),
        ("crop", {"type": number, "metavar": "N"}, "crop at random after adding a border: pixels, or a share (0.125)"),
        ("mix", {"metavar": "NAME"}, "mixup, cutmix or mit, with :alpha=1.0 (none)"),
        ("balance", optional, "confidence in training as a share of accuracy, by a second, fixed classifier (BalCAL)"),
        ("freeze", optional | {"metavar": "N"}, "groups of layers frozen one by one from the classifier down (PLP)"),
        ("keep", {"choices": ("last", "best", "refined")}, "which epoch's network is kept (last)"),
        ("keep-from", whole, "epochs that best and refined skip (a third, at most 40)"),
        ("precision", {"choices": ("float32", "bfloat16")}, "numbers that the network computes in (float32)"),
        ("seed", whole, "seed of weights, order, crops, mixtures (0)"),
    ):
        group.add_argument(f"--{name}", help=text, **how)
    for name, text in (
        ("nesterov", "Nesterov's momentum"),
        ("flip", "flip half of the images at random (yes); not for digits or letters"),
        ("compile", "compile the network first"),
        ("deterministic", "bit-identical runs on a GPU, more slowly"),
    ):
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=text)


def numbers(text: str) -> tuple[float, ...]:
    """Numbers separated by commas; whole ones stay integers."""
    try:
        return tuple(float(part) if "." in part else int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers with commas, such as 150,250; got {text!r}") from None


def number(text: str) -> float:
    """A number; a whole one stays an integer."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}") from None


def number_or_none(text: str) -> float | str:
    """A number, or the word none, which turns the setting off."""
    try:
        return "none" if text == "none" else number(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"must be a number or none; got {text!r}") from None


def run(args: argparse.Namespace) -> None:
    from temperance.training.engine import no_line
    from temperance.training.job import Job, read_job
    from temperance.training.processes import rank

    given: dict[str, Any] = vars(args)
    settings = {name: value for name, value in given.items() if name not in OUTSIDE and value is not None}
    job = Job.of(**{**(read_job(args.config) if "config" in given else {}), **settings})
    of_kind("bootstrap", given.get("bootstrap", 0), ResamplesOrNone)
    device = given.get("device") or best_device()
    with progress_bar() as tell:
        found = job.run(
            args.output,
            device=device,
            resume="resume" in given,
            download="download" in given,
            progress=tell,
            each_epoch=no_line if on_terminal() else epoch_line(job.recipe.epochs),
        )
    if rank() == 0:
        show(found, bootstrap=given.get("bootstrap", 500))


def show(found: Any, *, bootstrap: int) -> None:
    """Measure the test part, print, and write the page of the run."""
    from temperance.jobs.evaluation import evaluate
    from temperance.report import write_report
    from temperance.training.run import hardly_learnt

    measured = evaluate(found.folder / "predictions.npz", bootstrap=bootstrap)
    warning = hardly_learnt(found.predictions["test"])
    if warning:
        terminal.show(Text(f"{warning}\n", style="bold"))
    terminal.show(measured)
    write_report(found, found.folder / "report.html", measured=measured)
    print(f"the network, its log, predictions and report are in {found.folder}")
    print(f"next: temperance compare {found.folder / 'predictions.npz'}")


def on_terminal() -> bool:
    """Is standard error a terminal, which can show a progress bar?"""
    return terminal.Screen(stderr=True).is_terminal


def epoch_line(epochs: int) -> Callable[[Mapping[str, Any]], None]:
    """A function that prints one line per epoch on stderr, for the log of an unattended job."""

    def tell(row: Mapping[str, Any]) -> None:
        seconds = row["seconds"] + row["seconds_of_validation"]
        print(
            f"epoch {row['epoch']}/{epochs}  loss {row['loss']:.4f}  held-out accuracy {percent(row['val_accuracy'])}  "
            f"ECE {percent(row['val_ece'])}  {seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )

    return tell


def lines_now_and_then(tell: Progress, every: float = SECONDS_BETWEEN_LINES) -> Progress:
    """Like `tell`; where there is no progress bar, it also prints a line on stderr every few seconds."""
    if on_terminal():
        return tell
    last = time.monotonic()

    def tell_both(done: int, steps: int, what: str) -> None:
        nonlocal last
        tell(done, steps, what)
        if time.monotonic() - last >= every:
            last = time.monotonic()
            print(f"{done}/{steps}  {what}", file=sys.stderr, flush=True)

    return tell_both


def best_device() -> str:
    """A GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
