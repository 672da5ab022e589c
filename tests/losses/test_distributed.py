"""Two real processes with half of a batch each, and one with all of it: the same value, the same gradient."""

import pytest
import torch
from torch import Tensor

import processes
from temperance.losses import LOSSES, Loss
from temperance.losses.distributed import processes as n_processes

Found = list[dict[str, dict[str, Tensor]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return processes.run(tmp_path_factory.mktemp("processes"))


# The mean of a per-sample loss is each process's own, so that it is left out for batches of different size.
CASES = [
    pytest.param(cls, case, reduction, id=f"{cls.name}-{case}-{reduction}")
    for cls in LOSSES
    for case in processes.SIZES
    for reduction in ("mean", "sum")
    if not (cls.per_sample and reduction == "mean" and case == "unequal")
]


@pytest.mark.parametrize(("cls", "case", "reduction"), CASES)
def test_two_processes_are_one(found: Found, cls: type[Loss], case: str, reduction: str) -> None:
    sizes = processes.SIZES[case]
    alone = processes.step(
        processes.make(cls, sum(sizes), reduction=reduction), processes.network(), processes.batch(sum(sizes))
    )
    ours = [result[f"{cls.name} {reduction} {case}"] for result in found]
    values = torch.stack([one["value"] for one in ours])
    together = values.mean() if reduction == "mean" else values.sum()
    assert torch.allclose(together, alone["value"], atol=1e-6)
    # DistributedDataParallel has averaged the gradients; a sum over processes is twice the average.
    factor = 1 if reduction == "mean" else 2
    for name in "01":
        for one in ours:
            assert torch.allclose(factor * one[name], alone[name], atol=1e-6), name
    # The memory of both batches is the same on every process.
    for name in alone.keys() - {"value", "0", "1"}:
        for one in ours:
            assert torch.allclose(one[name], alone[name]), name


def test_without_a_process_group_there_is_one() -> None:
    assert n_processes() == 1
