"""Statistics: named tensors that describe a set of rows, and add.

The statistics of two sets of rows sum to those of both together. So files in chunks, streams, several processes,
bootstrap resamples and plots all share one source, and a plot cannot disagree with a number.

A batch whose rows are assigned to parts gives the statistics of all parts at once: every tensor of an `Additive` one
has an extra leading dimension. `whole` sums the parts, `resampled` counts each part as often as a resample drew it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from temperance.arrays import no_weight, repeated_rows
from temperance.errors import InputError
from temperance.numerics import is_whole

# This many values of resampled statistics are computed at a time.
SLAB_VALUES = 1 << 19


@dataclass(frozen=True)
class Statistic:
    """Named tensors that describe a set of rows, and how two sets combine."""

    def __add__(self, other: Self) -> Self:
        return type(self).combine([self, other])

    @classmethod
    def combine(cls, several: Sequence[Self]) -> Self:
        """The statistic of all rows together."""
        raise NotImplementedError

    def absorb(self, others: Sequence[Self]) -> Self:
        """Like `combine` with this one, whose memory may be reused."""
        return type(self).combine([self, *others])

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name, to store or to send to another process; without weights there is no field for them."""
        found = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: tensor for name, tensor in found if tensor is not None}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The statistic with this change applied to every field."""
        return type(self)(*map(change, self.tensors().values()))

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def settled(self) -> Statistic:
        """What a metric's value is computed from; usually the statistic itself."""
        return self

    @property
    def form(self) -> tuple[int, ...]:
        """What must be equal for two statistics of the same kind to add."""
        return ()

    @property
    def is_weighted(self) -> bool:
        """Do the rows have weights? Counts are then sums of weights, in float64."""
        count = self.tensors().get("count")
        return count is not None and count.is_floating_point()

    def check_adds(self, other: Statistic) -> None:
        """Refuse to add an incompatible statistic."""
        if type(other) is not type(self):
            kinds = f"{type(self).__name__} and {type(other).__name__}"
            raise InputError(f"only statistics of the same kind add; got {kinds}")
        if other.form != self.form:
            raise InputError(
                f"statistics with different n_bins or classes do not add: shapes {self.form} and {other.form}"
            )
        if other.is_weighted != self.is_weighted:
            raise InputError("some of these predictions have weights and some do not: give all of them weights")

    @classmethod
    def _fields_of(cls, several: Sequence[Self]) -> list[list[Tensor]]:
        for each in several:
            several[0].check_adds(each)
        return [list(tensors) for tensors in zip(*(each.tensors().values() for each in several), strict=True)]


@dataclass(frozen=True)
class Additive(Statistic):
    """A statistic whose tensors sum. Its size does not depend on the number of rows."""

    @classmethod
    def combine(cls, several: Sequence[Self]) -> Self:
        return cls(*(functools.reduce(torch.add, tensors) for tensors in cls._fields_of(several)))

    def absorb(self, others: Sequence[Self]) -> Self:
        for mine, *more in type(self)._fields_of([self, *others]):
            for tensor in more:
                mine += tensor
        return self

    @property
    def worth_waiting_for(self) -> int:
        """How many bytes of statistics to collect before combining them."""
        return 0

    @property
    def form(self) -> tuple[int, ...]:
        return tuple(next(iter(self.tensors().values())).shape)

    @property
    def fixed_values(self) -> int:
        """How many numbers one part has, independent of its rows."""
        return sum(tensor.numel() for tensor in self.tensors().values())

    def most_bytes(self, n_parts: int) -> int:
        """The most memory that this many parts can take, whatever rows are added."""
        return self.nbytes

    def whole(self) -> Self:
        """The sum of all parts."""
        return self.mapped(lambda tensor: tensor.sum(0))

    def resampled(self, weights: Tensor) -> Iterator[Self]:
        """For each row of `weights` (resamples, parts), the weighted sum of the parts."""
        stacked = list(self.tensors().values())
        for drawn in in_slabs(weights.to(stacked[0].device), sum(tensor[0].numel() for tensor in stacked)):
            summed = [weighted(drawn, tensor) for tensor in stacked]
            yield from (type(self)(*fields) for fields in zip(*summed, strict=True))


