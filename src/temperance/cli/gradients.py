"""temperance gradients LOSS… -o FILE: a picture of what losses do to predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from temperance.cli.output import check_outputs
from temperance.errors import InputError

if TYPE_CHECKING:
    from temperance.losses import Loss

FIGURES = {
    "smoothing": ("label-smoothing", "focal", "cpc", "mdca", "mbls", "acls"),
    "weights": ("cross-entropy", "focal", "inverse-focal", "aurc", "au:low_conf_coverage=0.5"),
    "cdf": tuple(f"au:cdf_bandwidth={width}" for width in (0.01, 0.05, 0.1, 0.3)),
}
TITLES = {
    "smoothing": "Losses as label smoothing",
    "weights": "Losses as weights on cross-entropy",
    "cdf": "The distribution of confidences, smoothed",
}
READINGS = {
    "smoothing": "The gradient of each loss is that of cross-entropy with another label: the predicted class's label "
    "is lowered by f and every other class's raised by f, where the condition C holds (bars). The prediction is right. "
    "What a batch-level loss does depends on the batch: here one that is too sure of the same class.",
    "weights": "Each loss as a weight on cross-entropy, over the probability of the label; weights are scaled to a "
    "mean of 1, to be compared. Where the slope is positive the loss pushes the label's probability down.",
    "cdf": "The au loss weighs a sample by the share of confidences below its own, with steps smoothed by "
    "`cdf_bandwidth`: narrow steps follow the ranks, wide ones flatten the weights.",
}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("gradients", help="draw what losses do to predictions")
    parser.add_argument(
        "losses", nargs="*", metavar="LOSS", help="names that `temperance list losses` shows, as name:setting=value"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".png, .svg or .html")
    parser.add_argument(
        "--figure",
        choices=tuple(FIGURES),
        default="smoothing",
        help="smoothing: how they move the label of each class, and when (ACLS); weights: weight, loss and slope over "
        "the label's probability; cdf: the smoothed distribution of the au loss",
    )
    parser.add_argument(
        "--against", choices=("logit", "probability"), default="logit", help="what smoothing is drawn over (logit)"
    )
    parser.add_argument("--classes", type=int, default=10, metavar="K", help="number of classes for smoothing (10)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from temperance.errors import at_least
    from temperance.report.figures.gradients import FORMATS, draw_losses, write_figure

    if args.output.suffix.lower() not in FORMATS:
        raise InputError(f"a figure is written as {', '.join(FORMATS)}; got {args.output.name!r}")
    check_outputs(args)
    at_least("--classes", args.classes, 3)
    losses = {text: _parsed(text, args.classes) for text in args.losses or FIGURES[args.figure]}
    figure = draw_losses(losses, args.figure, against=args.against, k=args.classes)
    about = [(text, f"{loss.summary}. {loss.paper}.") for text, loss in losses.items()]
    write_figure(figure, args.output, title=TITLES[args.figure], reading=READINGS[args.figure], about=about)
    print(f"drew {', '.join(losses)}; the picture is in {args.output}")


def _parsed(text: str, k: int) -> Loss:
    """A loss as written on the command line: name:setting=value:…"""
    from temperance.losses.gradients import probe
    from temperance.registry import parse_entry

    name, settings = parse_entry(text)
    return probe(name, k=k, **settings)
