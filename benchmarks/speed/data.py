"""Predictions whose best temperature is exactly 2.5 and whose accuracy is about 70 %."""

import numpy as np
import numpy.typing as npt
import torch

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

# How far the true class stands out, for about 70 % accuracy at each number of classes.
SEPARATION = {2: 0.75, 5: 1.66, 10: 2.10, 100: 3.07, 1000: 3.80}


def synthetic_logits(n: int, k: int, seed: int = 0) -> Arrays:
    """Float32 logits 2.5 · a · (noise + a · onehot(label)): 2.5 times as large as calibrated ones."""
    generator = torch.Generator().manual_seed(seed)
    a = SEPARATION[k]
    labels = torch.randint(k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator)
    logits[torch.arange(n), labels] += a
    return logits.mul_(2.5 * a).numpy(), labels.numpy()


def synthetic_probs(n: int, k: int) -> Arrays:
    """The softmax of `synthetic_logits`."""
    logits, labels = synthetic_logits(n, k)
    return torch.from_numpy(logits).softmax(1).numpy(), labels
