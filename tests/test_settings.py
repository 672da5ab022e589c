"""Settings as data: what a signature allows, what is refused and in which words."""

import copy
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest

from temperance.calibrators import Auto, make_calibrator
from temperance.errors import InputError
from temperance.heads import make_head
from temperance.losses import ACLS, AU, MDCA, Focal, make_loss
from temperance.metrics import ece
from temperance.registry import as_entry, parse_entry
from temperance.settings import (
    REQUIRED,
    Bounds,
    Count,
    CountOrZero,
    Fraction,
    HasSettings,
    NonNegative,
    Positive,
    PositiveFraction,
    Seed,
    check_settings,
    defaults_of,
    settings_of,
)
from temperance.training import Recipe, make_network
from temperance.training.job import Job


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


def test_none_is_named_once() -> None:
    assert settings_of(Focal)["reduction"].allowed == "mean, sum or none"
    assert settings_of(Auto)["members"].allowed == "a list of names of calibrators or none"
    assert settings_of(Auto)["prior"].allowed == "uniform, same, a list of numbers or none"
    assert make_loss("focal:reduction=none").reduction == Focal(reduction="none").reduction == "none"


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
    (Seed, [0, (1 << 63) - 1], [-1, 1 << 63, 0.5], "a whole number of at least 0 and below 2^63"),
    (Annotated[int, Bounds(high=9)], [9, -100], [10], "a whole number up to 9"),
    (Annotated[float, Bounds(0, 1, above=True, below=True)], [0.5], [0, 1], "a number above 0 and below 1"),
    (float, [0, -1.5], [True, "x", None, float("nan"), float("inf"), 10**400], "a number"),
    (float | None, [None, 1.0], ["none", True], "a number or none"),
    (Count | None, [None, 1], [0, 0.5], "a whole number of at least 1 or none"),
    (bool, [True, False], [0, 1, "true", None], "true or false"),
    (str, ["a"], [1, None, True], "a name"),
    (Literal["mean", "sum"], ["mean"], ["max", 1, None, np.array(["mean"])], "one of mean, sum"),
    (Literal["mean", "max"] | None, [None, "max"], ["none", 0], "mean, max or none"),
    (Positive | Literal["auto"] | None, [None, 2, "auto"], [0, "car"], "a number above 0, auto or none"),
    (tuple[float, ...], [(1, 2.0), [1]], ["12", (1, "a"), 3], "a list of numbers"),
    (tuple[Positive, ...], [(1, 2.0), []], [(1, 0)], "a list of numbers above 0"),
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
        check_settings("method", settings_of(made(kind)), {"value": value})
    for value in bad:
        with pytest.raises(InputError) as refused:
            check_settings("method", settings_of(made(kind)), {"value": value})
        assert str(refused.value) == f"method: value must be {words}; got {value!r}"


def test_a_setting_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean margin"):
        check_settings("method", settings_of(Method), {"margn": 1.0})


class Parent(HasSettings):
    name = "parent"

    def __init__(self, *, lr: Positive = 0.1, epochs: Count = 5) -> None:
        self.lr = lr
        self.epochs = epochs


class Child(Parent):
    """A child.

    own  its own setting
    """

    name = "child"
    other_defaults: ClassVar[dict[str, Any]] = {"epochs": 7}

    def __init__(self, *, own: Count = 1, **options: Any) -> None:
        super().__init__(**{**self.other_defaults, **options})
        self.own = own

    def _check_settings(self) -> None:
        if self.own > self.epochs:
            raise InputError("own is at most epochs")


def test_settings_that_are_passed_on_are_those_of_the_parent_class() -> None:
    assert defaults_of(Child) == {"own": 1, "lr": 0.1, "epochs": 7}
    assert Child().get_params() == defaults_of(Child) and Child(epochs=9).epochs == 9
    assert defaults_of(Parent) == {"lr": 0.1, "epochs": 5}


def test_settings_are_checked_when_an_object_is_made_and_again_when_asked() -> None:
    for wrong in ({"lr": 0.0}, {"epochs": 0}, {"own": 0}):
        with pytest.raises(InputError, match=f"^child: {next(iter(wrong))} must be"):
            Child(**wrong)
    found = Child(own=6)
    found.check_settings()
    found.epochs = 4
    with pytest.raises(InputError, match=r"^child: own is at most epochs"):
        found.check_settings()
    found.lr = -1.0
    with pytest.raises(InputError, match=r"^child: lr must be"):
        found.check_settings()
    assert copy.deepcopy(found).lr == -1.0  # a copy is not made anew


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("focal", "focal", {}),
        ("focal:gamma=2:detach-weight=true", "focal", {"gamma": 2, "detach_weight": True}),
        ("acls:base=focal:base.gamma=2", "acls", {"base": "focal:gamma=2"}),
        ("acls:base.gamma=2:base=focal", "acls", {"base": "focal:gamma=2"}),
        (
            "acls:base=mdca:base.base=focal:base.base.gamma=2:base.strength=0.5:margin=10",
            "acls",
            {"base": "mdca:base=focal:base.gamma=2:strength=0.5", "margin": 10},
        ),
    ],
)
def test_settings_of_settings_are_written_with_a_dot(text: str, name: str, settings: dict[str, Any]) -> None:
    assert parse_entry(text) == (name, settings)
    assert parse_entry(as_entry(name, settings)) == (name, settings)


