"""Train a ResNet-18 on CIFAR-100 and write the predictions that ship with temperance as its demo.

    python scripts/train_demo.py cifar100 src/temperance/demo/cifar100_resnet18.npz --run run

The claim: on one H200 GPU with torch 2.11.0, ResNet-18 (CIFAR variant: 3x3 stem, no max-pool, 64-128-256-512) trained
on 45,000 of the 50,000 training images, seed 0, takes 1.11 s an epoch (the median of 100; the first one compiles
and takes longer) and reaches 75.18 % test accuracy with a 15-bin test ECE of 9.27 %: one run, as recorded in the
.json beside the predictions. ResNet-50 takes 2.78 s an epoch (--network resnet50 --epochs 5).

The recipe is the usual one and nothing in it is tuned for calibration, because the demo should show the overconfidence
that a plain recipe gives: cross-entropy, SGD 0.1 with momentum 0.9, weight decay 5e-4, batch 128, 100 epochs, learning
rate divided by 10 at 43 % and 71 % of them, random 4-pixel crops and horizontal flips.

The last epoch's weights are kept. The 5,000 validation images are never trained on and never used to choose anything,
so a calibrator may be fitted on them.

DATA   what `temperance train` takes: the official files, an .npz, or a name
OUT    an .npz with val_logits (5000, 100) float16, val_labels uint8, test_logits (10000, 100) float16, test_labels
       uint8, class_names (100,) str; and a .json of the same name that says where it came from.
RUN    the folder for checkpoints and the log; its features.safetensors, with --features, is what heads are trained on.

A seed fixes the initialisation, the split, the order of the images and their augmentation, but does not promise the
same bits twice on a GPU: cuDNN picks its kernels by timing them. Expect a rerun to come close, not to match.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from temperance.heads.features import extract_features, write_features
from temperance.predictions import Predictions
from temperance.training import Job, open_run
from temperance.training.run import headline


def stored(predictions: Predictions) -> Predictions:
    """The predictions in half precision, unless ties between classes would change the accuracy noticeably."""
    half = predictions.scores.half()
    found = Predictions.of(half, predictions.labels, from_logits=True, class_names=predictions.class_names)
    drift = abs(headline(found)["accuracy"] - headline(predictions)["accuracy"])
    if drift > 0.001:
        raise SystemExit(f"storing float16 moved the accuracy by {100 * drift:.2f} points")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--run", type=Path, required=True, help="folder for checkpoints and the log")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--loss", default="cross-entropy")
    parser.add_argument("--mix")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--features", action="store_true", help="also extract the features of all images")
    args = parser.parse_args()

    fast = {"compile": True, "precision": "bfloat16"} if args.device.startswith("cuda") else {}
    job = Job.of(
        data=args.data,
        network=args.network,
        loss=args.loss,
        epochs=args.epochs,
        seed=args.seed,
        **({"mix": args.mix} if args.mix else {}),
        **fast,
    )
    run = job.run(args.run, device=args.device)
    parts = {name: stored(found) for name, found in run.predictions.items()}
    arrays = {}
    for name, found in parts.items():
        arrays |= {f"{name}_logits": found.scores.numpy(), f"{name}_labels": found.labels.numpy().astype(np.uint8)}

    about = {
        "network": args.network,
        "dataset": "CIFAR-100, fine labels",
        "split": "numpy.random.default_rng(0).permutation(50000) of the training images: the first 45000 train, the "
        "last 5000 validate",
        "loss": args.loss,
        "seed": args.seed,
        "epochs": args.epochs,
        "hardware": f"one {torch.cuda.get_device_name().removeprefix('NVIDIA ')} GPU" if fast else "CPU",
        "torch": torch.__version__,
        "seconds_per_epoch": round(float(np.median([row["seconds"] for row in run.history])), 3),
        **{
            name: {metric: round(value, 6) for metric, value in headline(found).items()}
            for name, found in parts.items()
        },
        "made_by": "scripts/train_demo.py",
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **arrays, class_names=np.array(parts["test"].class_names))
    args.out.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")
    print(json.dumps(about, indent=2))
    if args.features:
        trained, images = open_run(args.run, device=args.device)
        write_features(args.run / "features.safetensors", extract_features(trained.network, images, device=args.device))


if __name__ == "__main__":
    main()
