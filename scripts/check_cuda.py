"""Every metric and calibrator on a GPU gives what it gives on the CPU: PYTHONPATH=src python scripts/check_cuda.py"""

import torch

from temperance.calibrators import CALIBRATORS
from temperance.metrics import METRICS


def predictions(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator)
    logits[torch.arange(n), labels] += 1.5
    return 3 * logits, labels


def main() -> None:
    logits, labels = predictions(2000, 7)
    for metric in METRICS:
        here = metric(logits, labels, from_logits=True)
        there = metric(logits.cuda(), labels.cuda(), from_logits=True)
        probs = logits.double().softmax(1)
        also = abs(metric(probs.cuda(), labels.cuda()) - metric(probs, labels))
        report("metric", metric.name, max(abs(here - there), also), 1e-9)
    for method in CALIBRATORS:
        try:
            here = method().fit(logits, labels).predict_proba(logits)
            there = method().fit(logits.cuda(), labels.cuda()).predict_proba(logits.cuda())
            report("calibrator", method.name, float((here - there.cpu()).abs().max()), 1e-4)
        except ImportError as error:
            print(f"calibrator {method.name:32s} not run: {error}")


def report(kind: str, name: str, difference: float, tolerance: float) -> None:
    print(f"{kind} {name:32s} {difference:.1e} {'ok' if difference <= tolerance else 'DIFFERS'}")


if __name__ == "__main__":
    main()
