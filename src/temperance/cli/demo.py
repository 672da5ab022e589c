"""temperance demo: compare calibrators on predictions that ship with the package."""

from __future__ import annotations

import argparse

from temperance.cli.compare import add_comparing_options, rank
from temperance.cli.output import check_outputs

# One or two of each family, so that it takes seconds; `--methods` chooses others.
SHORT = "temperature,ensemble-temperature,vector,structured-vector,structured-matrix,histogram,isotonic,auto"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("demo", help="try `compare` on predictions that ship with the package")
    add_comparing_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)

    from temperance.demo import demo_predictions

    args.methods = args.methods or SHORT
    rank(*demo_predictions(), args)
