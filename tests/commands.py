"""Running the command line in tests."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from programs import Ended
from temperance.cli import main


def run(*arguments: str | Path) -> Ended:
    """Run a command."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main([str(argument) for argument in arguments])
    return Ended(code, out.getvalue(), err.getvalue())


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
