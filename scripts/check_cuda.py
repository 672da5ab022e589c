"""Every metric, loss and calibrator gives the same on a GPU as on the CPU; every head, the same as step by step.

PYTHONPATH=src python scripts/check_cuda.py [metrics] [losses] [calibrators] [heads]
"""

import copy
import sys
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor

from temperance.calibrators import CALIBRATORS, Calibrator
from temperance.heads import HEADS, make_head
from temperance.heads import loop as heads_loop
from temperance.heads.features import Features
from temperance.losses import LOSSES
from temperance.metrics import METRICS
from temperance.training.criterion import as_loss


def predictions(n: int, k: int) -> tuple[Tensor, Tensor]:
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
    """In float32 with some labels ignored, on rows and on images, and compiled."""
    rows, truth = predictions(128, 10)
    dense, dense_truth = rows[:120].view(6, 4, 5, 10).permute(0, 3, 1, 2), truth[:120].view(6, 4, 5)
    for name in LOSSES.names:
        loss = as_loss(name, len(truth))
        for logits, labels in ((rows, truth), (dense, dense_truth)):
            given = logits, labels.where(labels > 0, -100), torch.arange(labels.numel()).view(labels.shape)
            expected, there = (with_gradient(loss.to(device), device, *given) for device in ("cpu", "cuda"))
            report("loss", f"{name} {tuple(logits.shape)}", apart(expected, there), LOOSER.get(name, 2e-5))
    for name in COMPILED:
        loss = as_loss(name, len(truth))
        expected = with_gradient(loss, "cpu", rows, truth, torch.arange(128))
        found = with_gradient(torch.compile(loss.cuda(), fullgraph=True), "cuda", rows, truth, torch.arange(128))
        report("loss", f"{name} compiled", apart(expected, found), LOOSER.get(name, 2e-5))


# Kernels far apart from each other nearly cancel; one of width 0.01 multiplies rounding by a hundred.
LOOSER = {"kde-xe": 1e-4, "au": 2e-4}

# A loss of each kind: per sample, of the batch, with ranks, with a memory.
COMPILED = ("acls", "mdca", "aurc", "au")


def with_gradient(loss: Callable[..., Tensor], device: str, logits: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    z = logits.detach().to(device).requires_grad_()
    value = loss(z, *(each.to(device) for each in rest))
    (gradient,) = torch.autograd.grad(value, z)
    return value.detach().cpu(), gradient.cpu()


def apart(expected: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor]) -> float:
    """How far a value and its gradient are from those expected, relative to the largest."""
    (value, gradient), (other, other_gradient) = expected, found
    of_value = float((other - value).abs()) / (1 + float(value.abs()))
    return max(of_value, float((other_gradient - gradient).abs().max()) / float(gradient.abs().max()))


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


def step_by_step(step: Callable[[Tensor], None], order: Tensor, size: int, _: torch.Generator) -> None:
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
