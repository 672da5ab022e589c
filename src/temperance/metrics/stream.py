"""Any metric over data that comes in pieces: chunks of a file, batches of a loop, several processes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from temperance.arrays import ArrayLike
from temperance.errors import InputError, NothingCountsError
from temperance.metrics.base import Metric, need_metric
from temperance.metrics.statistic import Additive, Running, Statistic


class Stream:
    """A metric that is fed piece by piece and gives its value for everything so far.

    Its memory is that of the metric's statistic: a few numbers per bin, or per class and bin, if the metric allows it
    (`stream.grows` is false); all confidences if their order matters. Streams of the same metric add, so several
    processes can each feed one and send it to another: it pickles, and its state is tensors only.

    >>> from temperance.metrics import ece
    >>> stream = Stream(ece, n_bins=10)
    >>> stream.update([[0.9, 0.1], [0.2, 0.8]], [0, 1])
    >>> stream.update([[0.6, 0.4]], [1])
    >>> round(stream.value, 6)
    0.3
    """

    def __init__(self, metric: Metric, **options: Any) -> None:
        need_metric(metric)
        metric.check(options)
        self.metric = metric
        self.options = options
        self._stats = Running()

    def update(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        from_logits: bool = False,
        ignore_index: int | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        """Add the next predictions; a piece in which no sample counts changes nothing."""
        with suppress(NothingCountsError):
            found = self.metric.stats(
                probs, labels, from_logits=from_logits, ignore_index=ignore_index, weights=weights, **self.options
            )
            self._stats.add(found)

    @property
    def stats(self) -> Statistic:
        """The statistic of everything so far."""
        if not self._stats:
            raise InputError(f"this stream of {self.metric.name} has seen no predictions yet")
        return self._stats.total

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
        for found in (*self._stats, *other._stats):
            both._stats.add(found)
        return both

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Stream({self.metric.__name__}{settings})"
