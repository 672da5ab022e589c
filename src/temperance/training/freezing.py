"""Progressive freezing: a network is frozen from the top as it trains, so that its last layers stop fitting first."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from torch import nn

from temperance.errors import InputError, unknown_name
from temperance.settings import AtLeastTwo, Count, Positive, of_kind
from temperance.training.networks import Network


class ProgressiveFreezing:
    """PLP: the classifier is frozen first, then the layers below it, group by group; the first group trains to the end.

    With L groups the k-th group from the top is frozen from epoch e_k = ⌊epochs · (k/L)^power⌋ on, counted from 0.

    network  a network of temperance, or any module whose parts are defined in the order of their use
    groups   the maximum number of groups, or the names of the modules at which groups begin. The parts of the network
             (the stem, every block, …, the classifier; in other modules every layer with weights) are distributed
             evenly; if that is not possible, early groups have one part more
    power    below 1 freezes later, above 1 earlier

    The trap: a gradient of zero stops neither momentum nor weight decay, so a frozen parameter must be left out of the
    step. BatchNorm continues to update its statistics. In your own training loop, before the step:

        for parameter in freezing.frozen(epoch):
            parameter.grad = None

    The original program uses positions in the list of parameters, and for ResNet-18 cuts the last block in two. The
    same groups by name: ["stem", "blocks.0", …, "blocks.7.conv1", "blocks.7.conv2", "classifier"].

    >>> from temperance.training.networks import make_network
    >>> freezing = ProgressiveFreezing(make_network("small-cnn", classes=10), 20)
    >>> freezing.epochs
    (0, 5, 10, 15)
    >>> [tuple(parameter.shape) for parameter in freezing.frozen(7)]
    [(10, 64), (10,)]

    Wang and Zhang, Calibration bottleneck: over-compressed representations are less calibratable, ICML 2024.
    """

    def __init__(
        self, network: nn.Module, epochs: int, *, groups: int | Sequence[str] = 11, power: float = 1.0
    ) -> None:
        of_kind("epochs", epochs, Count)
        of_kind("power", power, Positive)
        if isinstance(groups, int):
            of_kind("groups", groups, AtLeastTwo)
            self.groups = _merged(list(_parts(network)), groups)
        else:
            self.groups = _from_names(network, groups)
        if len(self.groups) < 2:
            raise InputError(f"progressive freezing needs at least two groups of layers; there is {len(self.groups)}")
        self.epochs = freezing_epochs(epochs, len(self.groups), power)
        # Indexed by the number of frozen groups.
        self._frozen = [
            tuple(itertools.chain.from_iterable(self.groups[kept:])) for kept in range(len(self.groups), 0, -1)
        ]

    def frozen(self, epoch: int) -> tuple[nn.Parameter, ...]:
        """The parameters that do not change in an epoch, counted from 0."""
        return self._frozen[bisect_right(self.epochs, epoch) - 1]


def freezing_epochs(epochs: int, groups: int, power: float = 1.0) -> tuple[int, ...]:
    """The epochs from which 0, 1, … groups − 1 groups are frozen.

    >>> freezing_epochs(350, 11)
    (0, 31, 63, 95, 127, 159, 190, 222, 254, 286, 318)
    """
    # Slightly more, because 100 · 0.29 is 28.999… in floating point.
    return tuple(int(epochs * (k / groups) ** power + 1e-9) for k in range(groups))


def _parts(network: nn.Module) -> Iterator[tuple[nn.Parameter, ...]]:
    """The parameters of each part of a network; one that several parts share belongs to the first."""
    if isinstance(network, Network):
        parts = [list(part.parameters()) for part in network.groups()]
    else:
        parts = [list(module.parameters(recurse=False)) for module in network.modules()]
    seen: set[nn.Parameter] = set()
    for part in parts:
        own = tuple(parameter for parameter in part if parameter not in seen)
        seen.update(own)
        if own:
            yield own


def _merged(parts: list[tuple[nn.Parameter, ...]], count: int) -> list[tuple[nn.Parameter, ...]]:
    """Merge neighbouring parts into at most `count` groups of nearly equal numbers of parts."""
    count = min(count, len(parts))
    size, more = divmod(len(parts), max(count, 1))
    queue = iter(parts)
    sizes = [size + (number < more) for number in range(count)]
    return [tuple(itertools.chain.from_iterable(itertools.islice(queue, size))) for size in sizes]


def _from_names(network: nn.Module, names: Sequence[str]) -> list[tuple[nn.Parameter, ...]]:
    """Groups that begin at the named modules."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InputError(f"groups must be a whole number or a list of names of modules; got {names!r}")
    modules = dict(network.named_modules())
    parameters = list(network.parameters())
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    starts: list[int] = []
    for name in names:
        if name not in modules:
            raise unknown_name("module of the network", name, (known for known in modules if known))
        first = next(modules[name].parameters(), None)
        if first is None:
            raise InputError(f"a group begins at a module with weights; {name} has none")
        if starts and places[id(first)] <= starts[-1]:
            raise InputError(f"groups must be named in order, from the images to the logits; {name} is out of order")
        starts.append(places[id(first)])
    # Parameters before the first named module belong to its group.
    cuts = [0, *starts[1:], len(parameters)]
    return [tuple(parameters[start:end]) for start, end in itertools.pairwise(cuts)]
