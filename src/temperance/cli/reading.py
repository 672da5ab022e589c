"""The options of every command that reads predictions: what the file cannot say of itself."""

from __future__ import annotations

import argparse
from typing import Any


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """--binary, --positive and --normalise."""
    group = parser.add_argument_group("how the predictions are read")
    group.add_argument(
        "--binary",
        action="store_true",
        help="there is one column, `logits` (or scores of a decision function) or `probs`, of the class with label 1",
    )
    group.add_argument(
        "--positive", metavar="LABEL", help="as --binary, where the label of that class is not 1 but LABEL"
    )
    group.add_argument(
        "--normalise", action="store_true", help="take rounded probabilities, whose rows need not quite sum to 1"
    )


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """The same for the library."""
    given = vars(args)
    positive = given.get("positive")
    if positive is not None and positive.lstrip("-").isdecimal():
        positive = int(positive)
    return {
        "positive": 1 if positive is None and given.get("binary") else positive,
        "normalise": bool(given.get("normalise")),
    }
