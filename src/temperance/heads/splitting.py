"""A network as two parts: a body that turns images into features, and a classifier that turns these into logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from temperance.arrays import shape_of
from temperance.errors import InputError, unknown_name

# Usual names of the last layer, or of the part that ends with it.
USUAL_NAMES = ("classifier", "fc", "head", "heads", "linear", "last_linear", "output", "out", "logits")


@dataclass(frozen=True, eq=False)
class Split:
    """A network and the name of its classifier; both parts share their weights with it."""

    network: nn.Module
    name: str
    classifier: nn.Linear

    @property
    def body(self) -> Body:
        """Images to features (n, d)."""
        return Body(self)

    def joined(self, head: nn.Module) -> nn.Module:
        """The same network with another head in place of its classifier, moved to the classifier's device.

        All other layers are shared: training or moving one network changes both. Its `state_dict` has the original
        network's names, with the head's under the name of the classifier.
        """
        if not isinstance(head, nn.Module):
            raise InputError(f"a head must be a module that turns features into logits; got {type(head).__name__}")
        return _replaced(self.network, self.classifier, head.to(self.classifier.weight.device), {})


class Body(nn.Module):
    """The network up to its classifier: images to features (n, d).

    It runs the whole network and records the input of the classifier, so it works for any `forward`. It also checks
    that nothing follows the classifier: `network(images)` must be `classifier(body(images))`. In evaluation mode
    nothing in the network changes.
    """

    def __init__(self, parts: Split) -> None:
        super().__init__()
        self.network = parts.network
        self.name = parts.name
        self.n_features = parts.classifier.in_features
        self.training = parts.network.training

    def forward(self, images: Tensor) -> Tensor:
        calls: list[tuple[Tensor, Tensor]] = []

        def note(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
            calls.append((args[0] if args else named["input"], output))

        handle = self.network.get_submodule(self.name).register_forward_hook(note, with_kwargs=True)
        try:
            given = self.network(images)
        finally:
            handle.remove()
        if len(calls) != 1:
            times = "never" if not calls else f"{len(calls)} times"
            raise InputError(
                f"the network must call its classifier {self.name} once per batch; it called it {times}: name "
                "another layer, split(network, classifier=...)"
            )
        features, logits = calls[0]
        if features.ndim != 2:
            raise InputError(
                f"the input of the classifier {self.name} must be features (n, d), one row per image; it was "
                f"{shape_of(features)}"
            )
        if not _same(given, logits):
            raise InputError(
                f"the network must return what its classifier {self.name} returns, {shape_of(logits)}; it returns "
                f"{_described(given)}: name the last layer, split(network, classifier=...), or remove what follows it"
            )
        return features


def split(network: nn.Module, classifier: str | None = None, *, example: Tensor | None = None) -> Split:
    """A network as body and classifier, which is its last `nn.Linear`; the network itself is not changed.

    classifier  its name, such as "fc" or "head.fc"; if it names a container, the last linear layer inside. Without a
                name it is the last linear layer with a usual name (classifier, fc, head, …), or else the last one
                that the network defines.
    example     a batch of images to try it on. Without it, a network in which something follows the classifier is
                refused only when the body is first used.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> parts = split(network)
    >>> parts.name, parts.body(torch.ones(2, 3, 2, 2)).shape
    ('3', torch.Size([2, 5]))
    """
    network = _unwrapped(network)
    layers = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    name = _usual(network, layers) if classifier is None else _named(network, layers, classifier)
    if layers[name].out_features < 2:
        raise InputError(
            f"a classifier must have at least two classes; {name or 'the network'} has {layers[name].out_features}"
        )
    parts = Split(network, name, layers[name])
    if example is not None:
        with evaluating(network), torch.no_grad():
            parts.body(example)
    return parts


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and restore the mode of each of its parts afterwards."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


# ---------------------------------------------------------------------------------------------- finding the classifier


def _unwrapped(network: nn.Module) -> nn.Module:
    """The network inside the wrappers of `torch.compile` or data parallelism."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(network, wrappers):
            network = network.module
        elif isinstance(inner := getattr(network, "_orig_mod", None), nn.Module):
            network = inner
        else:
            return network


def _usual(network: nn.Module, layers: dict[str, nn.Linear]) -> str:
    if not layers:
        raise InputError(
            f"a network must end with a linear layer (nn.Linear) to be split; this {type(network).__name__} has none"
        )
    # The last one with a usual name, because a hidden layer may be called "fc" or "linear" too.
    usual = [name for name in layers if name.split(".")[0] in USUAL_NAMES]
    return (usual or list(layers))[-1]


def _named(network: nn.Module, layers: dict[str, nn.Linear], name: str) -> str:
    modules = dict(network.named_modules(remove_duplicate=False))
    if name not in modules:
        raise unknown_name("linear layer in the network", name, list(layers)[-8:])
    if name in layers:
        return name
    module = modules[name]
    inside = [known for known, layer in layers.items() if any(layer is part for part in module.modules())]
    if not inside:
        raise InputError(f"the classifier must be a linear layer (nn.Linear); {name} is a {type(module).__name__}")
    return inside[-1]


# -------------------------------------------------------------------------------------------------------------- parts


def _same(given: object, logits: Tensor) -> bool:
    """Is the output of the network that of the classifier, except for its precision?"""
    if given is logits:
        return True
    return isinstance(given, Tensor) and given.shape == logits.shape and torch.equal(given.to(logits.dtype), logits)


def _described(given: object) -> str:
    if isinstance(given, Tensor):
        return f"other numbers {shape_of(given)}"
    return f"a {type(given).__name__}"


def _replaced(module: nn.Module, old: nn.Module, new: nn.Module, twins: dict[int, nn.Module]) -> nn.Module:
    """A module with `new` in place of `old`: modules that contain `old` are copied, all others are shared."""
    if module is old:
        return new
    if id(module) not in twins:
        children = {
            name: None if child is None else _replaced(child, old, new, twins)
            for name, child in module._modules.items()
        }
        if all(child is module._modules[name] for name, child in children.items()):
            twins[id(module)] = module
        else:
            twins[id(module)] = _twin(module, children)
    return twins[id(module)]


def _twin(module: nn.Module, children: dict[str, nn.Module | None]) -> nn.Module:
    """A module with other children and everything else of this one."""
    twin: nn.Module = object.__new__(type(module))  # a traced network's own `__new__` would make another class
    for name, value in module.__dict__.items():
        if name == "_compiled_call_impl":  # of `module.compile()`; it calls the module, not its twin
            continue
        # Parameters and buffers are shared, so that both stay on one device; hooks are copied.
        if isinstance(value, dict) and name not in ("_parameters", "_buffers"):
            value = copy(value)
        elif isinstance(value, MethodType) and value.__self__ is module:
            value = MethodType(value.__func__, twin)
        elif name == "forward":
            raise InputError(
                f"the forward of this {type(module).__name__} was replaced by a function, which would go on to call "
                "the old classifier: split the network before (`del network.forward` restores it)"
            )
        twin.__dict__[name] = value
    twin.__dict__["_modules"] = children
    return twin
