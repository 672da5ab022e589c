"""temperance evaluate PRED…: how far to trust a model's confidence."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temperance.cli.output import add_output_options, check_outputs, emit, progress_bar
from temperance.cli.reading import (
    Once,
    add_by_option,
    add_each_option,
    add_ray_option,
    add_reading_options,
    is_by_group,
    one_set_on_ray,
    reading_options,
)
from temperance.errors import InputError

if TYPE_CHECKING:
    from temperance.predictions import Predictions


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("evaluate", help="measure the calibration of a file of predictions")
    parser.add_argument(
        "predictions",
        type=Path,
        nargs="+",
        metavar="PRED",
        help="a file, a folder of files, or a pattern, 'part-*.npz'; several are shown side by side in one table",
    )
    add_each_option(parser)
    parser.add_argument("--split", choices=("val", "test"), help="which set, in a file with both (default: test)")
    add_measuring_options(parser)
    add_reading_options(parser, "label", "group", "weight", "ignore-index", "answers", "multilabel")
    add_ray_option(parser, "measure")
    parser.set_defaults(run=run)


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics",
        action=Once,
        default="",
        metavar="NAMES",
        help="comma-separated names, or all; with settings ece:n_bins=10",
    )
    parser.add_argument("--n-bins", type=int, default=15, metavar="N", help="bins for binned metrics (15)")
    parser.add_argument(
        "--bootstrap", type=int, default=500, metavar="N", help="resamples for intervals (500; 0: none)"
    )
    add_by_option(parser, "also measure each group, or each of several labels, separately")
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="apply a saved calibrator first")
    parser.add_argument(
        "--gap", metavar="METHOD", help="also measure the error without bins, with this calibrator, such as auto"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the resampling (0)")
    add_output_options(parser)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)

    from temperance.predictions import each_file, read_predictions

    paths = each_file(args.predictions) if args.each else args.predictions
    how = reading_options(args)
    if args.each or len(paths) > 1:
        measure_each(paths, args, how)
    else:
        measure(read_predictions(paths[0], split=args.split, **how), args)


def measure_each(paths: Sequence[Path], args: argparse.Namespace, how: Mapping[str, Any]) -> None:
    """Evaluate every set as the options say, print one table, write the files."""
    from temperance.jobs.several import evaluate_each

    one_set_on_ray(args)
    with progress_bar() as tell:
        found = evaluate_each(paths, split=args.split, progress=tell, **how, **measuring_options(args))
    emit(found, args)
    found.raise_failures()


def measure(predictions: Predictions, args: argparse.Namespace) -> None:
    """Evaluate as the options say, print, write the files."""
    options = measuring_options(args)
    with progress_bar() as tell:
        if vars(args).get("ray") is not None:
            from temperance.interop import ray

            if options.pop("gap") is not None:
                raise InputError("--gap fits a calibrator to all rows, which no worker holds; leave out --gap or --ray")
            found = ray.evaluate(predictions, address=args.ray or None, progress=tell, **options)
        else:
            from temperance.jobs.evaluation import evaluate

            found = evaluate(predictions, progress=tell, **options)
    emit(found, args)


def measuring_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_measuring_options` for the library."""
    from temperance.calibrators import load_calibrator

    return {
        "calibrator": load_calibrator(args.calibrator) if args.calibrator else None,
        "metrics": args.metrics,
        "n_bins": args.n_bins,
        "bootstrap": args.bootstrap,
        "by_group": is_by_group(args),
        "gap": args.gap,
        "seed": args.seed,
    }
