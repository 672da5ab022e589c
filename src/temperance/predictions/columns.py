"""Tables (.parquet and .csv): which columns are the predictions, and which are labels and groups."""

from collections.abc import Iterable
from dataclasses import dataclass

from temperance.errors import InputError
from temperance.predictions.checks import Labels, as_class_names, shown


@dataclass(frozen=True)
class Columns:
    """The columns of a table of predictions: `scores` is one column of lists, or one column for each class."""

    from_logits: bool
    scores: tuple[str, ...]
    is_list: bool
    labels: str | None
    groups: str | None
    class_names: tuple[str, ...] | None

    @property
    def name(self) -> str:
        return "logits" if self.from_logits else "probs"

    @property
    def used(self) -> list[str]:
        return [*self.scores, *(name for name in (self.labels, self.groups) if name is not None)]


def find_columns(names: Iterable[str], split: str | None, wanted: Labels) -> Columns:
    """The columns of the predictions: `logits_0 … logits_{k-1}`, or `logits_<class name>`; `label`; perhaps `group`.

    `probs` may stand for `logits`. Classes are in the order of their numbers, or, if they have names, of the columns.
    """
    known = list(names)
    if split is not None:
        raise InputError(
            f"a table holds one set of predictions, not a {split} set beside another; leave out the split, or keep "
            "val_ and test_ sets in a .npz or .safetensors file"
        )
    if len(set(known)) < len(known):
        twice = next(name for i, name in enumerate(known) if name in known[:i])
        raise InputError(f"the column {shown([repr(twice)])} occurs more than once; keep one")
    scores = {
        what: [name for name in known if name == what or name.startswith(f"{what}_")] for what in ("logits", "probs")
    }
    if scores["logits"] and scores["probs"]:
        raise InputError(f"there is both {scores['logits'][0]} and {scores['probs'][0]}; keep logits or probs")
    what = "logits" if scores["logits"] else "probs"
    labels = None if wanted == "ignored" else _only_one(known, "label", "labels")
    if not scores[what] or (labels is None and wanted == "required"):
        raise InputError(
            "expected the columns logits_0, logits_1, … (or probs_0, probs_1, …), one for each class"
            f"{', and label' if wanted == 'required' else ''}; found {shown(known)}"
        )
    is_list = what in scores[what]
    if is_list and len(scores[what]) > 1:
        raise InputError(f"there is both the column {what} and {scores[what][1]}; keep the lists or the single columns")
    ordered, class_names = (scores[what], None) if is_list else _in_class_order(scores[what], what)
    return Columns(what == "logits", tuple(ordered), is_list, labels, _only_one(known, "group", "groups"), class_names)


def _only_one(known: list[str], *names: str) -> str | None:
    found = [name for name in names if name in known]
    if len(found) > 1:
        raise InputError(f"there is both the column {found[0]} and {found[1]}; keep one")
    return found[0] if found else None


def _in_class_order(columns: list[str], what: str) -> tuple[list[str], tuple[str, ...] | None]:
    classes = {column: column.removeprefix(f"{what}_") for column in columns}
    numbered = [column for column in columns if is_whole_number(classes[column])]
    if not numbered:
        return columns, as_class_names(classes.values())
    if len(numbered) < len(columns):
        other = next(column for column in columns if column not in numbered)
        raise InputError(
            f"classes have numbers or names, not both: {shown([numbered[0]])} beside {shown([other])}; rename one"
        )
    ordered = sorted(columns, key=lambda column: int(classes[column]))
    if [int(classes[column]) for column in ordered] != list(range(len(columns))):
        raise InputError(f"classes must be numbered 0 … {len(columns) - 1}; found {shown(ordered)}")
    return ordered, None


def is_whole_number(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True
