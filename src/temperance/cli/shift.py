"""temperance shift RUN: how a network's calibration holds up when its images get worse."""

from __future__ import annotations

import argparse
from pathlib import Path

from temperance.cli.output import add_output_options, check_outputs, emit, progress_bar
from temperance.cli.reading import Once
from temperance.cli.train import best_device
from temperance.errors import InputError
from temperance.settings import Count, of_kind


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("shift", help="measure calibration on corrupted images")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder that `temperance train` or `retrain` made")
    parser.add_argument("--data", metavar="DATA", help="where the images of the run are now, if they have moved")
    parser.add_argument("--head", type=Path, metavar="HEAD", help="measure with a head that `retrain` saved")
    parser.add_argument("--calibrator", type=Path, metavar="CAL", help="also measure with a saved calibrator applied")
    parser.add_argument(
        "--corruptions",
        action=Once,
        default="",
        metavar="NAMES",
        help="comma-separated: fog, gaussian-noise, … (the fifteen of the benchmark)",
    )
    parser.add_argument("--severities", action=Once, default="1,2,3,4,5", metavar="N,N", help="from 1 to 5 (all)")
    parser.add_argument("--limit", type=int, metavar="N", help="measure on N test images, drawn at random")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, … (a GPU if there is one)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the corruptions (0)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)

    from temperance.calibrators import load_calibrator
    from temperance.diagnose.shift import some_of, under_shift
    from temperance.heads.retraining import is_retrained, open_retrained
    from temperance.training import open_run

    severities = _whole_numbers(args.severities)
    if args.limit is not None:
        of_kind("limit", args.limit, Count)
    calibrator = load_calibrator(args.calibrator) if args.calibrator else None
    opened = open_retrained if is_retrained(args.folder) else open_run
    found, data = opened(args.folder, data=args.data, device=args.device or best_device())
    network = found.network
    if args.head:
        from temperance.heads import load_head
        from temperance.heads.splitting import split

        network = split(network).joined(load_head(args.head))
    with progress_bar() as tell:
        measured = under_shift(
            network,
            data.test if args.limit is None else some_of(data.test, args.limit, seed=args.seed),
            mean=found.mean,
            std=found.std,
            corruptions=args.corruptions,
            severities=severities,
            seed=args.seed,
            calibrator=calibrator,
            name=args.folder.resolve().name,
            progress=tell,
        )
    emit(measured, args)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--severities must be whole numbers with commas, such as 1,3,5; got {text!r}") from None
