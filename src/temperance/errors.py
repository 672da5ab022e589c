"""What can go wrong, as sentences for the reader.

TemperanceError
├── InputError          the data, a setting or a name is not what was expected (also a ValueError)
│   ├── NothingCountsError   every label is ignored, or every weight is 0
│   └── SeveralErrors        some of several sets could not be measured
├── FileError           a file cannot be read, understood or written
├── NotFittedError      a calibrator was used before it was fitted
├── DeviceError         a device is missing or too small
└── MissingExtraError   an optional dependency is not installed (also an ImportError)

The command line prints the message of any of these on one line (of several errors, each on its own) and
exits with code 2.

A TemperanceWarning comes with a result and says what not to trust about it.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from temperance.showing import listed


class TemperanceError(Exception):
    """Base of every error that temperance raises on purpose.

    row    the sample that the message is about, counted from 0; `Predictions.located` says where it is in the file
    flags  what the command line prints in place of a Python argument: {"n_bins": "--n-bins"}
    """

    def __init__(self, message: str, *, row: int | None = None, flags: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.row = row
        self.flags = dict(flags or {})


class TemperanceWarning(UserWarning):
    """There is a result, but something about it must not be trusted."""


class InputError(TemperanceError, ValueError):
    """The data, a setting or a name is not what was expected."""


class NothingCountsError(InputError):
    """Every label is ignored, or every weight is 0."""


class SeveralErrors(InputError):
    """Errors of several sets in one: `head`, then each error with the words before it."""

    def __init__(self, head: str, each: Iterable[tuple[str, TemperanceError]]) -> None:
        self.head, self.each = head, tuple(each)
        super().__init__(f"{head}: {'; '.join(f'{before}{error}' for before, error in self.each)}")


class FileError(TemperanceError):
    """A file cannot be read, understood or written."""


class NotFittedError(TemperanceError):
    """A calibrator was used before it was fitted."""


class DeviceError(TemperanceError):
    """A device is missing or too small."""


class MissingExtraError(TemperanceError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'temperance[{extra}]'")


@contextmanager
def optional(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Import an optional dependency in this block: if it is missing, the error says how to install it."""
    try:
        yield
    except ImportError:
        raise MissingExtraError(package, extra, purpose) from None


def plural(n: float, what: str) -> str:
    """1 sample, 2,000 samples."""
    return f"{amount(n)} {what}{'' if n == 1 else 's'}"


def amount(n: float) -> str:
    """A number of samples, which weights may make a fraction: 2,000 or 12.35."""
    return f"{n:,}" if isinstance(n, int) else f"{round(n):,}" if n == round(n) or n >= 1e4 else f"{n:.4g}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not registered, with the nearest names that are."""
    known = sorted(known)
    in_lower_case = {each.lower(): each for each in known}
    near = [in_lower_case[each] for each in difflib.get_close_matches(name.lower(), in_lower_case, n=3, cutoff=0.5)]
    hint = f"did you mean {listed(near, 'or')}?" if near else f"known: {', '.join(known) or 'none'}"
    return InputError(f"there is no {kind} named {name!r}; {hint}")


def known_settings(owner: str, settings: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a setting that its owner does not have; the error names the nearest one that it has."""
    known = tuple(known)
    for setting in settings:
        if setting not in known:
            raise unknown_name(f"setting of {owner}", setting, known)
