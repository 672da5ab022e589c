"""temperance analyse RUN|PRED… -o PAGE: a page of what the papers look at to understand calibration."""

from __future__ import annotations

import argparse
from pathlib import Path

from temperance.cli.output import check_outputs, check_page_name, progress_bar
from temperance.cli.reading import Once, add_reading_options, reading_options


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("analyse", help="draw what is behind a network's confidence, or several side by side")
    parser.add_argument(
        "sources",
        type=Path,
        nargs="+",
        metavar="RUN|PRED",
        help="folders that `temperance train` or `retrain` made, or files of predictions",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PAGE.html", help="where the page goes")
    parser.add_argument(
        "--layer",
        default="vector",
        choices=("temperature", "class-temperature", "vector", "matrix"),
        help="layer to train on the logits, whose losses are traced (vector)",
    )
    parser.add_argument(
        "--objectives",
        action=Once,
        default="nll,label-smoothing,focal,class-scaled",
        metavar="NAMES",
        help="objectives to train it with, comma-separated",
    )
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps of that training (300)")
    parser.add_argument("--points", type=int, default=1500, metavar="N", help="samples on a map of the logits (1500)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the samples that are drawn (0)")
    add_reading_options(parser, "label", "ignore-index")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)
    check_page_name(args.output)

    from temperance.diagnose.analysis import analyse
    from temperance.report import write_report

    with progress_bar() as tell:
        found = analyse(
            *args.sources,
            layer=args.layer,
            objectives=args.objectives,
            steps=args.steps,
            points=args.points,
            seed=args.seed,
            progress=tell,
            **reading_options(args),
        )
    write_report(found, args.output)
    print(f"analysed {', '.join(subject.name for subject in found.subjects)}; the page is in {args.output}")
    for note in found.notes:
        print(note)
