"""Every setting of every method of every kind: what its table says is what the method takes, when it is made."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from temperance.calibrators import CALIBRATORS, make_calibrator
from temperance.errors import InputError
from temperance.heads import HEADS, make_head
from temperance.losses import LOSSES, Loss, make_loss
from temperance.metrics import METRICS
from temperance.metrics.stream import Stream
from temperance.objectives import OBJECTIVES, make_objective
from temperance.registry import parse_entry
from temperance.settings import REQUIRED, Bounds, Setting, of_kind, settings_of
from temperance.training.networks import NETWORKS, make_network
from temperance.training.recipe import MIXES, Recipe


@dataclass(frozen=True)
class Method:
    """A method of any kind: its table of settings, and how one is made."""

    kind: str
    name: str
    table: Mapping[str, Setting]
    make: Callable[..., object]

    def __call__(self, **settings: Any) -> object:
        return self.make(**settings)


def by_name(make: Callable[..., object], name: str, **needed: Any) -> Callable[..., object]:
    return lambda **settings: make(name, **{**needed, **settings})


def loss_by_name(cls: type[Loss]) -> Callable[..., object]:
    return by_name(make_loss, cls.name, **({"n_samples": 10} if cls.needs_indices else {}))


METHODS = [
    *(Method("calibrator", c.name, settings_of(c), by_name(make_calibrator, c.name)) for c in CALIBRATORS),
    *(Method("objective", o.name, settings_of(o), by_name(make_objective, o.name)) for o in OBJECTIVES),
    *(Method("loss", c.name, settings_of(c), loss_by_name(c)) for c in LOSSES),
    *(Method("head", h.name, settings_of(h), by_name(make_head, h.name)) for h in HEADS),
    *(Method("mix", m.name, settings_of(m), m) for m in MIXES),
    *(Method("metric", m.name, m.settings, lambda m=m, **settings: Stream(m, **settings)) for m in METRICS),
    *(
        Method("network", n.name, {**settings_of(make_network), **n.settings}, by_name(make_network, n.name, classes=2))
        for n in NETWORKS
    ),
    Method("recipe", "recipe", settings_of(Recipe), Recipe.of),
]
each = pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.kind} {m.name}")


def alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) not in (None, Annotated, Literal) and not listed(kind) else (kind,)


def listed(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def out_of_bounds(kind: Any) -> list[Any]:
    """Values of the right type that make no sense, as far as the kind of a setting tells."""
    if get_origin(kind) is Annotated and isinstance(get_args(kind)[1], Bounds):
        plain, bounds = get_args(kind)
        low = [bounds.low if bounds.above else bounds.low - 1] if bounds.low > -math.inf else []
        high = [bounds.high if bounds.below else bounds.high + 1] if bounds.high < math.inf else []
        return [plain(value) for value in (*low, *high)] + out_of_bounds(plain)
    if kind is float:
        return [math.nan, math.inf, -math.inf, 10**400]
    if kind is int:
        return [0.5, math.nan]
    if get_origin(kind) is Literal:
        return ["no such", *(choice.upper() for choice in get_args(kind))]
    if get_origin(kind) is Annotated:
        return ["no such"]
    if listed(kind):
        return [[wrong] for wrong in out_of_bounds(get_args(kind)[0])]
    return []


def is_of(kind: Any, value: object) -> bool:
    """Does this kind of a setting alone allow the value?"""
    try:
        of_kind("", value, kind)
    except InputError:
        return False
    return True


@each
def test_a_setting_refuses_another_type(method: Method) -> None:
    for setting in method.table.values():
        kinds = alternatives(setting.kind)
        wrong: list[Any] = [1j, object(), [object()]]
        wrong += [] if NoneType in kinds or setting.name == "weight" else [None]
        wrong += ["true", 1, 0] if kinds == (bool,) else [] if bool in kinds else [True]
        for value in wrong:
            with pytest.raises(InputError) as refused:
                method(**{setting.name: value})
            said = f"{method.name}: {setting.name} must be "
            assert str(refused.value).startswith(said) and repr(value) in str(refused.value)


@each
def test_a_setting_refuses_a_value_out_of_its_bounds(method: Method) -> None:
    for setting in method.table.values():
        kinds = alternatives(setting.kind)
        for kind in kinds:
            for value in out_of_bounds(kind):
                if any(is_of(other, value) for other in kinds if other is not kind):
                    continue  # half a pixel is no number of pixels, but half of a side is a border
                with pytest.raises(InputError, match=f"^{method.name}: ({setting.name} must be|there is no)"):
                    method(**{setting.name: value})


@each
def test_a_setting_says_what_it_may_be_and_what_it_is_for(method: Method) -> None:
    """A number has a type, a name has choices or a registry; the default is one of the values that it may have."""
    for setting in method.table.values():
        kinds = alternatives(setting.kind)
        assert setting.kind is not object and (str not in kinds or Loss in kinds), setting.name
        if setting.default is not REQUIRED:
            setting.check(setting.default)
        assert setting.purpose, f"write a line `{setting.name}  what it is for` in the docstring of {method.name}"
        assert "as above" not in setting.purpose, f"{setting.purpose}: `temperance list` shows it by itself"


@each
def test_none_is_written_none(method: Method) -> None:
    """On the command line, by every setting that may be none; the others refuse it."""
    for setting in method.table.values():
        _, written = parse_entry(f"{method.name}:{setting.name}=none")
        if "none" in re.findall(r"\w+", setting.allowed):
            setting.check(written[setting.name])
        else:
            with pytest.raises(InputError, match=f"{setting.name} must be .*; got None"):
                setting.check(written[setting.name])


@each
def test_a_setting_that_is_not_there_is_refused(method: Method) -> None:
    with pytest.raises(InputError, match=f"there is no setting of {method.name} named 'no_such'"):
        method(no_such=1)
