"""Real predictions that ship with the package: a ResNet-18 on CIFAR-100, trained by scripts/train_demo.py."""

from pathlib import Path

from temperance.predictions import Predictions, read_pair

DEMO_FILE = Path(__file__).parent / "cifar100_resnet18.npz"


def demo_predictions() -> tuple[Predictions, Predictions]:
    """The 5,000 validation and 10,000 test predictions, with class names."""
    return read_pair(DEMO_FILE)
