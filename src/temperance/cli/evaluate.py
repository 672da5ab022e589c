"""temperance evaluate PRED: how far to trust a model's confidence."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from temperance.cli.output import add_output_options, check_outputs, emit, progress_bar
from temperance.cli.reading import add_reading_options, reading_options

if TYPE_CHECKING:
    from temperance.predictions import Predictions


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("evaluate", help="measure the calibration of a file of predictions")
    parser.add_argument("predictions", type=Path, metavar="PRED", help="a file, a folder of files, or 'a-*.pattern'")
    parser.add_argument("--split", choices=("val", "test"), help="which set, in a file with both (default: test)")
    add_measuring_options(parser)
    add_reading_options(parser)
    parser.set_defaults(run=run)


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics", default="", metavar="NAMES", help="comma-separated names, or all")
    parser.add_argument("--n-bins", type=int, default=15, metavar="N", help="bins for binned metrics (15)")
    parser.add_argument(
        "--bootstrap", type=int, default=500, metavar="N", help="resamples for intervals (500; 0: none)"
    )
    parser.add_argument("--by", choices=("group", "groups"), help="measure each group apart, too")
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="measure what a saved calibrator makes of it")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the resampling (0)")
    add_output_options(parser)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)

    from temperance.predictions import read_predictions

    measure(read_predictions(args.predictions, split=args.split, **reading_options(args)), args)


def measure(predictions: Predictions, args: argparse.Namespace) -> None:
    """Evaluate as the options say, print, write the files."""
    from temperance.calibrators.base import load_calibrator
    from temperance.jobs.application import refuse_calibrated
    from temperance.jobs.evaluation import evaluate

    if args.calibrator:
        refuse_calibrated(predictions, "leave out --calibrator")
    with progress_bar() as tell:
        found = evaluate(
            predictions,
            calibrator=load_calibrator(args.calibrator) if args.calibrator else None,
            metrics=[name.strip() for name in args.metrics.split(",") if name.strip()],
            n_bins=args.n_bins,
            bootstrap=args.bootstrap,
            by_group=args.by is not None,
            seed=args.seed,
            progress=tell,
        )
    emit(found, args)
