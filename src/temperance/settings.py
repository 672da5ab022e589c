"""Settings of methods as data: declared once, in the signature of whatever makes the method.

    def __init__(self, *, margin: NonNegative = 6.0, variant: Literal["paper", "released"] = "paper") -> None:

The annotation says which values make sense: a plain type, a `Literal` for choices, an `Annotated` type with bounds, or
a union of these. `settings_of` reads signature and docstring into a table, and `check_settings` refuses values that the
table does not allow; `HasSettings` calls it whenever an object is made. The command line, the docs and the tests read
the same table.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, Unpack, get_args, get_origin, get_type_hints

from temperance.errors import InputError, known_settings


@dataclass(frozen=True)
class Bounds:
    """Which numbers make sense: from `low` (or above it) to `high` (or below it)."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def hold(self, value: float) -> bool:
        """Is a number within the bounds?"""
        high_enough = self.low < value if self.above else self.low <= value
        return high_enough and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        low, high = _limit(self.low), _limit(self.high)
        if self.low > -math.inf and self.high < math.inf and not self.above and not self.below:
            return f" from {low} to {high}"
        lower = f" above {low}" if self.above else f" of at least {low}"
        upper = f" below {high}" if self.below else f" up to {high}"
        return " and".join([lower] * (self.low > -math.inf) + [upper] * (self.high < math.inf))


def _limit(value: float) -> str:
    power = math.log2(abs(value)) if value else 0.0
    return f"{'-' * (value < 0)}2^{power:g}" if power >= 20 and power.is_integer() else f"{value:g}"


@dataclass(frozen=True)
class NameOf:
    """Which names make sense: those that `find` accepts; it raises an InputError for any other."""

    thing: str
    find: Callable[[str], object]

    def hold(self, value: str) -> bool:
        """Is there one of this name?"""
        self.find(value)
        return True

    def __str__(self) -> str:
        return f"the name of {self.thing}"


Positive = Annotated[float, Bounds(0, above=True)]
NonNegative = Annotated[float, Bounds(0)]
Fraction = Annotated[float, Bounds(0, 1)]
PositiveFraction = Annotated[float, Bounds(0, 1, above=True)]
OpenFraction = Annotated[float, Bounds(0, 1, above=True, below=True)]
Count = Annotated[int, Bounds(1)]
CountOrZero = Annotated[int, Bounds(0)]
AtLeastTwo = Annotated[int, Bounds(2)]
MOST_RESAMPLES = 1 << 20
Resamples = Annotated[int, Bounds(2, MOST_RESAMPLES)]
ResamplesOrNone = Literal[0] | Resamples
Seed = Annotated[int, Bounds(0, 1 << 63, below=True)]

# The default of a setting that must be given.
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Setting:
    """One setting of a method: the values it allows, its default and its purpose."""

    name: str
    kind: Any
    default: Any
    purpose: str

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        kinds = _alternatives(self.kind)
        if len(kinds) == 1:
            return _in_words(self.kind)
        found: list[str] = []
        for kind in kinds:
            found += map(str, get_args(kind)) if get_origin(kind) is Literal else [_in_words(kind)]
        *others, last = dict.fromkeys(found)  # "none" may be a choice, too
        return f"{', '.join(others)} or {last}" if others else last

    @property
    def names_a_method(self) -> bool:
        """Does it name another method, which may have settings of its own?"""
        return any(kind is str or get_args(kind)[:1] == (str,) for kind in _alternatives(self.kind))

    @property
    def is_list(self) -> bool:
        """Does it take nothing but lists, or none?"""
        return all(kind is NoneType or _is_sequence(kind) for kind in _alternatives(self.kind))

    def check(self, value: object) -> None:
        """Refuse a value that is not allowed."""
        of_kind(self.name, plain(value), self.kind)


def of_kind(name: str, value: object, kind: Any) -> None:
    """Refuse a value that a setting of this kind does not allow.

    >>> of_kind("smoothing", "abc", float | None)
    Traceback (most recent call last):
    temperance.errors.InputError: smoothing must be a number or none; got 'abc'
    """
    if not any(_is_a(value, one) for one in _alternatives(kind)):
        allowed = Setting(name, kind, REQUIRED, "").allowed
        flags = {name: f"--{name.replace('_', '-')}"}
        raise InputError(f"{name} must be {allowed}; got {value!r}", flags=flags)


