"""A page of every kind, from small results that are hard to show: long names, many classes, far-off methods."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conftest import random_predictions
from temperance.diagnose.analysis import Analysis, Embedding, Subject, angles_between
from temperance.diagnose.gradient import against_probability, probe, smoothed_distribution, sweep
from temperance.diagnose.shift import MEAN, MEASURED, Shift
from temperance.diagnose.traces import posthoc_trace
from temperance.heads import make_head
from temperance.heads.change import differences
from temperance.heads.masked import MaskedInference
from temperance.heads.retraining import OWN, Retrained
from temperance.jobs.abstention import abstain
from temperance.jobs.comparison import Comparison, compare
from temperance.jobs.decisions import decide
from temperance.jobs.evaluation import Evaluation, evaluate
from temperance.jobs.ood import compare_ood
from temperance.jobs.results import Provenance, Row
from temperance.jobs.several import compare_each, evaluate_each
from temperance.metrics import ece
from temperance.metrics.bins import Bins
from temperance.predictions import Predictions
from temperance.report.pages.abstention import abstention_page
from temperance.report.pages.analysis import analysis_page
from temperance.report.pages.comparison import comparison_page
from temperance.report.pages.decisions import decisions_page
from temperance.report.pages.evaluation import evaluation_page
from temperance.report.pages.gradients import distribution_page, smoothing_page, weights_page
from temperance.report.pages.ood import ood_page
from temperance.report.pages.several import comparisons_page, evaluations_page
from temperance.report.pages.shift import shift_page
from temperance.report.pages.training import retraining_page, run_page
from temperance.training.run import Run

NAMES = (
    "cat",
    "a class whose name is a whole sentence, as those of ImageNet are",
    "n02123045_Felis_catus_with_no_space_to_break_at_all_in_its_name",
    "<script>alert(1)</script>",
    "日本語の名前",
)
GROUPS = ("north", "a group with a long name, which also has to fit", "n02123045_Felis_catus_without_a_space", "x")
LONG_PATH = "a/folder/predictions_of_the_large_network_after_the_second_round_of_training_on_everything.npz"


def predictions(n: int = 240, seed: int = 0, sharpness: float = 3.0, **more: Any) -> Predictions:
    logits, labels = random_predictions(n, len(NAMES), seed, sharpness)
    found = Predictions.of(logits, labels, from_logits=True, class_names=NAMES, **more)
    return dataclasses.replace(found, source=LONG_PATH)


def evaluation(**more: Any) -> Evaluation:
    return evaluate(predictions(**more), bootstrap=20)


def comparison() -> Comparison:
    methods = ["temperature", "vector", "platt", "beta", "meta-mis:alpha=0.6", "meta-acc:accuracy=0.01"]
    return compare(predictions(400), methods=methods, bootstrap=20)


def several() -> dict[str, Predictions | str]:
    """Sets with names long and short, one of which is not there."""
    names = (LONG_PATH, "b.npz", NAMES[2], "d.npz", "e.npz")
    found: dict[str, Predictions | str] = {name: predictions(seed=i) for i, name in enumerate(names)}
    return found | {"missing.npz": "there/is/no/such/folder/missing.npz"}


def many_classes(found: Evaluation, k: int = 32_000, seed: int = 0) -> Evaluation:
    """The same evaluation with a statistic of k classes, most of which are never the label."""
    generator = torch.Generator().manual_seed(seed)
    expected = torch.rand(k, 15, generator=generator, dtype=torch.float64) ** 8
    hits = (torch.rand(k, 15, generator=generator) < expected).long()
    names = tuple(f"a class with a rather long name, number {j}" for j in range(k))
    changed = dataclasses.replace(found, class_names=names)
    vars(changed)["classwise"] = Bins(torch.full((k, 15), 5), expected, hits)  # measured when it is first asked for
    return changed


def history(epochs: int) -> list[dict[str, Any]]:
    columns = ("loss", "accuracy", "val_loss", "val_nll", "val_accuracy", "val_ece", "confidence", "val_confidence")
    rows = []
    for epoch in range(1, epochs + 1):
        row = {name: 0.5 + 0.4 * math.cos(epoch / (i + 2)) for i, name in enumerate(columns)}
        rows.append({"epoch": epoch, "lr": 0.1 / epoch, "keep_rate": 0.3, "seconds": 2.0, **row})
    return rows


def shift() -> Shift:
    corruptions = ("gaussian-noise", "elastic-transform", "jpeg-compression", "fog", "motion-blur")
    methods = ("uncalibrated", "ensemble-temperature")
    severities = (1, 2, 3, 4, 5)
    rows = []
    for m, method in enumerate(methods):
        for metric in MEASURED:
            values = {"": 0.04}
            for severity in severities:
                for c, name in enumerate(corruptions):
                    values[f"{name}:{severity}"] = min(0.04 + 0.05 * severity * (c + 1) / (m + 1), 1.0)
                values[f"{MEAN}:{severity}"] = 0.04 + 0.15 * severity / (m + 1)
            for group, value in values.items():
                rows.append(Row("net", "test", group, method, {}, metric, value, math.nan, math.nan, 90, 0.0))
    provenance = Provenance.of({}, {"name": LONG_PATH, "n": 90}, 0)
    return Shift(tuple(rows), provenance, corruptions, severities, methods, {})


def run() -> tuple[Run, Evaluation, Provenance]:
    parts = {"val": predictions(seed=0), "test": predictions(seed=1)}
    job = {"network": "resnet18", "data": LONG_PATH, "loss": "focal:gamma=3", "clip": None, "drops": [60, 80]}
    found = Run(torch.nn.Linear(2, 2), (0.5,), (0.2,), history(12), parts, None, {"job": job})
    measured = evaluate(parts["test"], bootstrap=20)
    return found, measured, measured.provenance


def retrained() -> Retrained:
    before, after = predictions(seed=1), predictions(seed=1, sharpness=1.5)
    old, new = (evaluate(side, bootstrap=20) for side in (before, after))
    by = differences(before, after, bootstrap=20, seed=0)
    parts = {"val": after, "test": after}
    head = make_head("mac-cal")
    head.history, head.seconds = history(12), 2.0
    return Retrained(old, new, OWN, by, head, parts, by, Provenance.of({}, {}, 3))


def analysis() -> Analysis:
    generator = torch.Generator().manual_seed(0)
    test = predictions(seed=1)
    masked = tuple(MaskedInference(ratio / 10, 0.9 - ratio / 30, 0.95 - ratio / 12, (1,)) for ratio in range(10))
    subjects = (
        Subject("resnet18-focal-long-name", None, test, history(12), None, masked),
        Subject("retrained", None, test, [{"epoch": e, "loss": 1 / e, "keep_rate": 0.5} for e in (1, 2, 3)]),
    )
    bins = {}
    for subject, scale in zip(subjects, (1.0, 0.3), strict=True):
        bins[subject.name] = ece.stats(scale * test.scores, test.labels, from_logits=True)
    k = len(NAMES)
    angles = {
        "resnet18-focal-long-name: classifier weights": angles_between(torch.randn(k, 9, generator=generator)),
        "retrained: mean logits": angles_between(torch.randn(k, 9, generator=generator)),
    }
    points = Embedding(
        torch.randn(80, 2, generator=generator),
        torch.randint(k, (80,), generator=generator),
        torch.rand(80, generator=generator),
        torch.arange(80),
    )
    data = (test.scores, test.labels)
    objectives = ("nll", "label-smoothing", "focal", "class-scaled")
    traces = tuple(posthoc_trace(*data, objective=name, steps=9) for name in objectives)
    toy = posthoc_trace(*data, worst_classes=3, steps=30)
    maps = {subject.name: points for subject in subjects}
    return Analysis(subjects, bins, angles, maps, traces, toy, ("There is no map of something: it failed.",), 0)  # type: ignore[arg-type]


def smoothing() -> str:
    names = ("label-smoothing", "focal", "cpc", "mdca", "mbls", "acls", "focal:gamma=1.5", "mbls:margin=3.0")
    losses = {name: probe(name) for name in names}
    sweeps = {name: (sweep(loss, "top"), sweep(loss, "other")) for name, loss in losses.items()}
    return smoothing_page(sweeps, [(name, f"{loss.summary}. {loss.paper}.") for name, loss in losses.items()])


def weights() -> str:
    names = ("cross-entropy", "focal", "aurc")
    return weights_page({name: against_probability(probe(name)) for name in names}, [("aurc", "A < b. `code`.")])


PAGES: dict[str, Callable[[], str]] = {
    "evaluation": lambda: evaluation_page(evaluation()),
    "groups": lambda: evaluation_page(
        evaluate(predictions(groups=[GROUPS[i % 4] for i in range(240)]), bootstrap=20, by_group=True)
    ),
    "one sample": lambda: evaluation_page(evaluation(n=1)),
    "no mistake": lambda: evaluation_page(evaluate(25 * torch.eye(4), torch.arange(4), from_logits=True, bootstrap=0)),
    "many classes": lambda: evaluation_page(many_classes(evaluation())),
    "comparison": lambda: comparison_page(comparison()),
    "evaluations": lambda: evaluations_page(evaluate_each(several(), bootstrap=20)),
    "comparisons": lambda: comparisons_page(
        compare_each(several(), methods=["temperature", "vector", "bias-corrected-temperature"], bootstrap=20)
    ),
    "decisions": lambda: decisions_page(
        decide(predictions(), costs=1 - 1.01 * np.eye(len(NAMES), len(NAMES) + 1), method="temperature")
    ),
    "threshold": lambda: decisions_page(
        decide(
            *random_predictions(240, 2, sharpness=3.0),
            from_logits=True,
            false_alarm=1,
            miss=1000,
            abstain=40.5,
            method="temperature",
        )
    ),
    "two decisions": lambda: decisions_page(
        decide(
            *random_predictions(240, 2, sharpness=3.0), from_logits=True, false_alarm=9, miss=1, method="temperature"
        )
    ),
    "abstention": lambda: abstention_page(abstain(predictions(n=2000, sharpness=6.0))),
    "abstention by group": lambda: abstention_page(
        abstain(predictions(n=4000, sharpness=6.0, groups=[GROUPS[i % 5 // 2] for i in range(4000)]), by_group=True)
    ),
    "ood": lambda: ood_page(
        compare_ood(predictions(), {"near.npz": predictions(seed=1), LONG_PATH: predictions(seed=2)}, bootstrap=20)
    ),
    "shift": lambda: shift_page(shift()),
    "run": lambda: run_page(*run()),
    "retrained": lambda: retraining_page(retrained()),
    "analysis": lambda: analysis_page(analysis()),
    "smoothing": smoothing,
    "weights": weights,
    "cdf": lambda: distribution_page(smoothed_distribution(), [("au", "The `au` loss.")]),
}
