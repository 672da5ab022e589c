"""temperance predict RUN DATA -o FILE: the predictions of a trained network for the images of any data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from temperance.cli.output import check_outputs, progress_bar
from temperance.cli.train import best_device
from temperance.errors import InputError


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("predict", help="write the predictions of a trained network for other images")
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder that `temperance train` or `retrain` made")
    parser.add_argument("data", metavar="DATA", help="images as for `temperance train`")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="where predictions go: .npz, .csv or .parquet"
    )
    parser.add_argument("--part", choices=("train", "val", "test"), default="test", help="which images of DATA (test)")
    parser.add_argument("--head", type=Path, metavar="HEAD", help="predict with a head that `retrain` saved")
    parser.add_argument("--size", type=int, metavar="PIXELS", help="height and width of images (as in training)")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, … (a GPU if there is one)")
    parser.add_argument("--download", action="store_true", help="fetch a named data set if it is not there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)

    from temperance.heads import load_head
    from temperance.heads.retraining import is_retrained, origin_of
    from temperance.heads.splitting import split
    from temperance.predictions import Predictions, write_predictions
    from temperance.training import open_network, predict, read_for

    folder, head = args.folder, args.head
    if is_retrained(folder):
        if head is not None:
            raise InputError(f"{folder} has a head of its own: leave out --head, or name the run that it came from")
        folder, head = origin_of(folder)
    with progress_bar() as tell:
        data = read_for(folder, args.data, size=args.size, download=args.download, progress=tell)
        part = getattr(data, args.part)
        found = open_network(folder, part.shape, device=args.device or best_device())
        network = found.network
        if head is not None:
            network = split(network).joined(load_head(head))
        logits = predict(network, part, mean=found.mean, std=found.std).cpu()
    names = found.predictions["test"].class_names
    same = logits.shape[1] == data.k and names in (None, tuple(data.class_names))
    labels = part.labels.cpu() if same else None
    write_predictions(args.output, Predictions.of(logits, labels, from_logits=True, class_names=names))
    print(f"predicted {len(part):,} {args.part} images of {data.name}; the predictions are in {args.output}")
    if same:
        print(f"next: temperance evaluate {args.output}")
    else:
        print(f"its classes are not those of {args.folder}, so the labels are left out")
        print(f"next: temperance ood {folder / 'predictions.npz'} {args.output}")
