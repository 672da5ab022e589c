"""A network's classifier trained again on frozen features: what it was before, and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temperance.evaluate import Evaluation
from temperance.results import Provenance, shown

if TYPE_CHECKING:
    from temperance.training.heads import Head


@dataclass(frozen=True, eq=False)
class Retrained:
    """A head, and the test part with the network's own classifier and with the head in its place.

    history  one row an epoch of the head's training
    """

    before: Evaluation
    after: Evaluation
    head: Head
    history: list[dict[str, Any]]
    provenance: Provenance

    @property
    def verdict(self) -> str:
        """What the second stage changed, in plain words."""
        old, new = self.before.row("ece"), self.after.row("ece")
        if new.high < old.low:
            word = "Better calibrated."
        elif new.low > old.high:
            word = "Worse calibrated."
        else:
            word = "No clear change."
        moved = 100 * (self.after.row("accuracy").value - self.before.row("accuracy").value)
        points = (
            "stayed the same" if abs(moved) < 0.005 else f"{'rose' if moved > 0 else 'fell'} by {abs(moved):.2f} points"
        )
        return (
            f"{word} With {self.head.name} in the place of its classifier, the expected calibration error went from "
            f"{shown(old.value, percent=True)} to {shown(new.value, percent=True)} and NLL from "
            f"{self.before.row('nll').value:.4f} to {self.after.row('nll').value:.4f}; accuracy {points}."
        )
