"""temperance abstain PRED: the confidence below which to abstain, so that the error of the rest stays below a limit."""

from __future__ import annotations

import argparse
from pathlib import Path

from temperance.cli.output import add_output_options, check_outputs, emit
from temperance.cli.reading import Once, add_by_option, add_reading_options, is_by_group, reading_options
from temperance.errors import InputError


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("abstain", help="find the confidence below which to abstain, for an error you accept")
    parser.add_argument(
        "predictions",
        type=Path,
        metavar="PRED",
        help="predictions that nothing was fitted on (test, in a file with both)",
    )
    parser.add_argument("--split", choices=("val", "test"), help="which set, in a file with both (default: test)")
    parser.add_argument(
        "--risk",
        action=Once,
        metavar="R",
        help="the error that you accept, between 0 and 1; comma-separated (0.01,0.02,0.05,0.1,0.2)",
    )
    parser.add_argument(
        "--level", type=float, default=0.95, metavar="P", help="the probability with which the promise holds (0.95)"
    )
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="apply a saved calibrator first")
    add_by_option(parser, "a threshold for each group; the promise holds for all of them at once")
    add_output_options(parser)
    add_reading_options(parser, "label", "group", "ignore-index", "answers")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)

    from temperance.calibrators import load_calibrator
    from temperance.jobs.abstention import RISKS, abstain
    from temperance.predictions import read_predictions

    data = read_predictions(args.predictions, split=args.split, **reading_options(args))
    calibrator = load_calibrator(args.calibrator) if args.calibrator else None
    risks = RISKS if args.risk is None else _numbers(args.risk)
    by_group = is_by_group(args)
    emit(abstain(data, risk=risks, level=args.level, calibrator=calibrator, by_group=by_group), args)


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise InputError(f"--risk must be numbers between 0 and 1, separated by commas; got {text!r}") from None