@pytest.mark.parametrize("make", [make_calibrator, make_loss, make_head, make_network], ids=lambda make: make.__name__)
@pytest.mark.parametrize("given", [5, None, Focal, Focal()], ids=repr)
def test_what_is_no_text_names_no_method(make: Callable[..., Any], given: Any) -> None:
    with pytest.raises(InputError, match=r"a method is named in text, .*such as 'focal:gamma=2'; got "):
        make(given, **({"classes": 2} if make is make_network else {}))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("auto:members=vector+temperature:folds=3", {"members": ["vector", "temperature"], "folds": 3}),
        ("class-temperature-greedy:grid=0.5+1+2.5", {"grid": [0.5, 1, 2.5]}),
        ("temperature:prior=1+3", {"prior": [1, 3]}),
        ("temperature:strength=1e+2", {"strength": 100.0}),
    ],
)
def test_lists_are_written_with_a_plus(text: str, settings: dict[str, Any]) -> None:
    name, found = parse_entry(text)
    assert found == settings
    assert parse_entry(as_entry(name, found)) == (name, found)


def test_one_value_is_a_list_where_nothing_else_is_allowed() -> None:
    assert make_calibrator("auto:members=vector").members == ["vector"]
    assert make_calibrator("auto:members=none").members is None
    with pytest.raises(InputError, match="there is no calibrator named 'vektor'; did you mean vector"):
        make_calibrator("auto:members=temperature+vektor")
    with pytest.raises(InputError, match=r"grid must be a list of numbers above 0 or none; got \['a', 1\]"):
        make_calibrator("class-temperature-greedy:grid=a+1")


def test_a_loss_within_a_loss_is_written_alike_everywhere() -> None:
    wanted = repr(ACLS(base=MDCA(base=Focal(gamma=2), strength=0.5)))
    for made in (
        make_loss("acls:base=mdca:base.base=focal:base.base.gamma=2:base.strength=0.5"),
        make_loss("acls", base="mdca:base=focal:base.gamma=2:strength=0.5"),
        make_loss("acls", **{"base": "mdca", "base.base": "focal", "base.base.gamma": 2, "base.strength": 0.5}),
        ACLS(base="mdca:base=focal:base.gamma=2:strength=0.5"),
    ):
        assert repr(made) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("acls:base=fokal", "there is no loss named 'fokal'; did you mean focal"),
        ("acls:base=FOCAL", "there is no loss named 'FOCAL'; did you mean focal"),
        ("acls:base=focal:base.gama=2", "there is no setting of focal named 'gama'; did you mean gamma"),
        ("acls:base=focal:base.gamma=-2", "focal: gamma must be a number from 0 to 100; got -2"),
        ("acls:base=focal:gamma=2", "no setting of acls named 'gamma'; a setting of base is written base.gamma=2"),
        ("acls:base.gamma=2", "base.gamma=2 is a setting of base: say which one, base=NAME:base.gamma=2"),
        ("acls:margin=6:margin.low=1", "margin.low=1 is a setting of margin: say which one"),
        ("acls:base=crl", "crl needs n_samples: write crl:n_samples=…"),
    ],
)
def test_a_wrong_loss_within_a_loss_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_loss(text)
    if text != "acls:base=crl":  # a training knows the number of its samples
        with pytest.raises(InputError, match=says):
            Job.of(data="nowhere", loss=text)


def test_numbers_of_numpy_are_kept_as_pythons_own() -> None:
    """Files and messages can hold these alone."""
    numpy: Any = np  # numbers whose types the signatures do not name
    assert "gamma=0.5" in repr(Focal(gamma=numpy.float32(0.5)))
    folds = Auto(folds=numpy.int16(3)).set_params(folds=numpy.int64(4)).folds
    recipe = Recipe(epochs=numpy.int64(2), drops=(numpy.float64(0.5),))
    found = [AU(n_bins=numpy.int64(7)).n_bins, folds, recipe.epochs, *recipe.drops]
    assert found == [7, 4, 2, 0.5] and [type(value) for value in found] == [int, int, int, float]
    assert ece([[0.6, 0.4]], [0], n_bins=numpy.int64(10)) == pytest.approx(0.4)
    for wrong in (numpy.int64(-1), numpy.float64("nan"), numpy.bool_(True), numpy.array([1.0])):
        with pytest.raises(InputError, match="gamma must be a number from 0 to 100"):
            Focal(gamma=wrong)
    with pytest.raises(InputError, match="n_bins must be a whole number"):
        AU(n_bins=numpy.float64(3.0))
