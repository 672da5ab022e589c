"""The command line: parse, call the library, print. Everything that it does can be done in Python, too."""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from temperance import __version__
from temperance.cli import (
    abstain,
    analyse,
    compare,
    decide,
    demo,
    evaluate,
    export,
    fit,
    gradients,
    list_methods,
    ood,
    predict,
    reproduce,
    retrain,
    shift,
    train,
)
from temperance.cli.manual import describe
from temperance.cli.terminal import transliterate_output
from temperance.errors import InputError, SeveralErrors, TemperanceError, TemperanceWarning, unknown_name
from temperance.settings import one_of

COMMANDS = (
    demo,
    evaluate,
    compare,
    fit,
    export,
    abstain,
    decide,
    ood,
    train,
    predict,
    retrain,
    shift,
    analyse,
    gradients,
    reproduce,
    list_methods,
)


def program() -> int:
    """`main` as a process of its own, which seldom searches the 170,000 objects that torch makes for garbage."""
    gc.set_threshold(100_000)
    try:
        return main()
    finally:
        gc.freeze()  # whatever is left goes with the process


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, or 2 for any error that the user can fix."""
    transliterate_output()
    args = argparse.Namespace(debug=False)
    options: Container[str] = ()  # of the command
    try:
        try:
            known = parser()
            _, unknown = known.parse_known_args(arguments, args)
            command = vars(args).pop("command")  # the rest are its own options
            options = known.commands[command]._option_string_actions
            if unknown:
                raise _not_understood(unknown[0], command, known)
            with warnings_as_sentences():
                args.run(args)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except TemperanceError as error:
        if args.debug:
            raise
        print(f"temperance: {in_flags(error, options)}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has gone away (`| head`).
        _discard_output()
        return 0
    except OSError as error:
        if args.debug:
            raise
        _discard_output()
        what = f"{error.filename}:" if error.filename else "standard output cannot be written:"
        print(f"temperance: {what} {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("temperance: stopped", file=sys.stderr)
        return 130
    return 0


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print each warning of temperance once, as a sentence on standard error."""
    told: set[str] = set()

    def tell(message: Warning | str, category: type[Warning], *more: Any, **options: Any) -> None:
        if not issubclass(category, TemperanceWarning):
            usual(message, category, *more, **options)
        elif str(message) not in told:
            told.add(str(message))
            print(f"temperance: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TemperanceWarning)
        usual, warnings.showwarning = warnings.showwarning, tell
        yield


def in_flags(error: TemperanceError, options: Container[str]) -> str:
    """An error's sentence with the flags of a command in place of Python arguments, where the command has them."""
    if isinstance(error, SeveralErrors):
        each = [f"{before}{in_flags(one, options)}" for before, one in error.each]
        return f"{error.head}: {each[0]}" if len(each) == 1 else "\n  ".join([f"{error.head}:", *each])
    said = str(error)
    for words, instead in error.flags.items():
        flag = re.search(r"--[a-z-]+", instead)
        if flag is None or flag[0] in options:
            said = said.replace(words, instead, 1)
    return said


def _discard_output() -> None:
    """Point standard output nowhere, so that closing it is quiet too."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, and whose help does not hide a failed write.

    argparse itself prints its long usage before an error, and ignores errors of writing.

    commands  the parser of each command
    """

    commands: Mapping[str, argparse.ArgumentParser]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("type", int, _whole_number)
        self.register("type", float, _number)
        self.register("type", Path, _path)

    def error(self, message: str) -> NoReturn:
        option, _, said = message.removeprefix("argument ").partition(": ")
        if not message.startswith("argument "):
            raise InputError(f"{message}; see {self.prog} --help")
        raise InputError(f"{option} {said}" if said.startswith("must be ") else f"{option}: {said}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if action.option_strings:
            one_of(action.option_strings[-1], value, action.choices)
        raise unknown_name(str(action.metavar).lower(), value, action.choices)

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file or sys.stderr)


def parser() -> Parser:
    """All commands with their options."""
    found = Parser(
        prog="temperance", description="Makes a classifier's confidence mean what it says.", allow_abbrev=False
    )
    found.add_argument("--version", action="version", version=f"temperance {__version__}")
    found.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = found.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    describe(commands.choices)
    found.commands = commands.choices
    return found


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}") from None


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("must be a file or a folder; got '' (does a shell variable have no value?)")
    return Path(text)


def _not_understood(word: str, command: str, known: Parser) -> InputError:
    """An error about an argument that a command does not have, with the one that was probably meant."""
    options = known.commands[command]._option_string_actions
    name = word.partition("=")[0]
    meant = get_close_matches(name, [option for option in options if option != "--help"], 1)
    if name in ("-o", "--output", "--html") and "--report" in options:
        meant = ["--report FILE.html"]
    if not word.startswith("-"):
        return InputError(f"{command} does not take {word!r}; see temperance {command} --help")
    instead = f"did you mean {meant[0]}?" if meant else f"see temperance {command} --help"
    return InputError(f"{command} has no option {name}; {instead}")
