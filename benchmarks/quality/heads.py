"""Train heads on the features of a real network: python -m benchmarks.quality.heads FEATURES --out results.jsonl

FEATURES is a .npz or .safetensors as `temperance.heads.features` writes it, with the network's classifier. One JSON
line for each head and seed: accuracy, NLL and 15-bin ECE on the test part, as the head is and after temperature scaling
on the validation part; the same of the validation part, by which settings may be chosen; the keep rate; the seconds to
train. Lines that are in the file already are not run again, so a stopped run goes on where it was.

    --groups reference,heads     some of the groups below; all by default
    --methods linear,mac-cal     of these groups only the methods named
    --seeds 3                    seeds 0, 1, 2; the reference has none
    --device cuda                where to train
    --table                      print means over seeds as Markdown; with --out alone nothing is trained
"""

import argparse
import hashlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.quality.table import Results, Row, read, table
from temperance.calibrators import make_calibrator
from temperance.heads import make_head
from temperance.heads.features import Features, FeatureSet, read_features
from temperance.metrics import ece
from temperance.registry import parse_entry
from temperance.showing import percent

# MaC-Cal with the width and the γ that were the first to calibrate; readings and choices differ from it.
PAPER = "mac-cal:preset=paper"

DISCOUNTS = ("0.85", "0.9", "0.95")

# Every reading of MaC-Cal's eq. 12: when masks are drawn, how the head is measured and deployed, what q means.
READINGS = [
    "measure=full:deploy=full:q_means=retention",
    "measure=full:deploy=full",
    "q_means=retention",
    "q_means=sparsity",
    "mask_every=epoch:measure=last_mask:deploy=last_mask",
    "mask_every=epoch:measure=last_mask:deploy=last_mask:in_place=true",
    "width=none",
    "measure=training",
]

# The network's own classifier, averaged over masks, with its keep rate moved by eq. 12 on held-out features.
BY_RULE = "mac-cal:preset=kept-accuracy:search=false:adapt=true:acc_discount=auto:measure=mc_masks:epochs=10"

# What is trained, by what it should show: "head:setting=value", after @ the loss if it is not cross-entropy.
GROUPS: dict[str, list[str]] = {
    "heads": ["linear", PAPER, "tst", "tst:preset=mac-cal-paper", "vtst", "vtst:preset=mac-cal-paper", "balcal"],
    "readings": [f"{PAPER}:{reading}:acc_discount={discount}" for reading in READINGS for discount in DISCOUNTS],
    "fixed": [
        *(f"{PAPER}:adapt=false:keep_prob={keep}" for keep in ("0.1", "0.2", "0.3", "0.5", "0.7", "0.9", "1.0")),
        f"{PAPER}:adapt=false:keep_prob=0.5:deploy=full",
        f"{PAPER}:adapt=false:keep_prob=0.5:deploy=last_mask",
        f"{PAPER}:adapt=false:keep_prob=0.5:deploy=mc_masks",
    ],
    "ablation": [
        f"mac-cal:preset={name}"
        for name in (
            "vanilla",
            "masked-retraining",
            "gradient-restriction",
            "classifier-restructure",
            "static-sparsity",
            "motivation",
        )
    ],
    "choices": [
        f"{PAPER}:acc_discount=auto",
        "mac-cal:width=none:acc_discount=auto",
        f"{PAPER}:activation=none:acc_discount=auto",
        f"{PAPER}:width=512:acc_discount=auto",
        f"{PAPER}:mask_layers=first:acc_discount=auto",
        f"{PAPER}:mask_layers=last:acc_discount=auto",
        f"{PAPER}:restrict=update:acc_discount=auto",
        f"{PAPER}:schedule=cosine:acc_discount=auto",
        f"{PAPER}:acc_discount=auto:measure=mc_masks:deploy=mc_masks",
    ],
    "kept": [
        "mac-cal:preset=kept-accuracy",
        f"{BY_RULE}:keep_prob=0.6:lr=0.001",
        *(f"{BY_RULE}:keep_prob={keep}:lr=0.001" for keep in ("0.5", "0.7", "0.8")),
        *(f"{BY_RULE}:keep_prob=0.6:lr={lr}" for lr in ("0.0", "0.01", "0.1")),
        *(f"{BY_RULE}:keep_prob=0.6:lr=0.001:n_masks={masks}" for masks in ("10", "30", "300")),
        f"{BY_RULE}:keep_prob=0.6:lr=0.001:measure=scaled:deploy=scaled",
    ],
    "losses": [
        f"{PAPER}@{loss}"
        for loss in (
            "focal:gamma=3",
            "label-smoothing",
            "brier",
            "dual-focal",
            "mmce:strength=2.0:form=weighted",
            "mbls",
        )
    ],
}


def scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    log_probs = logits.double().log_softmax(1)
    return {
        "accuracy": float((log_probs.argmax(1) == labels).double().mean()),
        "nll": float(F.nll_loss(log_probs, labels)),
        "ece": float(ece(log_probs.exp(), labels)),
        "confidence": float(log_probs.amax(1).exp().mean()),
    }


