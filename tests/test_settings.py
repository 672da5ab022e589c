"""Settings as data: what a signature allows, what is refused and in which words."""

from collections.abc import Callable
from typing import Any, Literal

import pytest

from temperance.errors import InputError
from temperance.settings import (
    REQUIRED,
    Count,
    CountOrZero,
    Fraction,
    NonNegative,
    Positive,
    PositiveFraction,
    check_settings,
    defaults_of,
    settings_of,
)


class Method:
    """A method.

    margin        how far apart
    mode          "fast", or
                  "exact"
    low, high     the ends
    """

    def __init__(
        self,
        first: int = 0,
        *,
        needed: Count,
        margin: NonNegative = 6.0,
        mode: Literal["fast", "exact"] = "fast",
        low: float = 0.0,
        high: float | None = None,
        sizes: list[int] | None = None,
    ) -> None: ...


def test_a_signature_and_its_docstring_are_the_table() -> None:
    table = settings_of(Method)
    assert list(table) == ["needed", "margin", "mode", "low", "high", "sizes"]
    assert table["margin"].purpose == "how far apart"
    assert table["mode"].purpose == '"fast", or "exact"'
    assert table["low"].purpose == table["high"].purpose == "the ends"
    assert table["sizes"].purpose == ""
    assert table["needed"].default is REQUIRED
    assert defaults_of(Method)["margin"] == 6.0


# The kind, values that it takes, values that it refuses, and how the refusal puts it.
KINDS: list[tuple[Any, list[object], list[object], str]] = [
    (Positive, [1e-9, 3], [0, -1, float("inf"), float("nan"), True, "1", None], "a number above 0"),
    (NonNegative, [0, 0.5], [-1e-9, float("inf"), "a", False], "a number of at least 0"),
    (Fraction, [0, 1, 0.5], [-0.1, 1.1, float("nan")], "a number from 0 to 1"),
    (PositiveFraction, [1, 0.5], [0, 1.1], "a number above 0 and up to 1"),
    (Count, [1, 7], [0, 1.0, True, "1"], "a whole number of at least 1"),
    (CountOrZero, [0], [-1, 0.5], "a whole number of at least 0"),
    (float, [0, -1.5], [True, "x", None], "a number"),
    (float | None, [None, 1.0], ["none", True], "a number or none"),
    (Count | None, [None, 1], [0, 0.5], "a whole number of at least 1 or none"),
    (bool, [True, False], [0, 1, "true", None], "true or false"),
    (str, ["a"], [1, None, True], "a name"),
    (Literal["mean", "sum"], ["mean"], ["max", 1, None], "mean or sum"),
    (Literal["mean", "max"] | None, [None, "max"], ["none", 0], "mean or max or none"),
    (tuple[float, ...], [(1, 2.0), [1]], ["12", (1, "a"), 3], "a list of numbers"),
    (list[str], [["a"]], ["a", [1]], "a list of names"),
]


def made(kind: Any) -> Callable[..., None]:
    def method(*, value: Any) -> None: ...

    method.__annotations__["value"] = kind
    return method


@pytest.mark.parametrize(("kind", "good", "bad", "words"), KINDS, ids=[row[3] for row in KINDS])
def test_a_kind_takes_what_makes_sense_and_says_what_that_is(
    kind: Any, good: list[object], bad: list[object], words: str
) -> None:
    for value in good:
        check_settings("method", made(kind), {"value": value})
    for value in bad:
        with pytest.raises(InputError) as refused:
            check_settings("method", made(kind), {"value": value})
        assert str(refused.value) == f"method: value must be {words}; got {value!r}"


def test_a_setting_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean margin"):
        check_settings("method", Method, {"margn": 1.0})
