"""temperance retrain RUN|FEATURES --head NAME -o OUT: train the classifier again on frozen features."""

from __future__ import annotations

import argparse
from pathlib import Path

from temperance.cli.output import progress_bar
from temperance.cli.terminal import show
from temperance.cli.train import best_device, lines_now_and_then
from temperance.errors import TemperanceError
from temperance.settings import CountOrZero, ResamplesOrNone, Seed, of_kind


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("retrain", help="train a network's classifier again, with a head that calibrates")
    parser.add_argument(
        "source", type=Path, metavar="RUN", help="folder that `temperance train` made, or a file of features"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help="folder for everything it makes"
    )
    parser.add_argument(
        "--head",
        default="mac-cal",
        metavar="NAME",
        help="as `temperance list heads` shows, with :setting=value (mac-cal)",
    )
    parser.add_argument("--loss", default="cross-entropy", metavar="NAME", help="as `temperance list losses` shows")
    parser.add_argument("--data", metavar="DATA", help="where the images of the run are now, if they have moved")
    parser.add_argument(
        "--copies", type=int, default=0, metavar="N", help="also train on N cropped and flipped copies (0)"
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, … (a GPU if there is one)")
    parser.add_argument(
        "--bootstrap", type=int, default=500, metavar="N", help="resamples for intervals (500; 0: none)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights, order and masks (0)")
    parser.add_argument(
        "--anyway", action="store_true", help="save the head even if it is worse on the validation part"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from temperance.heads import make_head
    from temperance.heads.retraining import WHAT_TO_DO, check_unused, features_from, retrain, write_retrained
    from temperance.report import write_report
    from temperance.training.criterion import as_loss

    head = make_head(args.head)
    # Wrong options are refused before any data is read.
    as_loss(args.loss, n_samples=1)
    of_kind("bootstrap", args.bootstrap, ResamplesOrNone)
    of_kind("copies", args.copies, CountOrZero)
    of_kind("seed", args.seed, Seed)
    check_unused(args.output)
    device = args.device or best_device()
    with progress_bar() as bar:
        tell = lines_now_and_then(bar)
        tell(0, 1, "features")
        features = features_from(args.source, data=args.data, device=device, copies=args.copies)
        found = retrain(features, head, loss=args.loss, seed=args.seed, bootstrap=args.bootstrap, progress=tell)
    deployed = write_retrained(found, args.output, source=args.source, data=args.data, anyway=args.anyway)
    write_report(found, args.output / "report.html")
    show(found)
    if not deployed:
        print(f"its log, predictions and report are in {args.output}")
        raise TemperanceError(f"the head was not saved, because it is worse on the validation part: {WHAT_TO_DO}")
    print(f"the head, its log, predictions and report are in {args.output}")
    print(f"next: temperance compare {args.output / 'predictions.npz'}")
