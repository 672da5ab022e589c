"""temperance decide PRED: the cheapest decision for each sample, what it costs, and what calibration saves."""

from __future__ import annotations

import argparse
from pathlib import Path

from temperance.cli.output import add_output_options, check_outputs, emit, progress_bar
from temperance.cli.reading import add_reading_options, reading_options


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("decide", help="find the cheapest decisions and what miscalibration costs")
    parser.add_argument(
        "predictions",
        type=Path,
        metavar="PRED",
        help="labelled predictions; of a file with val and test, the first is fitted on and the second measured",
    )
    parser.add_argument(
        "--costs",
        type=Path,
        metavar="FILE.csv",
        help="a header of decisions and a row for each true class; a first column may name the classes",
    )
    parser.add_argument(
        "--false-alarm", type=float, metavar="A", help="two classes: the cost of acting if the class is not the second"
    )
    parser.add_argument("--miss", type=float, metavar="M", help="the cost of not acting if the class is the second")
    parser.add_argument("--abstain", type=float, metavar="B", help="the cost of leaving a sample to someone else")
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="measure what a saved calibrator saves")
    parser.add_argument("--method", metavar="NAME", help="the calibrator to fit, with name:setting=value (auto)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the folds (0)")
    add_output_options(parser)
    add_reading_options(parser, "label", "ignore-index", "answers")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)

    from temperance.calibrators import load_calibrator
    from temperance.jobs.decisions import decide

    with progress_bar() as tell:
        found = decide(
            args.predictions,
            costs=args.costs,
            false_alarm=args.false_alarm,
            miss=args.miss,
            abstain=args.abstain,
            calibrator=load_calibrator(args.calibrator) if args.calibrator else None,
            method=args.method,
            seed=args.seed,
            progress=tell,
            **reading_options(args),
        )
    emit(found, args)
