"""What a calibrator learnt, in buffers that move, save and load with the network it is part of."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from temperance.calibrators.groups import Columns
from temperance.numerics import uncast, working_type


class Learnt(nn.Module):
    """A layer whose buffers are all that it learnt; they are in float64 whatever the type of the network."""

    n_classes: Tensor
    info: dict[str, Any]
    class_names: tuple[str, ...] | None  # if the labels were text or had names
    group_columns: Columns = ()  # if it was fitted with groups
    # `n_classes` as a Python number, which can be read while a network is traced.
    _k: int | None = None
    # Where it computes; known before it is fitted, so that loaded buffers go to the same device.
    _device: torch.device = torch.device("cpu")

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups that it was fitted with, sorted; those of several columns one after the other."""
        return tuple(name for names in self.group_columns for name in names)

    def _keep(self, name: str, value: Tensor) -> None:
        """Store something learnt as a buffer."""
        self.register_buffer(name, value.detach().clone())
        if name == "n_classes":
            self._k = int(value)

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore what was saved; a method made of other calibrators rebuilds them here."""
        for name, tensor in tensors.items():
            self._keep(name, tensor)

    def _forget(self) -> None:
        self._buffers.clear()
        self._modules.clear()
        self._k = None
        self.class_names, self.group_columns = None, ()
        self.info = {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers with the network, but do not round them when the network is cast."""
        device = fn(torch.empty(0, dtype=torch.float32, device=self._device)).device

        def moved(tensor: Tensor) -> Tensor:
            wanted = working_type(device) if tensor.is_floating_point() else tensor.dtype
            # A device without float64 cannot receive it either: round before moving there, widen after moving back.
            given = tensor.to(wanted) if wanted == torch.float32 else tensor
            return uncast(fn)(given).to(wanted)

        self._device = device
        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Load as any layer does, except that an unfitted calibrator, or one of other shapes, takes the saved ones."""
        given = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        if given and _shapes(given) != _shapes(self.state_dict()):
            device = self._device
            self._forget()
            self._restore(given)
            self.to(device)
        super()._load_from_state_dict(state_dict, prefix, *more)
        self._device = next((buffer.device for buffer in self.buffers()), self._device)
        self._apply(lambda tensor: tensor)  # widens a state that was cast
        if self._k is not None:
            self._k = int(self.n_classes)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
