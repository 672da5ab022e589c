"""What the commands share: where results go, and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from temperance.cli.terminal import Screen, show, write_text
from temperance.errors import FileError
from temperance.files import check_writable, refuse_overwriting
from temperance.files import write_text as write_file
from temperance.progress import Progress, no_progress

if TYPE_CHECKING:
    from temperance.report.html import Measured

STDOUT = Path("-")

# The options that name a file to write.
OUTPUTS = ("json", "csv", "report", "output")


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """--json, --csv and --report: the same for every command that measures."""
    for kind in ("json", "csv"):
        text = f"write {kind.upper()} to FILE, or to standard output instead of the table"
        parser.add_argument(f"--{kind}", nargs="?", const=STDOUT, type=Path, metavar="FILE", help=text)
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a self-contained HTML report")


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse outputs that cannot be written, or would overwrite an input, before any work is done."""
    given = vars(args)
    outputs = [given[name] for name in OUTPUTS if isinstance(given.get(name), Path) and given[name] != STDOUT]
    values = [value for name, value in given.items() if name not in OUTPUTS]
    inputs = [path for value in values for path in (value if isinstance(value, list) else [value])]
    for i, path in enumerate(outputs):
        check_writable(path)
        if path.resolve() in (other.resolve() for other in outputs[:i]):
            raise FileError(f"{path} is named for two outputs, and one would overwrite the other; name two files")
        refuse_overwriting(path, [path for path in inputs if isinstance(path, Path)])
    if given.get("report") is not None:
        check_page_name(given["report"])


def check_page_name(path: Path) -> None:
    """Refuse a page name with the suffix of something else, such as a picture."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise FileError(f"a page is saved as .html; call it {path.with_suffix('.html')}")


def check_calibrator_name(path: Path) -> None:
    """Refuse a calibrator name with the suffix of something else, such as a file of predictions."""
    if path.suffix.lower() != ".safetensors":
        raise FileError(f"a calibrator is saved as .safetensors; call it {path.with_suffix('.safetensors')}")


def emit(results: Measured, args: argparse.Namespace) -> None:
    """Write the files, and print the table unless JSON or CSV goes to standard output."""
    to_stdout = False
    if args.report is not None:
        from temperance.report import write_report

        write_report(results, args.report)
    for path, text in ((args.json, results.to_json), (args.csv, results.to_csv)):
        if path == STDOUT:
            to_stdout = True
            write_text(text())
        elif path is not None:
            write_file(path, text())
    if not to_stdout:
        show(results)
    if args.report is not None:
        print(f"the report is in {args.report}", file=sys.stderr)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr, if that is a terminal."""
    console = Screen(stderr=True)
    if not console.is_terminal:
        yield no_progress
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}", style="dim", markup=False),
        progress.BarColumn(bar_width=30),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(done: int, steps: int, what: str) -> None:
            bar.update(task, completed=done, total=steps, description=what)

        yield tell
