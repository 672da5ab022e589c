"""Metrics of temperance as torchmetrics objects: reset, update, compute, exact over several processes.

    metrics = MetricCollection({name: CalibrationMetric(name, from_logits=True) for name in ("ece", "nll")})
    metrics.update(logits, labels)
    metrics.compute()  # {"ece": tensor(…), "nll": tensor(…)}

A metric's state is its statistic, which adds: whatever is synced or merged has the value of all samples together.
Metrics of the same statistic share one in a `MetricCollection`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from temperance.errors import InputError, NothingCountsError, optional
from temperance.metrics import METRICS
from temperance.metrics.statistic import Additive, Statistic

with optional("torchmetrics", "torchmetrics", "temperance.interop.torchmetrics"):
    import torchmetrics
    from torchmetrics.utilities.data import dim_zero_cat

# The types of tensors in statistics; float64 holds the values of all of them.
TYPES = (torch.int64, torch.float64, torch.float32, torch.bool)

MOST_PARTS = 64  # statistics of batches that wait to be added up


class CalibrationMetric(torchmetrics.Metric):
    """A metric of temperance, by its name, as a torchmetrics object: `update(preds, target)`, `compute()`, `reset()`.

    from_logits   predictions are logits; otherwise they must be probabilities
    ignore_index  samples with this label are ignored
    options       the metric's settings, such as n_bins=15, and those of torchmetrics, such as sync_on_compute

    >>> found = CalibrationMetric("ece", n_bins=10)
    >>> found.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
    >>> found.update(torch.tensor([[0.6, 0.4]]), torch.tensor([1]))
    >>> round(float(found.compute()), 6)
    0.3
    """

    full_state_update = False
    is_differentiable = False
    statistics: list[Tensor]

    def __init__(
        self, metric: str, *, from_logits: bool = False, ignore_index: int | None = None, **options: Any
    ) -> None:
        self.metric = METRICS[metric]
        own = {name: value for name, value in options.items() if name in self.metric.options}
        super().__init__(**{name: value for name, value in options.items() if name not in own})
        self.metric.check(own)
        self.options, self.from_logits, self.ignore_index = own, from_logits, ignore_index
        example = self.metric.stats([[0.5, 0.5]], [0], **own)
        self._kind, self._n_tensors = type(example), len(example.tensors())
        # So that a collection shares a state only between metrics of the same statistic.
        shaped_by = sorted(self.metric.own_stats_options({**self.metric.stats_options, **own}).items())
        self._mark = zlib.crc32(repr((self.metric.of_batch.__name__, shaped_by, from_logits, ignore_index)).encode())
        self.add_state("statistics", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add predictions (n, k) or (n, k, …) and labels; a batch whose labels are all ignored changes nothing."""
        try:
            found = self.metric.stats(
                preds, target, from_logits=self.from_logits, ignore_index=self.ignore_index, **self.options
            )
        except NothingCountsError:
            return
        self.statistics.append(self._packed(found))
        if len(self.statistics) > MOST_PARTS and isinstance(found, Additive):
            self.statistics = [self._packed(self.total())]

    def compute(self) -> Tensor:
        """The value for everything so far, over all processes; NaN if every label was ignored."""
        nothing = self.update_called and not len(self.statistics)
        value = math.nan if nothing else self.metric.value(self.total(), **self.options)
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """A picture of the value, or of several values in a row, as every metric of torchmetrics draws it."""
        return self._plot(val, ax)

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """What torchmetrics asks when it looks for the best value."""
        worse = self.metric.lower_is_better
        return None if worse is None else not worse

    def total(self) -> Statistic:
        """The statistic of everything so far."""
        packed = dim_zero_cat(self.statistics) if len(self.statistics) else torch.empty(0)
        several = list(self._unpacked(packed))
        if not several:
            raise InputError(f"the metric {self.metric.name} has seen no predictions yet")
        return self._kind.combine(several) if len(several) > 1 else several[0]

    def _packed(self, found: Statistic) -> Tensor:
        """A statistic as one row of numbers: a mark, then type, shape and values of each tensor."""
        tensors = list(found.tensors().values())
        parts = [tensors[0].new_tensor([self._mark], dtype=torch.float64)]
        for tensor in tensors:
            head = [TYPES.index(tensor.dtype), tensor.ndim, *tensor.shape]
            parts += [tensor.new_tensor(head, dtype=torch.float64), tensor.double().flatten()]
        return torch.cat(parts)

    def _unpacked(self, packed: Tensor) -> Iterator[Statistic]:
        """The statistics that were packed one after the other."""
        at = 0
        while at < len(packed):
            at += 1  # the mark
            tensors = []
            for _ in range(self._n_tensors):
                kind, ndim = (int(value) for value in packed[at : at + 2])
                shape = [int(size) for size in packed[at + 2 : at + 2 + ndim]]
                at += 2 + ndim
                size = math.prod(shape)
                tensors.append(packed[at : at + size].reshape(shape).to(TYPES[kind]))
                at += size
            yield self._kind(*tensors)
