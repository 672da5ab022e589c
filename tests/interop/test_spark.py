"""Partitions of a Spark frame become statistics where they lie, by the lines that the docs show."""

import pickle
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pandas
import pyarrow
import pytest

import temperance
from conftest import random_predictions

pytest.importorskip("pyspark", reason="needs pyspark")
if shutil.which("java") is None:
    pytest.skip("needs java", allow_module_level=True)

# Spark's own, about pandas, and about the processes that it leaves to the end of the session.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

N, K = 1200, 4
METRICS = ["accuracy", "nll", "ece", "classwise-ece"]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "250").getOrCreate()
    yield session
    session.stop()


def test_a_frame_gives_what_one_process_gives(spark: Any) -> None:
    # In here, so that Spark sends it to its workers, which cannot import this file.
    def measure(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            found = temperance.statistics(pyarrow.Table.from_batches([batch]), METRICS, intervals=False)
            yield pyarrow.record_batch({"found": [pickle.dumps(found)]})

    logits, labels = random_predictions(N, K)
    table = pandas.DataFrame({"logits": [row.tolist() for row in logits], "label": labels.tolist()})
    frame = spark.createDataFrame(table).repartition(3)
    rows = frame.mapInArrow(measure, "found binary").collect()
    assert len(rows) >= 3  # a statistic for each batch of each partition
    found = temperance.combine(pickle.loads(row.found) for row in rows)
    expected = temperance.evaluate(logits, labels, from_logits=True, metrics=METRICS, bootstrap=0)
    for one, other in zip(found.rows, expected.rows, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-12) and one.n == other.n == N
