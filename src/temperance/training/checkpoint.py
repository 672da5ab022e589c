"""Checkpoints: everything that changes during a training, in one .safetensors file.

Orders, crops, mixtures and dropout come from generators that are seeded for every epoch from the seed and the epoch's
number. So no generator state has to be saved, and a run that was killed anywhere resumes bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import FileError, InputError
from temperance.files import check_format, read_tensors, reading, write_tensors

FORMAT = 1


@dataclass(frozen=True)
class Progressed:
    """The progress of a training: a row of the log for each finished epoch, and the best epoch so far."""

    history: list[dict[str, Any]]
    best: int | None


def save_checkpoint(
    path: Path,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: nn.Module,
    configuration: Mapping[str, Any],
    progressed: Progressed,
) -> None:
    """Replace the checkpoint in one step, so that there is always a complete one."""
    scalars: dict[str, dict[str, Any]] = {}
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"loss.{name}": tensor for name, tensor in loss.state_dict().items()}
    for place, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{place}.{name}"] = value
            else:
                scalars.setdefault(str(place), {})[name] = value
    header = {
        "temperance_checkpoint": str(FORMAT),
        "configuration": json.dumps(configuration),
        "history": json.dumps(progressed.history),
        "best": json.dumps(progressed.best),
        "optimiser": json.dumps(scalars),
    }
    write_tensors(path, tensors, header)


def network_of(path: Path) -> dict[str, Tensor]:
    """The weights of the network of a checkpoint: those of the last finished epoch, whichever epoch is kept."""
    return _under("network.", read_tensors(path)[0])


def load_checkpoint(
    path: Path,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: nn.Module,
    configuration: Mapping[str, Any],
) -> Progressed:
    """Restore a network, an optimiser and a loss from a checkpoint."""
    tensors, header = read_tensors(path)
    with reading(path):
        if "temperance_checkpoint" not in header:
            raise FileError(f"{path} is not a checkpoint saved by temperance")
        check_format(path, header["temperance_checkpoint"], FORMAT)
        _check_same(path, json.loads(header["configuration"]), configuration)
        network.load_state_dict(_under("network.", tensors))
        loss.load_state_dict(_under("loss.", tensors))
        states: dict[int, dict[str, Any]] = {int(p): dict(s) for p, s in json.loads(header["optimiser"]).items()}
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        for name, tensor in _under("optimiser.", tensors).items():
            place, _, key = name.partition(".")
            states.setdefault(int(place), {})[key] = _laid_out_like(parameters[int(place)], tensor)
        optimiser.load_state_dict({**optimiser.state_dict(), "state": states})
        return Progressed(json.loads(header["history"]), json.loads(header["best"]))


def _laid_out_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A tensor in its parameter's memory format, which files do not preserve and fused optimisers on a GPU need."""
    return torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor) if tensor.shape == parameter.shape else tensor


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _check_same(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to resume with settings other than those the run started with, as far as the checkpoint has them."""
    different = [name for name in there if there[name] != json.loads(json.dumps(here.get(name)))]
    if different:
        name = different[0]
        raise InputError(
            f"this checkpoint belongs to a run with {name} {there.get(name)!r}, not {here.get(name)!r}: resume with "
            "the same settings, or train in another folder"
        )
