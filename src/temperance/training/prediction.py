"""The logits of a network for a part of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from temperance.data import Part, normalised
from temperance.training.processes import gathered, own_share


def device_of(network: nn.Module) -> torch.device:
    """The device of a network's first parameter or buffer."""
    for tensor in (*network.parameters(), *network.buffers()):
        return tensor.device
    return torch.device("cpu")


def predict(
    network: nn.Module,
    part: Part,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    batch_size: int = 1000,
    precision: str = "float32",
) -> Tensor:
    """The logits of every image of a part, in order, as float32 on the network's device. (n, k)

    Under `torchrun` the processes share the work and each gets all logits. With precision "float32" GPUs do not use
    TF32, which would change the third digit of a logit.
    """
    device = device_of(network)
    was_training = network.training
    network.eval()
    shift, scale = (torch.tensor(values, device=device) for values in (mean, std))
    outputs = []
    with torch.no_grad(), exact(precision), torch.autocast(device.type, torch.bfloat16, precision == "bfloat16"):
        for batch in part.batches(own_share(len(part)), batch_size, device=device):
            outputs.append(network(normalised(batch.pixels, shift, scale)).float())
    network.train(was_training)
    return gathered(torch.cat(outputs), len(part))


@contextmanager
def exact(precision: str) -> Iterator[None]:
    """Switch off TF32 on GPUs if the precision is float32."""
    if precision != "float32" or not torch.cuda.is_available():
        yield
        return
    flags: Any = torch.backends.cudnn.flags  # has no types
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
