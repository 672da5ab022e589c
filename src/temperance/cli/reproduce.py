"""temperance reproduce PAPER: the tables and figures of the five papers, their numbers beside ours."""

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

from temperance.cli.output import check_outputs
from temperance.cli.terminal import show
from temperance.errors import FileError, InputError, unknown_name

# The root of a source checkout, the folder that holds src/temperance.
ROOT = Path(__file__).resolve().parents[3]
KEPT = "Nothing was measured now: these numbers come from benchmarks/results."
ROMAN = {"1": "i", "2": "ii", "3": "iii", "4": "iv", "5": "v", "6": "vi"}
NAMES = ("sctl", "cts", "acls", "selective-risk", "mac-cal")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("reproduce", help="show the tables of the papers beside our numbers")
    parser.add_argument("paper", nargs="?", metavar="PAPER", help=f"one of {', '.join(NAMES)}")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--table", metavar="N", help="only this table; S1 is Table 1 of a supplement")
    one.add_argument("--figure", metavar="N", help="only this figure; -o draws it")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where the picture goes: FILE.svg or FILE.html"
    )
    parser.add_argument("--list", action="store_true", help="list every table and figure with its state; run nothing")
    parser.add_argument("--quick", action="store_true", help="show the stored numbers; measure nothing")
    parser.add_argument("--data", metavar="FOLDER", help="the folder of real predictions; by default ../shared/data")
    parser.add_argument(
        "--predictions", metavar="FOLDER", help="what benchmarks/papers/queue.py left; by default ../predictions"
    )
    parser.add_argument(
        "--save", action="store_true", help="store what was measured in the checkout's benchmarks/results"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if args.paper is not None and args.paper not in NAMES:
        raise unknown_name("paper", args.paper, NAMES)
    outputs = _outputs()
    wanted = f"table {args.table}" if args.table else f"figure {args.figure}" if args.figure else ""
    if wanted and args.paper is None:
        raise InputError(f"name a paper: temperance reproduce PAPER, where PAPER is one of {', '.join(NAMES)}")
    _check_flags(args)
    if args.paper is None or args.list:
        for paper in [args.paper] if args.paper else NAMES:
            show(Text(f"\n{paper}: {outputs.PAPERS[paper]}\n"))
            show(_states(_chosen(outputs.outputs_of(paper), wanted)))
        return
    for output in _chosen(outputs.outputs_of(args.paper), wanted):
        if output.cells is None and not wanted:
            continue
        if args.output is not None and output.figure is None:
            raise InputError(f"nothing draws {output.name} of {args.paper} ({output.how}): leave out -o")
        folder = _folder(outputs, args, output)
        show(Text(f"\n{args.paper}, {output.name}: {output.about}\n{output.state}: {output.how}\n"))
        if output.figure is not None:
            _draw(outputs, args, output, folder)
        elif output.cells is not None:
            _reproduce(outputs, args, output, folder)


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that would do nothing, and a picture that cannot be made or written, before anything is measured."""
    if args.save and (args.quick or args.list):
        raise InputError(f"{'--quick' if args.quick else '--list'} measures nothing that --save could store")
    if args.output is None:
        return
    if args.list:
        raise InputError("--list draws nothing: leave out --list or -o")
    if not args.figure:
        raise InputError("a picture is of one figure: name it with --figure N")
    if args.output.suffix.lower() not in (".svg", ".html", ".htm"):
        raise InputError(f"a figure is drawn as SVG or HTML; call it {args.output.with_suffix('.svg')}")
    check_outputs(args)


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
    kind, _, number = wanted.lower().partition(" ")
    same = {"", wanted.lower(), f"{kind} {ROMAN.get(number, number)}"}  # table 2 is also table II, where papers say so
    found = [output for output in outputs if output.name.lower() in same or not wanted]
    if not found:
        raise InputError(f"there is no {wanted}; there are {', '.join(output.name for output in outputs)}")
    return found


def _states(outputs: list[Any]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for title in ("output", "state", "what it shows", "what was done, or why not"):
        table.add_column(title, no_wrap=title in ("output", "state"))
    for output in outputs:
        drawn = "; -o FILE.svg draws it" if output.figure is not None else ""
        table.add_row(output.name, output.state, output.about, f"{output.how}{drawn}")
    return table


def _folder(outputs: Any, args: argparse.Namespace, output: Any) -> Path | None:
    """The folder with all predictions that an output measures; None if nothing is to be measured."""
    figure = output.figure
    files = figure.files if figure else output.data
    if args.quick or not files:
        return None
    trained = bool(figure and figure.trained)
    given, usual = (args.predictions, outputs.PREDICTIONS) if trained else (args.data, outputs.DATA)
    folder = Path(given) if given else usual
    missing = [name for name in files if not any(folder.glob(name))]
    if missing:
        what, flag = ("trained networks", "--predictions") if trained else ("real predictions", "--data")
        raise FileError(
            f"{args.paper}, {output.name} needs {missing[0]} in the folder of {what}, {folder}; "
            f"name that folder with {flag} FOLDER, or see the stored numbers with --quick"
        )
    return folder


def _draw(outputs: Any, args: argparse.Namespace, output: Any, folder: Path | None) -> None:
    """Say what a figure shows, from numbers that are measured now or stored, and draw it if asked to."""
    start = time.perf_counter()
    kept = bool(output.figure.files)
    if folder is not None or not kept:
        numbers = output.figure.measure(folder or Path())
    else:
        numbers = outputs.stored_numbers(args.paper, output.name)
    if numbers is None:
        raise FileError(f"{args.paper}, {output.name} has no stored numbers; leave out --quick to measure it")
    drawing = output.figure.draw(numbers)
    show(Text(drawing.says if folder is not None else f"{drawing.says} {KEPT}"))
    if args.output is None:
        show(Text("Draw it with -o FILE.svg or -o FILE.html."))
    else:
        _write(drawing, args.output, output, f"{args.paper}, {output.name}")
        show(Text(f"The picture is in {args.output}."))
    if args.save and folder is not None:
        outputs.store_numbers(args.paper, output.name, numbers, time.perf_counter() - start)


def _write(drawing: Any, path: Path, output: Any, title: str) -> None:
    from temperance.files import write_text
    from temperance.markup import tag
    from temperance.report.page import heading, page, pair
    from temperance.report.svg.lines import line_legend
    from temperance.report.svg.sheet import sheet

    if path.suffix.lower() == ".svg":
        write_text(path, sheet(drawing.pictures, legend=drawing.legend, columns=drawing.columns))
        return
    figures = pair(*((tag("b", caption), picture) for caption, picture in drawing.pictures))
    section = tag("section", tag("p", drawing.says), line_legend(drawing.legend), figures)
    about = heading("A figure of a paper, drawn again", output.about[0].upper() + output.about[1:], [title, output.how])
    write_text(path, page(title, about, section))


def _reproduce(outputs: Any, args: argparse.Namespace, output: Any, folder: Path | None) -> None:
    """Print one table with the paper's numbers, measured now or stored in the checkout."""
    start = time.perf_counter()
    if folder is not None or not output.data:
        cells = list(output.cells(folder or Path()))
    else:
        cells = outputs.stored(args.paper, output.name)
    if not cells:
        raise FileError(f"{args.paper}, {output.name} has no stored numbers; leave out --quick to measure it")
    shown = cells + (list(output.beside()) if output.beside else [])
    head, lines = outputs.grid(shown)
    table = Table(show_edge=False, pad_edge=False)
    for title in head:
        table.add_column(title, no_wrap=True, justify="left" if title in (outputs.COLUMN, "method") else "right")
    for line in lines:
        table.add_row(*line)
    show(table)
    said = ["Numbers are percent."]
    if folder is None:
        said.append(KEPT)
    if any(cell.exact for cell in shown):
        said.append(outputs.agreement(cells))
    if any(not math.isnan(cell.low) for cell in shown):
        said.append("In brackets, 95 % intervals. On data where some methods were trained three times or more, they")
        said.append("are over trainings, with one spread for all methods. Elsewhere they are over test samples, and")
        said.append("another training may differ by more.")
    show(Text("\n" + " ".join(said)))
    if args.save and folder is not None:
        outputs.store(args.paper, output.name, cells, time.perf_counter() - start)
