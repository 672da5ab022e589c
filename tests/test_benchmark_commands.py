"""The commands of benchmarks in the docs: their modules take every argument that is written there."""

import argparse
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"python -m (benchmarks[^`#&\n]*(?:\n[^`#&\n]+)?)`|^python -m (benchmarks[^#&\n]*)", re.MULTILINE)
COMMANDS = sorted(
    {" ".join((found[1] or found[2]).split()) for page in PAGES for found in COMMAND.finditer(page.read_text())}
)


class Understood(Exception):
    """The arguments are known, so the command would begin."""


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_docs_is_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_args(parser: argparse.ArgumentParser) -> NoReturn:
        _, unknown = parser.parse_known_args()
        assert not unknown, f"{command} has no {unknown[0]}"
        raise Understood

    def error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        # A page may leave out what `--help` says.
        assert message.startswith("the following arguments are required"), f"{command}: {message}"
        raise Understood

    module, *words = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [module, *words])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(argparse.ArgumentParser, "error", error)
    with pytest.raises(Understood):
        runpy.run_module(module, run_name="__main__")
