"""The Metric class: a statistic of the predictions, a value computed from it, and claims that the tests verify."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, Required, TypedDict, Unpack, cast

from temperance.arrays import ArrayLike, as_scores
from temperance.errors import InputError
from temperance.metrics.batch import NARROW, Batch, batches
from temperance.metrics.statistic import Running, Samples, Statistic, needs_whole_weights
from temperance.numerics import is_whole
from temperance.registry import Registry, as_entry, first_line, parse_entry, plain_name
from temperance.settings import Setting, check_settings, defaults_of, settings_of
from temperance.threads import one_thread

# Torch splits operations on more values than this among threads. They wait for each other after each operation, which
# on a busy machine takes many times as long as the work.
SERIAL_VALUES = 1 << 15

IntervalKind = Literal["mean", "distance", "smooth distance", "none"]


class MetricClaims(TypedDict, total=False):
    """What a metric claims.

    range            every value lies in it
    lower_is_better  None where neither is better: a test statistic, a p-value
    perfect          the value when every label is predicted with probability one
    headline         its position in the short table; 0 if it is not in it
    percent          shown multiplied by 100
    proper           minimised, on average, by the true probabilities
    quadratic        takes time quadratic in n, so intervals use smaller resamples
    interval         how resamples bound it: "mean", which varies around the true value; "distance", which noise makes
                     larger; "smooth distance", a distance whose kernel widens with the noise; "none" if they cannot
    whole_weights    depends on the number of samples, so weights must be whole numbers
    of_classes       depends on more than the confidence in each prediction and whether it is right, so it says nothing
                     about answers that have only a confidence
    of_decisions     is about predictions that are right or wrong, so it says nothing about labels that each apply or
                     not, with a probability
    """

    range: Required[tuple[float, float]]
    lower_is_better: bool | None
    perfect: float | None
    headline: int
    percent: bool
    proper: bool
    quadratic: bool
    interval: IntervalKind
    whole_weights: bool
    of_classes: bool
    of_decisions: bool


class Metric:
    """A registered metric; call it on predictions.

    `metric(probs, labels)` is the value. `metric.stats(probs, labels)` is the statistic behind it, which adds, and
    `metric.value(stats)` the value of a statistic: `m.value(m.stats(a) + m.stats(b))` measures both sets together.

    `weights` (n,) say how much each sample counts. A whole number w counts as w equal samples, 0 as none. If some
    weights are not whole, only their proportions matter.

    `chosen` holds the settings that its name carries, such as `ece:n_bins=10`.
    """

    range: tuple[float, float]
    lower_is_better: bool | None = True
    perfect: float | None = 0.0
    headline: int = 0
    percent: bool = False
    proper: bool = False
    quadratic: bool = False
    interval: IntervalKind = "mean"
    whole_weights: bool = False
    of_classes: bool = False
    of_decisions: bool = False

    def __init__(
        self,
        of_batch: Callable[..., Statistic],
        of_stats: Callable[..., float],
        title: str,
        claims: MetricClaims,
        chosen: Mapping[str, Any] | None = None,
    ) -> None:
        vars(self).update(claims)
        self.of_batch = of_batch
        self.of_stats = of_stats
        self.chosen = dict(chosen or {})
        self.name = as_entry(plain_name(of_stats.__name__), self.chosen)
        self.summary = first_line(of_stats.__doc__)
        settings = ", ".join(f"{name}={value}" for name, value in self.chosen.items())
        self.title = f"{title} ({settings})" if settings else title
        self.stats_options, self.value_options = (
            {name: self.chosen.get(name, default) for name, default in defaults_of(each).items()}
            for each in (of_batch, of_stats)
        )
        self.__doc__ = inspect.cleandoc(of_stats.__doc__ or "")
        self.__name__ = of_stats.__name__
        self.__module__ = of_stats.__module__
        self.__signature__ = _signature(self)

    def __call__(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        from_logits: bool = False,
        ignore_index: int | None = None,
        weights: ArrayLike | None = None,
        **options: Any,
    ) -> float:
        found = self.stats(
            probs, labels, from_logits=from_logits, ignore_index=ignore_index, weights=weights, **options
        )
        return self.value(found, **options)

    def stats(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        from_logits: bool = False,
        ignore_index: int | None = None,
        weights: ArrayLike | None = None,
        **options: Any,
    ) -> Statistic:
        """The statistic of these predictions."""
        scores = as_scores(probs, "logits" if from_logits else "probs")
        tall = self.of_batch in NARROW
        with one_thread(where=scores.numel() > SERIAL_VALUES):
            found = batches(
                scores, labels, from_logits=from_logits, ignore_index=ignore_index, weights=weights, tall=tall
            )
            return self.stats_of(found, **options)

    def stats_of(self, parts: Iterable[Batch], **options: Any) -> Statistic:
        """The statistic of checked predictions that come in batches."""
        own = self.own_stats_options(options)
        found = Running()
        for part in parts:
            self.check_weights(part)
            found.add(self.of_batch(part, **own))
        return found.total

    def value(self, stats: Statistic, **options: Any) -> float:
        """The value of the metric, from its statistic."""
        return next(self.values([stats], **options))

    def values(self, several: Iterable[Statistic], **options: Any) -> Iterator[float]:
        """The values of the metric, from several statistics, such as those of resamples."""
        self.check(options)
        own = {name: options.get(name, value) for name, value in self.value_options.items()}
        for stats in several:
            with one_thread(where=self.quadratic or stats.nbytes > 8 * SERIAL_VALUES):
                given = stats.repeated() if self.whole_weights and isinstance(stats, Samples) else stats
                found = float(self.of_stats(given.settled(), **own))
            yield found

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        """Every setting: its allowed values, its default and its purpose."""
        return {**settings_of(self.of_batch), **settings_of(self.of_stats)}

    @property
    def options(self) -> dict[str, Any]:
        """Every setting with its default."""
        return {**self.stats_options, **self.value_options}

    @property
    def is_test(self) -> bool:
        """Is it the statistic or the p-value of a test, rather than a measure?"""
        return self.lower_is_better is None and self.interval == "none"

    @property
    def claims(self) -> dict[str, Any]:
        """What the registry says about it; the contract tests check it."""
        return {name: getattr(self, name) for name in MetricClaims.__annotations__}

    def own_stats_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that affect the statistic."""
        self.check(options)
        return {name: options.get(name, value) for name, value in self.stats_options.items()}

    def binned(self, n_bins: int) -> dict[str, int]:
        """The setting of a job's number of bins, where the metric has bins and their number was not chosen."""
        return {"n_bins": n_bins} if "n_bins" in self.options and "n_bins" not in self.chosen else {}

    def check_weights(self, batch: Batch) -> None:
        """Refuse weights that are not whole, where that matters."""
        if self.whole_weights and batch.weights is not None and not is_whole(batch.weights):
            raise needs_whole_weights(self.name)

    def check(self, options: dict[str, Any]) -> None:
        """Refuse an unknown setting or an invalid value."""
        check_settings(self.name, self.settings, options)

    def __reduce__(self) -> tuple[Callable[[str], Metric], tuple[str]]:
        # A metric is its registry entry, which other processes have under the same name.
        return registered, (self.name,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metric) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<metric {self.__name__}{self.__signature__}>"


