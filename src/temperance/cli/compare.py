"""temperance compare FIT [TEST]: fit every calibrator, rank them honestly, recommend one, save it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from temperance.cli.output import add_output_options, check_outputs, emit, progress_bar
from temperance.cli.reading import add_reading_options, reading_options
from temperance.files import check_writable

if TYPE_CHECKING:
    from temperance.predictions import Predictions


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("compare", help="fit every calibrator, rank them honestly, recommend one and save it")
    parser.add_argument("fit", type=Path, metavar="FIT", help="predictions to fit on; halved if there is no TEST")
    parser.add_argument("test", type=Path, nargs="?", metavar="TEST", help="predictions to measure on")
    add_comparing_options(parser)
    add_reading_options(parser)
    parser.set_defaults(run=run)


def add_comparing_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", default="", metavar="NAMES", help="comma-separated, with name:setting=value")
    parser.add_argument("--n-bins", type=int, default=15, metavar="N", help="bins for binned metrics (15)")
    parser.add_argument("--bootstrap", type=int, default=500, metavar="N", help="resamples for tests (500)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="methods fitted at the same time (1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the split and the resampling (0)")
    parser.add_argument("-o", "--output", type=Path, metavar="CAL", help="save the recommended calibrator here")
    add_output_options(parser)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)
    rank(args.fit, args.test, args)


def rank(fit: Predictions | Path, test: Predictions | Path | None, args: argparse.Namespace) -> None:
    """Compare as the options say, print, write the files."""
    from temperance.jobs.comparison import compare

    if args.output:
        check_writable(args.output)
    with progress_bar() as tell:
        found = compare(
            fit,
            test,
            methods=[name for name in args.methods.split(",") if name.strip()],
            n_bins=args.n_bins,
            bootstrap=args.bootstrap,
            jobs=args.jobs,
            seed=args.seed,
            progress=tell,
            **reading_options(args),
        )
    if args.output and found.any_fitted and found.recommended.fitted:
        found.recommended.fitted.save(args.output)
    emit(found, args)
    if args.output and not found.any_fitted:
        print(f"temperance: no calibrator to save, so nothing is written to {args.output}", file=sys.stderr)
