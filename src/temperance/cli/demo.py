"""temperance demo: the main job on predictions that ship with the package."""

from __future__ import annotations

import argparse

from temperance.cli.evaluate import add_measuring_options, measure
from temperance.cli.output import check_outputs


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("demo", help="the main job on predictions that ship with the package")
    add_measuring_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from temperance.demo import demo_predictions

    check_outputs(args)
    _, test = demo_predictions()
    measure(test, args)
