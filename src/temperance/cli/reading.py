"""The options of every command that reads predictions: what the file does not say."""

from __future__ import annotations

import argparse
from typing import Any

from temperance.errors import InputError

GROUPED = ("group", "groups", "label", "labels")


def add_each_option(parser: argparse.ArgumentParser) -> None:
    """--each, the same for every command that takes several sets."""
    text = "treat every file as a set of its own; otherwise the files of a folder or a pattern are one set"
    parser.add_argument("--each", action="store_true", help=text)


def add_by_option(parser: argparse.ArgumentParser, text: str) -> None:
    """--by group, the same for every command that tells groups of samples apart."""
    parser.add_argument("--by", type=_by, choices=GROUPED, help=text)


def _by(given: str) -> str:
    """The word after --by: the column has an option of its own, so its name here is refused with both options."""
    if given not in GROUPED:
        raise argparse.ArgumentTypeError(
            f"must be group; got {given!r}. If that is a column, write --by group --group {given}"
        )
    return given


class Once(argparse.Action):
    """An option that may be given once, because what it names is a list with commas."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        if before != self.default:
            name = self.option_strings[0]
            raise InputError(f"{name} is given twice; a list of several has commas: {name} {before},{values}")
        setattr(namespace, self.dest, values)


def is_by_group(args: argparse.Namespace) -> bool:
    """Is each group, or each of several labels, asked for?"""
    if args.by in ("label", "labels") and not getattr(args, "multilabel", False):
        remedy = "add --multilabel, or write --by group" if hasattr(args, "multilabel") else "write --by group"
        raise InputError(f"--by label is for samples with several labels: {remedy}")
    return args.by is not None


def add_reading_options(parser: argparse.ArgumentParser, *others: str) -> None:
    """--logits, --probs, --binary, --positive and --normalise.

    others  what the command reads besides scores: label, group, weight; ignore-index if it can leave out rows; answers
            and multilabel if it can do without classes
    """
    group = parser.add_argument_group("how the predictions are read")
    for kind in ("logits", "probs"):
        text = f"the columns of {kind}: a name, a pattern such as '{kind[:-1]}_*', or a list such as no,maybe,yes"
        group.add_argument(f"--{kind}", action=Once, metavar="NAMES", help=text)
    for kind in others:
        if kind == "answers":
            text = "a model's answers: `confidence`, how sure it is of each, and `correct`, whether it is right"
            group.add_argument("--answers", action="store_true", help=text)
        elif kind == "multilabel":
            text = "a sample can have several labels: a score for each, and in `labels` a 1 if it applies, else 0"
            group.add_argument("--multilabel", action="store_true", help=text)
        elif kind == "ignore-index":
            text = "leave out rows with the label N, such as unlabelled pixels"
            group.add_argument("--ignore-index", type=int, metavar="N", help=text)
        else:
            text = f"the column of {kind}s, if it is not called {kind}; for a .npy, the file"
            if kind == "group":
                text += ". A list such as sex,race: the groups of each column, and of their combinations"
            group.add_argument(f"--{kind}", f"--{kind}s", action=Once, metavar="NAME", help=text)
    group.add_argument(
        "--binary",
        action="store_true",
        help="one column of `logits` (or decision-function scores) or `probs`, for the class with label 1",
    )
    group.add_argument("--positive", metavar="LABEL", help="like --binary, for a class whose label is LABEL")
    group.add_argument(
        "--normalise", action="store_true", help="accept rounded probabilities, whose rows do not quite sum to 1"
    )


def add_ray_option(parser: argparse.ArgumentParser, what: str) -> None:
    """--ray, the same for every command that a cluster can run."""
    text = f"{what} on a Ray cluster: at ADDRESS, or else on all cores of this machine"
    parser.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help=text)


def one_set_on_ray(args: argparse.Namespace) -> None:
    """Refuse --ray where there are several sets."""
    if args.ray is not None:
        raise InputError("--ray is for one set; leave it out, or name a single file, folder or pattern without --each")


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """The reading options, as arguments of the library."""
    given = vars(args)
    positive = given.get("positive")
    if positive is not None and positive.lstrip("-").isdecimal():
        positive = int(positive)
    names = ("logits", "probs", "label", "group", "weight")
    columns = {name: given[name] for name in names if given.get(name) is not None}
    if given.get("multilabel") and "group" in columns:
        raise InputError("with --multilabel each label is a group, so --group has no use; leave it out")
    own = ("normalise", "ignore_index", "answers", "multilabel")  # not every command has all of them
    return {
        "columns": columns or None,
        "positive": 1 if positive is None and given.get("binary") else positive,
        **{name: given[name] for name in own if name in given},
    }
