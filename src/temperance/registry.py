"""One table per kind of thing: metrics, calibrators, objectives, losses, heads.

An entry carries its name, its first docstring line and its claims; the command line, the docs, the report and the
contract tests read them from here, so that nothing about a method is written down twice.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from temperance.errors import InputError, unknown_name

E = TypeVar("E")


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


def plain_name(identifier: str) -> str:
    """`adaptive_ece` and `ClassTemperature` as they are written on the command line."""
    words = "".join(f"-{c.lower()}" if c.isupper() else c for c in identifier).strip("-")
    return words.replace("_", "-")


def first_line(doc: str | None) -> str:
    """The first line of a docstring, which says in plain words what the thing is."""
    return (doc or "").strip().split("\n")[0].rstrip(".")


def parse_entry(text: str) -> tuple[str, dict[str, Any]]:
    """A registered thing as it is written on the command line: its name and settings.

    >>> parse_entry("temperature:objective=class-scaled")
    ('temperature', {'objective': 'class-scaled'})
    >>> parse_entry("focal:gamma=2")
    ('focal', {'gamma': 2})
    """
    name, *pairs = text.strip().split(":")
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"a setting is written key=value; got {pair!r} in {text!r}")
        settings[key.strip().replace("-", "_")] = _value(value.strip())
    return name.strip(), settings


def _value(text: str) -> bool | int | float | str | None:
    named = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