def measured(val: FeatureSet, test: FeatureSet, val_logits: Tensor, test_logits: Tensor) -> dict[str, float]:
    """The test part, the test part after temperature scaling on the validation part, and that part itself."""
    scaled = make_calibrator("temperature").fit(val_logits, val.labels)
    found = scores(test_logits, test.labels)
    found |= {f"{name}_scaled": value for name, value in scores(scaled(test_logits), test.labels).items()}
    found |= {f"val_{name}": value for name, value in scores(val_logits, val.labels).items()}
    return {name: round(value, 6) for name, value in found.items() if name != "accuracy_scaled"}


def reference(features: Features, val: FeatureSet, test: FeatureSet) -> Iterator[Row]:
    """The network as it is, and with temperature scaling: what a head must beat."""
    if features.classifier is None:
        return
    before = F.linear(val.features, *features.classifier), F.linear(test.features, *features.classifier)
    yield {"method": "the network", **measured(val, test, *before)}
    scaled = make_calibrator("temperature").fit(before[0], val.labels)
    yield {"method": "the network, temperature scaled", **measured(val, test, *(scaled(logits) for logits in before))}


def trained(text: str, seed: int, features: Features, val: FeatureSet, test: FeatureSet) -> Row:
    entry, _, loss = text.partition("@")
    name, settings = parse_entry(entry)
    head = make_head(name, **settings)
    start = time.perf_counter()
    head.fit(features, loss=loss or "cross-entropy", seed=seed)
    if features.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    found: Row = {"seconds": round(seconds, 2)} | measured(val, test, head(val.features), head(test.features))
    if "keep_rate" in head.info:
        found["keep_rate"] = round(head.info["keep_rate"], 4)
    return found


def run(path: Path, out: Path, groups: list[str], methods: list[str], seeds: int, device: str) -> None:
    """Train what is not in the file yet."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    features = read_features(path).to(device)
    val, test = features.val, features.test
    if val is None or test is None:
        raise SystemExit(f"{path} must have features of a validation and a test part")
    results = Results(out)
    place = torch.cuda.get_device_name() if features.device.type == "cuda" else "cpu"

    def write(group: str, row: Row) -> None:
        machine = {"device": place, "threads": torch.get_num_threads(), "load": round(os.getloadavg()[0], 1)}
        row = {"features": digest, "group": group, **row, **machine}
        results.add(row)
        print(
            f"{row['method']}  seed {row.get('seed')}  accuracy {percent(row['accuracy'])}  NLL {row['nll']:.4f}  ",
            end="",
        )
        print(f"ECE {percent(row['ece'])}  keep rate {row.get('keep_rate')}  {row.get('seconds', 0)} s", flush=True)

    if "reference" in groups:
        for row in reference(features, val, test):
            if {"features": digest, "method": row["method"]} not in results:
                write("reference", row)
    for seed in range(seeds):
        for group in groups:
            for text in GROUPS.get(group, []):
                row = {"method": text, "seed": seed}
                if {"features": digest, **row} not in results and (not methods or text in methods):
                    write(group, row | trained(text, seed, features, val, test))


def markdown(rows: list[Row]) -> str:
    """Means over seeds, in the order of the groups; of each network its own columns, that with most rows first."""
    networks = sorted({row["features"] for row in rows}, key=lambda digest: -sum(r["features"] == digest for r in rows))
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: ORDER.get(row["method"], -1)):
        found[row["method"]][row["features"]].append(row)
    columns = ["keep rate", "accuracy", "NLL", "ECE", "ECE, temperature scaled"]
    titles = [f"{column} ({number + 1})" for number in range(len(networks)) for column in columns]
    lines = [
        [method, *(cell for network in networks for cell in _cells(of_network[network]))]
        for method, of_network in found.items()
    ]
    return table(["method", *titles], lines)


ORDER = {text: number for number, text in enumerate(text for group in GROUPS.values() for text in group)}


def _cells(rows: list[Row]) -> list[str]:
    """What the table says of one method on one network."""
    if not rows:
        return [""] * 5
    keys = ("keep_rate", "accuracy", "nll", "ece", "ece_scaled")
    mean = {key: math.fsum(row.get(key, math.nan) for row in rows) / len(rows) for key in keys}
    spread = f" ± {100 * torch.tensor([row['ece'] for row in rows]).std():.2f}" if len(rows) > 1 else ""
    return [
        "" if math.isnan(mean["keep_rate"]) else f"{mean['keep_rate']:.2f}",
        percent(mean["accuracy"]),
        f"{mean['nll']:.4f}",
        f"{percent(mean['ece'])}{spread}",
        percent(mean["ece_scaled"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--groups", default=",".join(["reference", *GROUPS]))
    parser.add_argument("--methods", default="")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.features is not None:
        methods = [text for text in args.methods.split(",") if text]
        run(args.features, args.out, args.groups.split(","), methods, args.seeds, args.device)
    if args.table:
        print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
