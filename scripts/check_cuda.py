"""Every metric, loss and calibrator on a GPU gives what it gives on the CPU; every head, what it gives step by step.

PYTHONPATH=src python scripts/check_cuda.py [metrics] [losses] [calibrators] [heads]
"""

import copy
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from temperance.calibrators import CALIBRATORS, Calibrator
from temperance.heads import HEADS, make_head
from temperance.heads import loop as heads_loop
from temperance.heads.features import Features
from temperance.losses import AU, AURC, LOSSES, MDCA, Focal, Loss
from temperance.metrics import METRICS


def predictions(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator)
    logits[torch.arange(n), labels] += 1.5
    return 3 * logits, labels


def metrics() -> None:
    logits, labels = predictions(2000, 7)
    for metric in METRICS:
        here = metric(logits, labels, from_logits=True)
        there = metric(logits.cuda(), labels.cuda(), from_logits=True)
        probs = logits.double().softmax(1)
        also = abs(metric(probs.cuda(), labels.cuda()) - metric(probs, labels))
        report("metric", metric.name, max(abs(here - there), also), 1e-9)


def losses() -> None:
    settings: list[tuple[str, Callable[..., Loss]]] = [(kind.name, kind) for kind in LOSSES]
    settings += [(f"aurc {score}", lambda score=score, **more: AURC(score=score, **more)) for score in SCORES]
    settings += [(f"au {score}", lambda score=score, **more: AU(score=score, **more)) for score in SCORES]
    settings += [
        ("mdca on focal", lambda **more: MDCA(base=Focal(gamma=1.0), **more)),
        ("au batch", lambda **more: AU(window="batch", low_conf_coverage=0.3, n_bins=10, **more)),
    ]
    for name, make in settings:
        report("loss", name, max(of_loss(make, *case) for case in cases()), LOOSER.get(name, 2e-5))


SCORES = ("margin", "negative-entropy")

# Kernels far apart from each other nearly cancel; and margins that differ by a rounding change their ranks.
LOOSER = {"kde-xe": 1e-4, "aurc margin": 1e-4}


def cases() -> list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]:
    """Few and many samples, dense ones, some that do not count, class weights, reductions, memory at odd places."""
    few, labels = predictions(128, 10)
    many, many_labels = predictions(5000, 21)
    dense, dense_labels = predictions(6 * 35, 9)
    dense, dense_labels = dense.view(6, 5, 7, 9).permute(0, 3, 1, 2), dense_labels.view(6, 5, 7)
    some = labels.where(torch.arange(128) % 5 > 0, -100)
    weight = torch.linspace(0.1, 2, 10)
    found: list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]] = [
        (many, many_labels, {}),
        (dense, dense_labels.where(dense_labels > 0, -100), {}),
        (dense, dense_labels, {"weight": weight[:9], "reduction": "sum"}),
        (predictions(128, 1000)[0], labels, {}),
        (few[1:, :9], labels[1:].clamp_max(8), {}),
        (few, torch.full_like(labels, -100), {}),
    ]
    for reduction in ("mean", "sum", "none"):
        found += [(few, labels, {"reduction": reduction}), (few, some, {"reduction": reduction, "weight": weight})]
    return found


def of_loss(make: Callable[..., Loss], logits: torch.Tensor, labels: torch.Tensor, options: dict[str, Any]) -> float:
    """How far value and gradient are from those on the CPU, against the largest of the gradient."""
    found = []
    for device in ("cpu", "cuda", "cuda"):  # on a GPU twice, as what was made is used again
        try:
            loss = make(**options)
        except TypeError:  # one that wants to know how many samples there are
            loss = make(n_samples=labels.numel(), **options)
        loss.to(device)
        z = logits.detach().to(device).requires_grad_()
        indices = [torch.arange(labels.numel()).view(labels.shape).to(device)] if loss.needs_indices else []
        value = loss(z, labels.to(device), *indices)
        (2.5 * value.sum()).backward()
        assert z.grad is not None
        found.append((value.detach().cpu(), z.grad.cpu()))
    (value, gradient), *others = found
    value_scale, scale = 1 + float(value.abs().max()), 1e-9 + float(gradient.abs().max())
    apart = [
        (float((v - value).abs().max()) / value_scale, float((g - gradient).abs().max()) / scale) for v, g in others
    ]
    return max(map(max, apart))


def calibrators() -> None:
    logits, labels = predictions(2000, 7)
    for method in CALIBRATORS:
        try:
            here = method().fit(logits, labels).predict_proba(logits)
            there = method().fit(logits.cuda(), labels.cuda()).predict_proba(logits.cuda())
            report("calibrator", method.name, float((here - there.cpu()).abs().max()), 1e-4)
            report("calibrator", f"{method.name}, moved and cast", moved_and_cast(method().fit(logits, labels)), 2e-3)
        except ImportError as error:
            print(f"calibrator {method.name:32s} not run: {error}")


@torch.no_grad()
def moved_and_cast(fitted: Calibrator) -> float:
    """How far a half-precision network on the GPU that ends with a calibrator is from the calibrator on the CPU."""
    network = torch.nn.Sequential(torch.nn.Linear(7, 7), copy.deepcopy(fitted)).to("cuda", torch.float16)
    network.load_state_dict(network.cpu().state_dict())
    empty = torch.nn.Sequential(torch.nn.Linear(7, 7), type(fitted)()).to("cuda", torch.float16)
    empty.load_state_dict(network.state_dict())
    network.cuda()
    inputs = predictions(500, 7)[0].half().cuda()
    expected = fitted(network[0](inputs).cpu().double()).half()
    found = [each(inputs) for each in (network, empty)]
    assert all(each.is_cuda and each.dtype == torch.float16 for each in found)
    return max(float(((each.cpu() - expected) / (1 + expected.abs())).abs().max()) for each in found)


def heads() -> None:
    """Trained by replayed graphs, and with every step started by itself."""
    samples, labels = predictions(3000, 20)
    features = Features.of(
        samples[:2000],
        labels[:2000],
        val_features=samples[2000:],
        val_labels=labels[2000:],
        classifier_weight=torch.eye(20),
        classifier_bias=torch.zeros(20),
    ).to("cuda")
    for name in HEADS.names:
        for loss in ("cross-entropy", "focal", "acls", "mdca", "aurc", "au"):
            found = []
            for replayed in (heads_loop.replayed, step_by_step):
                with mock.patch.object(heads_loop, "replayed", replayed):
                    head = make_head(name, epochs=2).fit(features, loss=loss, seed=3)
                found.append(head(features.train.features))
            report("head", f"{name} {loss}", float((found[0] - found[1]).abs().max()), 1e-5)


def step_by_step(step: Callable[[torch.Tensor], None], order: torch.Tensor, size: int, _: torch.Generator) -> None:
    for batch in torch.split(order, size):
        step(batch)


def report(kind: str, name: str, difference: float, tolerance: float) -> None:
    differs = not difference <= tolerance
    print(f"{kind} {name:32s} {difference:.1e} {'DIFFERS' if differs else 'ok'}")
    if differs:
        DIFFERENT.append(name)


DIFFERENT: list[str] = []

PARTS = {"metrics": metrics, "losses": losses, "calibrators": calibrators, "heads": heads}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
    sys.exit(bool(DIFFERENT))
