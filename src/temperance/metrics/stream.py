"""Any metric over data that comes in pieces: chunks of a file, batches of a loop, several processes."""

from __future__ import annotations

from typing import Any

from temperance.arrays import ArrayLike
from temperance.errors import InputError
from temperance.metrics.base import Metric
from temperance.metrics.stats import Additive, Statistic


class Stream:
    """A metric that is fed piece by piece and gives the value for everything so far.

    Its memory is that of the metric's statistic: a few numbers for each bin, or for each class and bin, where the
    metric allows it (`stream.grows` is false), all confidences where their order matters. Streams of the same metric
    add, so several processes can each feed one and send it over: it pickles, and holds nothing but tensors.

    >>> from temperance.metrics import ece
    >>> stream = Stream(ece, n_bins=10)
    >>> stream.update([[0.9, 0.1], [0.2, 0.8]], [0, 1])
    >>> stream.update([[0.6, 0.4]], [1])
    >>> round(stream.value, 6)
    0.3
    """

    def __init__(self, metric: Metric, **options: Any) -> None:
        metric.check(options)
        self.metric = metric
        self.options = options
        self._parts: list[Statistic] = []

    def update(
        self, probs: ArrayLike, labels: ArrayLike, *, from_logits: bool = False, ignore_index: int | None = None
    ) -> None:
        """Take in the next predictions."""
        found = self.metric.stats(probs, labels, from_logits=from_logits, ignore_index=ignore_index, **self.options)
        self._take(found)

    def _take(self, stats: Statistic) -> None:
        if isinstance(stats, Additive) and self._parts:
            self._parts = [self._parts[0] + stats]
        else:
            self._parts.append(stats)

    @property
    def stats(self) -> Statistic:
        """The statistic of everything so far."""
        if not self._parts:
            raise InputError(f"this stream of {self.metric.name} has seen no predictions yet")
        if len(self._parts) > 1:
            self._parts = [type(self._parts[0]).combine(self._parts)]
        return self._parts[0]

    @property
    def value(self) -> float:
        """The metric of everything so far."""
        return self.metric.value(self.stats, **self.options)

    @property
    def grows(self) -> bool:
        """Does its memory grow with the data?"""
        return not isinstance(self.stats, Additive)

    def __add__(self, other: Stream) -> Stream:
        if (other.metric, other.options) != (self.metric, self.options):
            raise InputError("only streams of the same metric with the same settings add")
        both = Stream(self.metric, **self.options)
        for part in (*self._parts, *other._parts):
            both._take(part)
        return both

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Stream({self.metric.__name__}{settings})"
