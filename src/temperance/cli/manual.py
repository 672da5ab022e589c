"""What `--help` of each command says besides its options: a description, and examples that the tests parse."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping

MANUAL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "demo": (
        "Compares one or two calibrators of each family on predictions of a ResNet-18 on CIFAR-100 that ship with the "
        "package. It needs no files and takes less than a minute.",
        ("demo", "demo --report demo.html", "demo --methods temperature,auto"),
    ),
    "evaluate": (
        "Measures how far the confidence of predictions can be trusted: the metrics with intervals, and a verdict "
        "in plain words. The file needs scores, called logits or probs, and labels.",
        (
            "evaluate predictions.npz --report report.html",
            "evaluate scores.csv --logits 'logit_*' --label y",
            "evaluate predictions.npz --metrics ece,nll --json",
            "evaluate predictions.parquet --by group",
            "evaluate masks.npz --ignore-index 255",
            "evaluate predictions.npz --weights importance --gap auto",
            "evaluate answers.csv --answers --by group",
        ),
    ),
    "compare": (
        "Fits every calibrator to one part of the predictions, measures all of them on the other, and recommends the "
        "best one if its gain is more than chance would give.",
        (
            "compare predictions.npz -o best.safetensors",
            "compare held-out.csv test.csv --report comparison.html",
            "compare predictions.npz --methods temperature,auto,vector:ridge=0.01",
            "compare --each models/ -o calibrators",
        ),
    ),
    "fit": (
        "Fits one calibrator to held-out predictions and saves it. Do not use the training set: a network is nearly "
        "always right there.",
        (
            "fit auto held-out.npz -o cal.safetensors",
            "fit temperature held-out.csv --objective brier -o cal.safetensors",
            "fit auto long-tailed.npz --prior uniform -o cal.safetensors",
        ),
    ),
    "apply": (
        "Calibrates predictions with a saved calibrator. They need no labels, and everything else in the file is kept; "
        "of a file with val and test sets, one is calibrated and written.",
        (
            "apply cal.safetensors new.npz -o calibrated.npz",
            "apply cal.safetensors predictions/ -o calibrated/",
            "apply cal.safetensors new.csv --prior adapt -o calibrated.csv",
        ),
    ),
    "export": (
        "Writes a saved calibrator as an ONNX file that takes logits (n, k) and gives probs (n, k), for any n. It "
        "needs the extra `onnx`.",
        ("export cal.safetensors", "export cal.safetensors -o cal.onnx --type float64"),
    ),
    "abstain": (
        "Finds the lowest confidence at which predictions can be used, so that their error on new samples stays below "
        "a limit, with a stated probability. The samples must be new to the model and to the calibrator.",
        (
            "abstain test.npz --risk 0.05",
            "abstain test.npz --calibrator cal.safetensors --risk 0.01,0.05 --level 0.99",
            "abstain answers.csv --answers --json rules.json",
        ),
    ),
    "decide": (
        "Takes the decision with the least expected cost for each sample, and measures what that costs before and "
        "after calibration, beside the most probable class and the best single decision for all. Costs are those of a "
        "false alarm and a miss, or a matrix of any true classes and decisions.",
        (
            "decide predictions.npz --false-alarm 1 --miss 10",
            "decide predictions.npz --false-alarm 1 --miss 10 --abstain 0.5 --report decisions.html",
            "decide predictions.csv --costs costs.csv --calibrator cal.safetensors",
            "decide answers.csv --answers --false-alarm 5 --abstain 1",
        ),
    ),
    "ood": (
        "Measures how well confidence tells a model's own data from data that it does not know, for several scores.",
        (
            "ood test.npz elsewhere.npz",
            "ood test.npz noise.npz textures.npz --calibrator cal.safetensors --report ood.html",
        ),
    ),
    "train": (
        "Trains a network on images and leaves a folder with the network, its predictions and a report. The "
        "predictions are what every other command starts from.",
        (
            "train images/ -o run --loss acls:margin=10",
            "train cifar100 --download -o run --network resnet50 --preset cifar",
            "train --config job.toml -o run --resume",
        ),
    ),
    "predict": (
        "Writes the predictions of a trained network for the images of any data set, for every other command. "
        "Labels are left out if DATA has other classes.",
        (
            "predict run new-images/ -o new.npz",
            "predict run cifar10 --download -o elsewhere.npz",
            "predict retrained images.npz --part val -o held-out.npz",
        ),
    ),
    "retrain": (
        "Freezes a network and trains another classifier on its features. A head that is worse on the validation part "
        "is not saved, unless you say --anyway.",
        (
            "retrain run --head mac-cal:preset=kept-accuracy -o retrained",
            "retrain features.npz --head vtst --loss focal:gamma=2 -o retrained",
        ),
    ),
    "shift": (
        "Measures how far the confidence of a trained network holds when its images get worse: noise, blur, weather "
        "and digital faults, at five severities.",
        ("shift run --report shift.html", "shift run --corruptions fog,gaussian-noise --severities 1,3,5"),
    ),
    "analyse": (
        "Draws what is behind a network's confidence: the losses of its classes, its logits and the angles of its "
        "classifier; several networks side by side.",
        ("analyse run -o page.html", "analyse run retrained -o both.html"),
    ),
    "gradients": (
        "Draws what losses do to predictions: how they move the labels, or how much they make a sample count.",
        (
            "gradients label-smoothing mbls acls -o smoothing.html",
            "gradients cross-entropy focal:gamma=2 --figure weights -o weights.html",
        ),
    ),
    "reproduce": (
        "Shows the tables of five papers with our numbers beside theirs, and draws their figures from our predictions. "
        "It needs a source checkout.",
        ("reproduce --list", "reproduce sctl --table 2 --quick", "reproduce cts --figure 1 --quick -o figure.svg"),
    ),
    "list": (
        "Lists every method of a kind, from the registries. With a NAME it explains its settings.",
        ("list calibrators", "list losses acls", "list metrics --json"),
    ),
}


def describe(commands: Mapping[str, argparse.ArgumentParser]) -> None:
    """Give each command its description and its examples."""
    for name, (words, examples) in MANUAL.items():
        command = commands[name]
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.description = textwrap.fill(words, 78)
        command.epilog = "\n  temperance ".join(["examples:", *examples])