class Metrics(Registry[Metric]):
    """The metrics by their plain name, which may carry settings as on the command line; these are then its defaults.

    >>> METRICS["ece:n_bins=10"].title
    'ECE (n_bins=10)'
    """

    def __getitem__(self, name: str) -> Metric:
        plain, chosen = parse_entry(name)
        found = super().__getitem__(plain)
        found.check(chosen)
        claims = cast(MetricClaims, found.claims)
        return Metric(found.of_batch, found.of_stats, found.title, claims, chosen) if chosen else found


METRICS = Metrics("metric")


def registered(name: str) -> Metric:
    """The metric of this name."""
    return METRICS[name]


def need_metric(found: object) -> None:
    """Refuse anything but a metric, such as the name of one."""
    if not isinstance(found, Metric):
        raise InputError(f"metric must be one of temperance.metrics, such as metrics.ece; got {found!r}")


def metric(
    of_batch: Callable[..., Statistic], *, title: str, **claims: Unpack[MetricClaims]
) -> Callable[[Callable[..., float]], Metric]:
    """Register a metric: the decorated function computes its value from the statistic that `of_batch` returns."""

    def register(of_stats: Callable[..., float]) -> Metric:
        found = Metric(of_batch, of_stats, title, claims)
        return METRICS.add(found.name, found)

    return register


def _signature(found: Metric) -> inspect.Signature:
    call = inspect.signature(Metric.__call__)
    shared = [p for p in call.parameters.values() if p.name != "self" and p.kind is not inspect.Parameter.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(name, keyword, default=value) for name, value in found.options.items()]
    return inspect.Signature([*shared, *own], return_annotation=float)
