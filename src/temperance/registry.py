"""One table per kind of thing: metrics, calibrators, objectives, losses, heads.

An entry carries its name, its first docstring line and its claims; the command line, the docs, the report and the
contract tests read them from here, so that nothing about a method is written down twice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from temperance.errors import InputError, unknown_name
from temperance.settings import REQUIRED, Setting, settings_of

E = TypeVar("E")
C = TypeVar("C", bound=type)


class Registry(Generic[E]):
    """Registered things by their plain command-line name, in the order they were defined."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, E] = {}

    def add(self, name: str, entry: E) -> E:
        if name in self._entries:
            raise RuntimeError(f"two {self.kind}s are named {name!r}")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> E:
        try:
            return self._entries[name]
        except KeyError:
            raise unknown_name(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def make(self, text: str, **settings: Any) -> Any:
        """Make the entry that `text` names, written as on the command line, with further settings by keyword."""
        name, written = parse_entry(text)
        entry: Any = self[name]
        table = settings_of(entry)
        given = {key: _listed(value, table.get(key)) for key, value in {**written, **folded(settings)}.items()}
        missing = [s.name for s in table.values() if s.default is REQUIRED and s.name not in given]
        if missing:
            raise InputError(f"{name} needs {' and '.join(missing)}: write {name}:{missing[0]}=…")
        unknown = [key for key in given if key not in table]
        inner = [key for key in given if key in table and table[key].names_a_method]
        if unknown and inner:
            hint = f"a setting of {inner[0]} is written {inner[0]}.{unknown[0]}={given[unknown[0]]}"
            raise InputError(f"there is no setting of {name} named {unknown[0]!r}; {hint}")
        return entry(**given)


def registered(table: Registry[Any], name: str | None, claims: Mapping[str, Any]) -> Callable[[C], C]:
    """A decorator that puts a class into a table, under this name or its own, and its claims on the class."""

    def register(cls: C) -> C:
        found = {"name": name or plain_name(cls.__name__), "summary": first_line(cls.__doc__), **claims}
        for claim, value in found.items():
            setattr(cls, claim, value)
        table.add(found["name"], cls)
        return cls

    return register


def plain_name(identifier: str) -> str:
    """`adaptive_ece` and `ClassTemperature` as they are written on the command line."""
    words = "".join(f"-{c.lower()}" if c.isupper() else c for c in identifier).strip("-")
    return words.replace("_", "-")


def first_line(doc: str | None) -> str:
    """The first line of a docstring, which says in plain words what the thing is."""
    return (doc or "").strip().split("\n")[0].rstrip(".")


def as_names(given: str | Iterable[str]) -> list[str]:
    """A list of names, given as such or as text with commas, as on the command line.

    >>> as_names("ece, nll"), as_names(("ece", "nll"))
    (['ece', 'nll'], ['ece', 'nll'])
    """
    if not isinstance(given, Iterable):
        raise InputError(f"a list of names, such as ['ece', 'nll'], was expected; got {given!r}")
    names = [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else list(given)
    other = next((name for name in names if not isinstance(name, str)), None)
    if other is not None:
        raise InputError(f"a list of names, such as ['ece', 'nll'], was expected; got {other!r} in it")
    return names


def parse_entry(text: str) -> tuple[str, dict[str, Any]]:
    """The name and settings of an entry, written as on the command line.

    `.` begins a setting of a setting, and `+` joins the items of a list.

    >>> parse_entry("focal:gamma=2")
    ('focal', {'gamma': 2})
    >>> parse_entry("auto:members=vector+temperature")
    ('auto', {'members': ['vector', 'temperature']})
    >>> parse_entry("acls:base=focal:base.gamma=2")
    ('acls', {'base': 'focal:gamma=2'})
    """
    if not isinstance(text, str):
        raise InputError(f"a method is named in text, with its settings, such as 'focal:gamma=2'; got {text!r}")
    name, *pairs = text.strip().split(":")
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"a setting is written key=value; got {pair!r} in {text!r}")
        settings[key.strip().replace("-", "_")] = _value(value.strip())
    return name.strip(), folded(settings)


def folded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of settings, moved to where they belong: base="focal" and base.gamma=2 become base="focal:gamma=2"."""
    found = {name: value for name, value in settings.items() if "." not in name}
    for name, value in settings.items():
        owner, dot, inner = name.partition(".")
        if dot and not isinstance(found.get(owner), str):
            raise InputError(f"{name}={value} is a setting of {owner}: say which one, {owner}=NAME:{name}={value}")
        if dot:
            found[owner] += f":{inner}={_text(value)}"
    return found


def as_entry(name: str, settings: Mapping[str, Any]) -> str:
    """The text that `parse_entry` reads as this name and these settings.

    >>> as_entry("acls", {"base": "focal:gamma=2", "margin": 10})
    'acls:base=focal:base.gamma=2:margin=10'
    """
    parts = [name]
    for key, value in settings.items():
        outer, *inner = _text(value).split(":")
        parts += [f"{key}={outer}", *(f"{key}.{pair}" for pair in inner)]
    return ":".join(parts)


def _value(text: str) -> bool | int | float | str | list[Any] | None:
    named = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return [_value(item.strip()) for item in text.split("+")] if "+" in text else text


def _text(value: object) -> str:
    """What `_value` reads as this value."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _listed(value: Any, setting: Setting | None) -> Any:
    """A single value as a list, if the setting takes nothing but lists."""
    return [value] if setting is not None and setting.is_list and not isinstance(value, list | tuple | None) else value
