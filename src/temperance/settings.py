"""Settings of methods as data: declared once, in the signature of whatever makes the method.

    def __init__(self, *, margin: NonNegative = 6.0, variant: Literal["paper", "released"] = "paper") -> None:

The annotation says which values make sense: a plain type, a `Literal` for choices, an `Annotated` type with bounds, or
a union of these. `settings_of` reads signature and docstring into a table, and `check_settings` refuses values that the
table does not allow. The command line, the docs and the tests read the same table.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from temperance.errors import InputError, known_settings


@dataclass(frozen=True)
class Bounds:
    """Which numbers make sense: from `low` (or above it) to `high`, and never infinite."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def hold(self, value: float) -> bool:
        """Does a number lie within them?"""
        inside = self.low < value if self.above else self.low <= value
        return inside and value <= self.high and abs(value) < math.inf

    def __str__(self) -> str:
        if self.low == -math.inf:
            return ""
        if self.above:
            return f" above {self.low:g}" + (f" and up to {self.high:g}" if self.high < math.inf else "")
        return f" of at least {self.low:g}" if self.high == math.inf else f" from {self.low:g} to {self.high:g}"


Positive = Annotated[float, Bounds(0, above=True)]
NonNegative = Annotated[float, Bounds(0)]
Fraction = Annotated[float, Bounds(0, 1)]
PositiveFraction = Annotated[float, Bounds(0, 1, above=True)]
Count = Annotated[int, Bounds(1)]
CountOrZero = Annotated[int, Bounds(0)]

# The value of a setting that must be given.
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Setting:
    """One setting of a method: what it may be, what it is by default, and what it is for."""

    name: str
    kind: Any
    default: Any
    purpose: str

    @property
    def allowed(self) -> str:
        """What it may be, in words."""
        return " or ".join(_in_words(kind) for kind in _alternatives(self.kind))

    def check(self, value: object) -> None:
        """Refuse a value that it may not have."""
        of_kind(self.name, value, self.kind)


def of_kind(name: str, value: object, kind: Any) -> None:
    """Refuse a value that a setting of this kind may not have.

    >>> of_kind("smoothing", "abc", float | None)
    Traceback (most recent call last):
    temperance.errors.InputError: smoothing must be a number or none; got 'abc'
    """
    if not any(_is_a(value, one) for one in _alternatives(kind)):
        raise InputError(f"{name} must be {Setting(name, kind, REQUIRED, '').allowed}; got {value!r}")


def settings_of(make: Callable[..., Any]) -> Mapping[str, Setting]:
    """The settings of a class or a function: its keyword-only parameters.

    >>> def method(*, width: Count = 8, mode: Literal["fast", "exact"] = "fast") -> None:
    ...     '''A method.
    ...
    ...     width  how wide it is
    ...     '''
    >>> [(s.name, s.allowed, s.default, s.purpose) for s in settings_of(method).values()]
    [('width', 'a whole number of at least 1', 8, 'how wide it is'), ('mode', 'fast or exact', 'fast', '')]
    """
    return _table(make)


@cache
def _table(make: Any) -> Mapping[str, Setting]:
    function = inspect.getattr_static(make, "__init__") if isinstance(make, type) else make
    kinds = get_type_hints(function, include_extras=True)
    purposes = _purposes(inspect.getdoc(make) or "")
    return {
        p.name: Setting(p.name, kinds.get(p.name, object), p.default, purposes.get(p.name, ""))
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }


def defaults_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a class or a function with their defaults."""
    return {name: setting.default for name, setting in settings_of(make).items()}


def check_settings(owner: str, make: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Refuse settings that a method does not have, and values that they may not have.

    >>> def method(*, width: Count = 8) -> None: ...
    >>> check_settings("method", method, {"width": 0})
    Traceback (most recent call last):
    temperance.errors.InputError: method: width must be a whole number of at least 1; got 0
    """
    table = settings_of(make)
    known_settings(owner, values, table)
    for name, value in values.items():
        try:
            table[name].check(value)
        except InputError as error:
            raise InputError(f"{owner}: {error}") from None


# ------------------------------------------------------------------------------------------------------------ the kinds


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_a(value: object, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Annotated:
        plain, bounds = get_args(kind)
        return _is_a(value, plain) and bounds.hold(value)
    if origin is Literal:
        return value in get_args(kind) and isinstance(value, tuple({type(choice) for choice in get_args(kind)}))
    if isinstance(value, bool):
        return kind in (bool, object)
    if kind is float:
        return isinstance(value, int | float)
    if inspect.isclass(origin or kind) and issubclass(origin or kind, Sequence) and kind is not str:
        # A string is a sequence too, but of letters.
        return isinstance(value, list | tuple) and all(_is_a(item, get_args(kind)[0]) for item in value)
    return isinstance(value, origin or kind)


WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a name",
    NoneType: "none",
}


def _in_words(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Annotated:
        plain, bounds = get_args(kind)
        return f"{WORDS[plain]}{bounds}"
    if origin is Literal:
        return " or ".join(map(str, get_args(kind)))
    if kind in WORDS:
        return WORDS[kind]
    if origin is dict:
        return "a dictionary"
    if inspect.isclass(origin or kind) and issubclass(origin or kind, Sequence):
        return f"a list of {'names' if get_args(kind)[0] is str else 'numbers'}"
    return f"a {getattr(kind, '__name__', kind)}"


# -------------------------------------------------------------------------------------------------------- the docstring


def _purposes(doc: str) -> dict[str, str]:
    """What a docstring says of each setting, in lines such as `name, other  what they are for`, indented if they go on.

    >>> _purposes("A method.\\n\\nlow, high  from where\\n           to where\\nplain words go on")
    {'low': 'from where to where', 'high': 'from where to where'}
    """
    found: dict[str, str] = {}
    names: list[str] = []
    for line in doc.splitlines():
        begun = re.match(r"([a-z]\w*(?:, [a-z]\w*)*)  +(\S.*)", line)
        if begun:
            names = begun[1].split(", ")
            found |= dict.fromkeys(names, begun[2].strip())
        elif names and line.startswith("  "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found
