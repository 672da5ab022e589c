"""The command line: parse, call the library, print. Nothing that it does can be done only here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from temperance import __version__
from temperance.cli import analyse, compare, demo, evaluate, fit, gradients, list_methods, ood, retrain, shift, train
from temperance.errors import TemperanceError

COMMANDS = (demo, evaluate, compare, fit, ood, train, retrain, shift, analyse, gradients, list_methods)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, or 2 for anything the user can put right."""
    args = parser().parse_args(arguments)
    try:
        args.run(args)
        sys.stdout.flush()
    except TemperanceError as error:
        if args.debug:
            raise
        print(f"temperance: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has gone away (`| head`); point stdout nowhere, so that closing it is quiet too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("temperance: stopped", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    found = argparse.ArgumentParser(
        prog="temperance", description="Makes a classifier's confidence mean what it says.", allow_abbrev=False
    )
    found.add_argument("--version", action="version", version=f"temperance {__version__}")
    found.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = found.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    return found
