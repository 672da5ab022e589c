"""The options of every command that reads predictions: what the file cannot say of itself."""

from __future__ import annotations

import argparse
from typing import Any


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """--logits, --probs, --label, --group, --binary, --positive and --normalise."""
    group = parser.add_argument_group("how the predictions are read")
    for kind in ("logits", "probs"):
        text = f"the columns of {kind}: a name, a pattern such as '{kind[:-1]}_*', or no,maybe,yes"
        group.add_argument(f"--{kind}", metavar="NAMES", help=text)
    for kind in ("label", "group"):
        text = f"the column of {kind}s, if it is not called {kind}; of a .npy, the file"
        group.add_argument(f"--{kind}", f"--{kind}s", metavar="NAME", help=text)
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
    columns = {name: given[name] for name in ("logits", "probs", "label", "group") if given.get(name) is not None}
    return {
        "columns": columns or None,
        "positive": 1 if positive is None and given.get("binary") else positive,
        "normalise": bool(given.get("normalise")),
    }