def in_slabs(weights: Tensor, size: int) -> Sequence[Tensor]:
    """The weights in slabs of resamples that make `SLAB_VALUES` numbers, if each makes `size`."""
    return torch.split(weights.double(), max(1, SLAB_VALUES // max(size, 1)))


def weighted(weights: Tensor, stacked: Tensor) -> Tensor:
    """(resamples, parts) times (parts, ...), in the dtype of the second. (resamples, ...)"""
    flat = weights @ stacked.reshape(len(stacked), -1).double()
    return flat.to(stacked.dtype).reshape(len(weights), *stacked.shape[1:])


@dataclass(frozen=True)
class Samples(Statistic):
    """Rows that are kept, for metrics that need more than sums. It grows with the data.

    A subclass has the rows' `weights` as its last field, None if all rows count equally.
    """

    @property
    def counts(self) -> Tensor | None:
        """How much each row counts; None if all count equally. (n,)"""
        return getattr(self, "weights", None)

    @property
    def is_weighted(self) -> bool:
        return self.counts is not None

    def repeated(self) -> Self:
        """Each row repeated by its weight, which must be a whole number."""
        if self.counts is None:
            return self
        if not is_whole(self.counts):
            raise needs_whole_weights("this metric")
        remedy = "Divide the weights by their mean, or leave out metrics that need whole weights"
        return self.select(repeated_rows("this metric", self.counts, remedy)).unweighted()

    def unweighted(self) -> Self:
        """The same rows, all counting equally."""
        return self if self.counts is None else type(self)(*list(self.tensors().values())[:-1])

    @classmethod
    def combine(cls, several: Sequence[Self]) -> Self:
        return cls(*(torch.cat(tensors) for tensors in cls._fields_of(several)))

    def select(self, index: Tensor | slice) -> Self:
        """Some of the rows, in the order of `index`."""
        return self.mapped(lambda tensor: tensor[index])

    def redrawn(self, size: int, generator: torch.Generator | None, *, paired: bool) -> Self:
        """`size` rows, drawn with replacement; `paired` as in `resample`."""
        return self.select(self._drawn(size, generator))

    def _drawn(self, size: int, generator: torch.Generator | None) -> Tensor:
        """Rows drawn with replacement, in ascending order. (size,)

        Ties are measured in the order of the data, so a resample must keep it: in a new order they would have new noise
        that says nothing about that of the data.
        """
        # Partial sums of exponential variables over their total are uniform and ascending, so nothing is sorted.
        steps = torch.empty(size + 1, dtype=torch.float64).exponential_(generator=generator).cumsum(0)
        index = (steps[:-1] * (len(self) / steps[-1])).long().clamp_max_(len(self) - 1)
        return index.to(next(iter(self.tensors().values())).device)

    def __len__(self) -> int:
        return len(next(iter(self.tensors().values())))


@dataclass(frozen=True)
class RankedSamples(Samples):
    """Two numbers and a weight for each row, which metrics read in the order of the first number. (n,) each"""

    # Not a reference to itself: such a cycle would keep the rows of every resample until garbage is collected.
    _is_ordered: ClassVar[bool] = False

    @property
    def ordered(self) -> Self:
        """The rows in this order."""
        return self if self._is_ordered else self._put_in_order

    @cached_property
    def _put_in_order(self) -> Self:
        return self._sorted()._in_order()

    def _sorted(self) -> Self:
        raise NotImplementedError

    def order(self) -> Tensor:
        """The index of each row in this order; equal rows keep the order of the data. (n,)"""
        raise NotImplementedError

    def select_in_order(self, index: Tensor) -> Self:
        """Some rows, whose `index` follows this order."""
        return self.select(index)._in_order()

    def _in_order(self) -> Self:
        self.__dict__["_is_ordered"] = True
        return self

    @cached_property
    def has_ties(self) -> bool:
        """Do rows that tie in the order differ in their second number?"""
        key, value, *_ = self.ordered.tensors().values()
        return bool(((key[1:] == key[:-1]) & (value[1:] != value[:-1])).any())

    def level(self) -> Self:
        """With the mean of the second number, where rows are equal in the order, for each of these rows."""
        key, value, *weights = self.ordered.tensors().values()
        _, tie, size = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
        total = torch.bincount(tie, value if not weights else value * weights[0])
        mean = total / (size if not weights else torch.bincount(tie, weights[0]))
        return type(self)(*(key, mean[tie], *weights))._in_order()

    def repeated(self) -> Self:
        return self if self.counts is None else Samples.repeated(self.ordered)._in_order()

    def redrawn(self, size: int, generator: torch.Generator | None, *, paired: bool) -> Self:
        if paired:  # this order depends on the predictions
            return super().redrawn(size, generator, paired=paired)
        return self.ordered.select(self._drawn(size, generator))._in_order()


class Running:
    """A running sum of statistics, with few copies.

    If the number of rows is known in advance (`n`), they are written to their place. Additive statistics are added in
    place, once there are enough of them.
    """

    def __init__(self, n: int | None = None) -> None:
        self._several: list[Statistic] = []
        self._n, self._filled = n, 0
        self._waiting = 0
        self._is_own = False  # may the first be changed in place? Not if a caller holds it too

    def add(self, found: Statistic) -> None:
        """Add the statistic of more rows."""
        if self._several:
            self._several[0].check_adds(found)
        if isinstance(found, Samples) and self._n is not None:
            self._put(found, self._n)
            return
        self._several.append(found)
        if isinstance(found, Additive):
            self._waiting += found.nbytes
            first = self._several[0]
            if found is not first and isinstance(first, Additive) and self._waiting > first.worth_waiting_for:
                self._merge()

    def _put(self, found: Samples, n: int) -> None:
        new = found.tensors()
        if not self._several:
            self._several = [type(found)(*(tensor.new_empty(n, *tensor.shape[1:]) for tensor in new.values()))]
        for name, tensor in self._several[0].tensors().items():
            tensor[self._filled : self._filled + len(found)] = new[name]
        self._filled += len(found)

    def _merge(self) -> None:
        first, *others = self._several
        both = first.absorb(others) if self._is_own else type(first).combine(self._several)
        self._several = [both]
        self._waiting, self._is_own = 0, True

    @property
    def total(self) -> Statistic:
        """The statistic of everything so far."""
        if not self._several:
            raise no_weight()
        if len(self._several) > 1:
            self._merge()
        self._is_own = False
        if isinstance(found := self._several[0], Samples) and self._n is not None and self._filled < self._n:
            return found.select(slice(0, self._filled))  # fewer rows than expected: some have weight 0
        return found

    @property
    def nbytes(self) -> int:
        """The memory they take."""
        return sum(each.nbytes for each in self._several)

    def __bool__(self) -> bool:
        return bool(self._several)

    def __iter__(self) -> Iterator[Statistic]:
        self._is_own = False  # the caller may keep the first
        return iter(self._several)


def needs_whole_weights(name: str) -> InputError:
    """The error for weights that are not whole, where that matters."""
    return InputError(
        f"{name} depends on the number of samples, so weights must be whole numbers that count samples; some of these "
        "are not. Leave the metric out, or measure without weights"
    )


def in_bytes(count: int) -> str:
    """A number of bytes in readable units.

    >>> in_bytes(6_400_000_000), in_bytes(72_000)
    ('6.4 GB', '72 kB')
    """
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
