"""Running the command line in tests."""

import pytest

from temperance.cli import main


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail; the one line it says."""
    assert main(arguments) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.count("\n") == 1 and out.err.startswith("temperance: ") and "Traceback" not in out.err
    return out.err
