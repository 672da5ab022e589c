"""temperance reproduce PAPER: the tables of the five papers, their numbers beside ours."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import time
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from temperance.cli.terminal import show
from temperance.errors import FileError, InputError

# The folder that has src/temperance in it, in a source checkout.
ROOT = Path(__file__).resolve().parents[3]
NAMES = ("sctl", "cts", "acls", "selective-risk", "mac-cal")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("reproduce", help="the tables of the papers, their numbers beside ours")
    parser.add_argument("paper", nargs="?", choices=NAMES, metavar="PAPER", help=f"one of {', '.join(NAMES)}")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--table", metavar="N", help="only this table; S1 is Table 1 of a supplement")
    one.add_argument("--figure", metavar="N", help="only this figure")
    parser.add_argument("--list", action="store_true", help="every table and figure with its state; run nothing")
    parser.add_argument("--quick", action="store_true", help="show the numbers that were kept; measure nothing")
    parser.add_argument("--data", metavar="FOLDER", help="the folder of real predictions; by default ../shared/data")
    parser.add_argument(
        "--save", action="store_true", help="keep what was measured in the checkout's benchmarks/results"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    outputs = _outputs()
    wanted = f"table {args.table}" if args.table else f"figure {args.figure}" if args.figure else ""
    if wanted and args.paper is None:
        raise InputError(f"say of which paper: temperance reproduce PAPER, where PAPER is one of {', '.join(NAMES)}")
    if args.paper is None or args.list:
        for paper in [args.paper] if args.paper else NAMES:
            show(Text(f"\n{paper}: {outputs.PAPERS[paper]}\n"))
            show(_states(_chosen(outputs.outputs_of(paper), wanted)))
        return
    data = Path(args.data) if args.data else outputs.DATA
    for output in _chosen(outputs.outputs_of(args.paper), wanted):
        if output.cells is None and not wanted:
            continue
        _reproduce(outputs, args, output, data)


def _outputs() -> Any:
    """The list of tables and figures, which is part of a source checkout and not of the installed package."""
    if not (ROOT / "benchmarks" / "papers" / "outputs.py").is_file():
        raise FileError(
            "temperance reproduce needs a source checkout, where benchmarks/papers has the tables and the results; "
            "get one and install it with: pip install --editable ."
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module("benchmarks.papers.outputs")


def _chosen(outputs: list[Any], wanted: str) -> list[Any]:
    found = [output for output in outputs if wanted.lower() in ("", output.name.lower())]
    if not found:
        raise InputError(f"there is no {wanted}; there are {', '.join(output.name for output in outputs)}")
    return found


def _states(outputs: list[Any]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for title in ("output", "state", "what it shows", "what was done, or why not"):
        table.add_column(title, no_wrap=title in ("output", "state"))
    for output in outputs:
        table.add_row(output.name, output.state, output.about, output.how)
    return table


def _reproduce(outputs: Any, args: argparse.Namespace, output: Any, data: Path) -> None:
    """Print one table with the paper's numbers, measured now or kept in the checkout."""
    show(Text(f"\n{args.paper}, {output.name}: {output.about}\n{output.state}: {output.how}\n"))
    if output.cells is None:
        return
    start = time.perf_counter()
    measure = bool(output.data) and not args.quick
    missing = [name for name in output.data if measure and not (data / name).exists()]
    if missing:
        raise FileError(
            f"{args.paper}, {output.name} needs {missing[0]} in the folder of real predictions, {data}; "
            "name that folder with --data FOLDER, or see the numbers that were kept with --quick"
        )
    cells = list(output.cells(data)) if measure or not output.data else outputs.stored(args.paper, output.name)
    if not cells:
        raise FileError(f"{args.paper}, {output.name} was never measured and kept; leave out --quick to measure it")
    exact = output.state == "exact"
    head, lines = outputs.grid(cells, differences=exact)
    table = Table(show_edge=False, pad_edge=False)
    for title in head:
        table.add_column(title, no_wrap=True, justify="left" if title in (outputs.COLUMN, "method") else "right")
    for line in lines:
        table.add_row(*line)
    show(table)
    said = ["Numbers are percent."]
    if exact:
        said.append(outputs.agreement(cells))
    if any(not math.isnan(cell.low) for cell in cells):
        said.append("In brackets, 95 % intervals: over trainings where a number is the mean of three or more.")
        said.append("Elsewhere they are over test samples, and another training may differ by more.")
    show(Text("\n" + " ".join(said)))
    if args.save and measure:
        outputs.store(args.paper, output.name, cells, time.perf_counter() - start)
