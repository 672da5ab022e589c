"""Partitions of a Dask frame become statistics where they lie, by the one function that the docs show."""

from multiprocessing import set_forkserver_preload

import numpy as np
import pandas
import pytest
import torch

import temperance
from conftest import random_predictions

dask = pytest.importorskip("dask", reason="needs dask[dataframe]")
pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]")

# Dask's own, about pandas and pyarrow.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

N, K = 3000, 4
METRICS = ["accuracy", "nll", "ece", "classwise-ece", "aurc"]


def test_a_frame_gives_what_one_process_gives() -> None:
    from dask import dataframe

    logits, labels = random_predictions(N, K)
    table = pandas.DataFrame(logits.numpy(), columns=[f"logits_{j}" for j in range(K)]).assign(label=labels.numpy())
    parts = [
        dask.delayed(temperance.statistics)(part, METRICS)
        for part in dataframe.from_pandas(table, npartitions=7).to_delayed()
    ]
    # Both processes are forks of one that has imported these.
    set_forkserver_preload(["temperance.jobs.blocks", "dask.dataframe", "dask.multiprocessing"])
    with dask.config.set({"multiprocessing.context": "forkserver"}):
        found = temperance.combine(dask.compute(*parts, scheduler="processes", num_workers=2))
    expected = temperance.evaluate(table, metrics=METRICS)
    for one, other in zip(found.rows, expected.rows, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-12) and one.n == other.n
        assert one.low <= one.value <= one.high
    assert np.array_equal(found.reliability.count, expected.reliability.count)


def test_sums_on_the_way_back() -> None:
    """A tree of sums: no process ever holds more than a few statistics."""
    logits, labels = random_predictions(N, K)
    blocks = zip(torch.split(logits, 250), torch.split(labels, 250), strict=True)
    parts = [dask.delayed(temperance.statistics)({"logits": z, "label": y}, METRICS) for z, y in blocks]
    while len(parts) > 1:
        parts = [sum(pair[1:], pair[0]) for pair in (parts[i : i + 2] for i in range(0, len(parts), 2))]
    found = temperance.combine(dask.compute(parts[0], scheduler="threads"))
    expected = temperance.evaluate(logits, labels, from_logits=True, metrics=METRICS)
    for one, other in zip(found.rows, expected.rows, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-12)
