"""temperance ood IN OUT…: does a model's confidence tell unfamiliar data from its own?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from temperance.cli.output import add_output_options, check_outputs, emit, progress_bar
from temperance.cli.reading import Once, add_reading_options, reading_options

if TYPE_CHECKING:
    from temperance.metrics.familiarity import Reference


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("ood", help="measure how well confidence tells unfamiliar data apart")
    parser.add_argument(
        "inside", type=Path, metavar="IN", help="predictions on the model's own test data (test, in a file with both)"
    )
    parser.add_argument(
        "outside",
        type=Path,
        nargs="+",
        metavar="OUT",
        help="the same model's predictions on other data; labels are not needed",
    )
    parser.add_argument(
        "--scores", action=Once, default="", metavar="NAMES", help="comma-separated: msp, margin, energy, … (all)"
    )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="FILE",
        help="features of the training data, for mahalanobis, knn and vim; IN and OUT then have `features`, too",
    )
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="apply a saved calibrator to both sides first")
    parser.add_argument("--bootstrap", type=int, default=500, metavar="N", help="resamples for intervals (500)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the resampling (0)")
    add_output_options(parser)
    add_reading_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)

    from temperance.calibrators import load_calibrator
    from temperance.jobs.ood import compare_ood
    from temperance.predictions import read_predictions

    how = reading_options(args)
    inside, *outside = (read_predictions(path, labels="ignored", **how) for path in (args.inside, *args.outside))
    with progress_bar() as tell:
        found = compare_ood(
            inside,
            outside,
            reference=reference_of(args.features) if args.features else None,
            scores=args.scores,
            calibrator=load_calibrator(args.calibrator) if args.calibrator else None,
            bootstrap=args.bootstrap,
            seed=args.seed,
            progress=tell,
        )
    emit(found, args)


def reference_of(path: Path) -> Reference:
    """The training part of a file of features, with the classifier if the file has it."""
    from temperance.heads import read_features
    from temperance.metrics.familiarity import Reference

    found = read_features(path)
    return Reference.of(found.train.features, found.train.labels, *(found.classifier or ()))
