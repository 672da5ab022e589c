"""What a user gets by default trains: a small network on digits, at a learning rate of 0.1 without warm-up."""

import pytest

from benchmarks.quality.digits import trained
from temperance.losses import LOSSES

ENOUGH = 0.95  # of the accuracy with cross-entropy


def share(loss: str) -> float:
    return trained(loss).accuracy / trained("cross-entropy").accuracy


def test_cross_entropy_learns_digits() -> None:
    assert trained("cross-entropy").accuracy > 0.94


@pytest.mark.parametrize("name", LOSSES.names)
def test_defaults_train(name: str) -> None:
    assert share(name) >= ENOUGH


@pytest.mark.parametrize("loss", ["acls:detach=True", "acls-ranking:detach=True", "au:variant=paper"])
def test_what_does_not_train_is_not_the_default(loss: str) -> None:
    """Two losses exactly as their papers print them."""
    assert share(loss) < 0.85


@pytest.mark.parametrize("loss", ["acls:variant=released", "au:variant=paper:detach_weights=True"])
def test_other_options_train(loss: str) -> None:
    assert share(loss) >= ENOUGH
