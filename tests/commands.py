"""Running the command line in tests."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from temperance.cli import main


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


def run(*arguments: str | Path) -> Said:
    """Run a command."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main([str(argument) for argument in arguments])
    return Said(code, out.getvalue(), err.getvalue())


def applied(calibrator: Path, path: Path, out: Path, *options: str) -> Path:
    """Calibrate a file; where the result is."""
    said = run("apply", calibrator, path, "-o", out, *options)
    assert said.code == 0, said.err
    return out


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail; the one line it says."""
    assert main(arguments) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.count("\n") == 1 and out.err.startswith("temperance: ") and "Traceback" not in out.err
    return out.err