def one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a value that is not among the allowed ones."""
    of_kind(name, value, Literal.__getitem__(tuple(allowed)))


def settings_of(make: Callable[..., Any]) -> Mapping[str, Setting]:
    """The settings of a class or a function: its keyword-only parameters; with `**options`, also its parents'.

    >>> def method(*, width: Count = 8, mode: Literal["fast", "exact"] = "fast") -> None:
    ...     '''A method.
    ...
    ...     width  how wide it is
    ...     '''
    >>> [(s.name, s.allowed, s.default, s.purpose) for s in settings_of(method).values()]
    [('width', 'a whole number of at least 1', 8, 'how wide it is'), ('mode', 'one of fast, exact', 'fast', '')]
    """
    return _table(make)


@cache
def _table(make: Any) -> Mapping[str, Setting]:
    classes = make.__mro__ if isinstance(make, type) else ()
    purposes: dict[str, str] = {}
    for documented in (*reversed(classes), make):
        purposes |= _purposes(inspect.cleandoc(documented.__doc__ or ""))
    other_defaults = getattr(make, "other_defaults", {})
    found: dict[str, Setting] = {}
    passed_on = None  # which of its parents' settings a class takes; None: all
    for function in [vars(cls)["__init__"] for cls in classes if "__init__" in vars(cls)] or [make]:
        kinds = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY and p.name not in found and (passed_on is None or p.name in passed_on):
                default = other_defaults.get(p.name, p.default)
                found[p.name] = Setting(p.name, kinds.get(p.name, object), default, purposes.get(p.name, ""))
        rest = [kinds.get(p.name) for p in parameters if p.kind is p.VAR_KEYWORD]
        if not rest:
            break
        if passed_on is None and get_origin(rest[0]) is Unpack:
            passed_on = get_args(rest[0])[0].__annotations__
    return found


def defaults_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a class or a function with their defaults."""
    return {name: setting.default for name, setting in settings_of(make).items()}


def check_settings(owner: str, table: Mapping[str, Setting], values: Mapping[str, Any]) -> None:
    """Refuse settings that a method does not have, and values that they do not allow.

    >>> def method(*, width: Count = 8) -> None: ...
    >>> check_settings("method", settings_of(method), {"width": 0})
    Traceback (most recent call last):
    temperance.errors.InputError: method: width must be a whole number of at least 1; got 0
    """
    known_settings(owner, values, table)
    with named(owner):
        for name, value in values.items():
            table[name].check(value)


@contextmanager
def named(owner: str) -> Iterator[None]:
    """Begin the sentence about a wrong setting with the name of the method."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{owner}: {error}") from None  # a setting of a method is not a flag of the command


class HasSettings:
    """A method whose settings are checked whenever it is made."""

    name: ClassVar[str]
    # A class's own defaults for settings that it passes on to its parent.
    other_defaults: ClassVar[Mapping[str, Any]] = {}

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        check_settings(cls.name, settings_of(cls), settings)
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, plain(value))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings it was made with; `deep` adds those of a setting that has its own."""
        return {name: getattr(self, name) for name in settings_of(type(self))}

    def check_settings(self) -> None:
        """Refuse settings that make no sense for any data: one by one, then together."""
        check_settings(self.name, settings_of(type(self)), self.get_params(deep=False))
        with named(self.name):
            self._check_settings()

    def _check_settings(self) -> None:
        """Refuse settings that do not go together; each by itself was checked before."""


def plain(value: Any) -> Any:
    """A number of NumPy's as Python's own, which files and messages can hold; anything else as it is.

    >>> import numpy as np
    >>> plain(np.int64(3)), plain(np.float32(0.5)), plain("3")
    (3, 0.5, '3')
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def changed_settings(method: HasSettings) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    defaults = defaults_of(type(method))
    return {name: value for name, value in method.get_params(deep=False).items() if value != defaults[name]}


# ------------------------------------------------------------------------------------------------------------ the kinds


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_sequence(kind: Any) -> bool:
    """Does it hold items? A string does too, but letters are no items."""
    plain = get_origin(kind) or kind
    return inspect.isclass(plain) and issubclass(plain, Sequence) and kind is not str


def _is_a(value: object, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Annotated:
        plain, rule = get_args(kind)
        return _is_a(value, plain) and rule.hold(value)
    if origin is Literal:
        return isinstance(value, tuple({type(choice) for choice in get_args(kind)})) and value in get_args(kind)
    if isinstance(value, bool):
        return kind in (bool, object)
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # false for NaN
    if _is_sequence(kind):
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
        plain, rule = get_args(kind)
        return str(rule) if isinstance(rule, NameOf) else f"{WORDS[plain]}{rule}"
    if origin is Literal:
        choices = ", ".join(map(str, get_args(kind)))
        return f"one of {choices}" if len(get_args(kind)) > 1 else choices
    if kind in WORDS:
        return WORDS[kind]
    if _is_sequence(kind):
        item = get_args(kind)[0]
        plain, rule = get_args(item) if get_origin(item) is Annotated else (item, "")
        if isinstance(rule, NameOf):
            return f"a list of names of {rule.thing.partition(' ')[2]}s"
        return f"a list of {'names' if plain is str else 'numbers'}{rule}"
    return f"a {kind.__name__.lower()}"


# -------------------------------------------------------------------------------------------------------- the docstring


def _purposes(doc: str) -> dict[str, str]:
    """What a docstring says about each setting: `name, other  what they are for`, then indented lines if it goes on.

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
