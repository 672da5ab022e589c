"""On a Ray cluster: the numbers of one process, also if a worker dies, and sentences that name the file and the row."""

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from commands import run
from conftest import random_predictions
from temperance import Predictions, evaluate, read_predictions
from temperance.calibrators import Temperature
from temperance.errors import FileError, InputError
from temperance.jobs.evaluation import Evaluation
from temperance.predictions import write_predictions

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'temperance[ray]'")

from temperance.interop import ray as cluster  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # Ray's own, about its own settings.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

N, K, FILES = 3000, 4, 100
LOGITS, LABELS = random_predictions(N, K)


@pytest.fixture(scope="module", autouse=True)
def local_cluster() -> Iterator[None]:
    """A cluster of its own, with two workers for all tests of this file.

    `--dist loadfile` has them in one process: of two clusters that start together, one may take a port that the other
    has just found free. On a busy machine workers may take long to start. The name of Ray's folder is short, because
    the names of sockets are limited.
    """
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    options = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder,
    ):
        patch.setenv("RAY_worker_register_timeout_seconds", "600")
        ray.init(address="local", _temp_dir=folder, **options)
        try:
            yield
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred files, which no test changes."""
    folder = tmp_path_factory.mktemp("shards")
    for i, (logits, labels) in enumerate(zip(LOGITS.chunk(FILES), LABELS.chunk(FILES), strict=True)):
        write_predictions(folder / f"part-{i:03}.parquet", Predictions.of(logits, labels, from_logits=True))
    return folder


class Deadly(Temperature):
    """Kills the first worker that uses it."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker, self.here = marker, os.getpid()

    def predict_proba(self, logits: Any, *, groups: Any = None) -> Any:
        if os.getpid() != self.here and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().predict_proba(logits)


class Told:
    """Remembers how far a job said it was."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, steps: int, what: str) -> None:
        self.calls.append((done, steps))


def same_values(found: Evaluation, expected: Evaluation) -> None:
    assert [row.metric for row in found.rows] == [row.metric for row in expected.rows]
    for one, other in zip(found.rows, expected.rows, strict=True):
        assert one.n == other.n and one.value == pytest.approx(other.value, abs=1e-12), one.metric
    assert torch.equal(found.reliability.count, expected.reliability.count)
    assert torch.equal(found.reliability.hits, expected.reliability.hits)


def test_files_give_what_one_process_gives(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = evaluate(shards, bootstrap=50)
    for task_rows, tasks in ((cluster.TASK_ROWS, 1), (200, 15)):
        monkeypatch.setattr(cluster, "TASK_ROWS", task_rows)
        told = Told()
        found = cluster.evaluate(shards, bootstrap=50, progress=told)
        assert told.calls == [(done, tasks) for done in range(1, tasks + 1)]
        same_values(found, expected)
        assert found.verdict == expected.verdict and found.title == expected.title
        assert len(found.provenance.inputs) == FILES
    assert found.row("ece").low < found.row("ece").value < found.row("ece").high


def in_row_groups(path: Path, logits: torch.Tensor, rows: int) -> Path:
    """A .parquet file with a column of its own, in row groups of this many rows."""
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(logits.flatten().numpy()), K)
    table = pyarrow.table({"logits": lists, "label": LABELS.numpy(), "calibrated_by": ["nothing"] * N})
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return path


@pytest.mark.parametrize(("rows", "tasks"), [(70, 4), (1300, 3), (N, 1)])
def test_a_large_file_is_shared_by_its_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, tasks: int
) -> None:
    path = in_row_groups(tmp_path / "all.parquet", LOGITS, rows)
    monkeypatch.setattr(cluster, "TASK_ROWS", 700)
    assert len(list(cluster._together(read_predictions(path)))) == tasks
    same_values(cluster.evaluate(path, bootstrap=50), evaluate(path, bootstrap=50))
    bad = LOGITS.clone()
    bad[2345, 2] = torch.nan
    says = "all.parquet: logits must be finite; row 2345 (counting from 0), class 2 is nan"
    with pytest.raises(FileError, match=re.escape(says)):
        cluster.evaluate(in_row_groups(path, bad, rows))


def test_a_worker_dies_in_the_middle(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "TASK_ROWS", 500)
    marker = tmp_path / "killed"
    calibrator = Deadly(marker).fit(LOGITS, LABELS)
    found = cluster.evaluate(shards, calibrator=calibrator, bootstrap=0)
    assert marker.exists()  # a process was killed
    same_values(found, evaluate(shards, calibrator=calibrator, bootstrap=0))


def test_a_folder_is_calibrated_though_a_worker_dies(shards: Path, tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    calibrator = Deadly(marker).fit(LOGITS, LABELS)
    cluster.apply(calibrator, shards, tmp_path / "out")
    assert marker.exists()
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        f"part-{i:03}.parquet" for i in range(FILES)
    ]
    found = read_predictions(tmp_path / "out")
    torch.testing.assert_close(found.scores, calibrator.predict_proba(LOGITS))
    assert torch.equal(found.labels, LABELS) and found.calibrated_by == calibrator.name


def test_one_bad_row_in_a_hundred_files(shards: Path, tmp_path: Path) -> None:
    shards = shutil.copytree(shards, tmp_path / "shards")
    bad = LOGITS.chunk(FILES)[57].clone()
    bad[11, 2] = torch.nan
    write_predictions(shards / "part-057.parquet", Predictions.of(bad, LABELS.chunk(FILES)[57], from_logits=True))
    Temperature().fit(LOGITS, LABELS).save(tmp_path / "cal.safetensors")
    says = "part-057.parquet: logits must be finite; row 11 (counting from 0), class 2 is nan"
    measured = run("evaluate", shards, "--ray", "--json", tmp_path / "out.json")
    calibrated = run("apply", tmp_path / "cal.safetensors", shards, "-o", tmp_path / "out", "--ray")
    for said in (measured, calibrated):
        assert said.code == 2 and says in said.err and said.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cal.safetensors", "shards"]


def test_the_command_line(shards: Path, tmp_path: Path) -> None:
    Temperature().fit(LOGITS, LABELS).save(tmp_path / "cal.safetensors")
    said = run("apply", tmp_path / "cal.safetensors", shards, "-o", tmp_path / "out", "--ray")
    assert said.code == 0 and "calibrated 3,000 samples with temperature" in said.out, said.err
    assert run("evaluate", tmp_path / "out", "--ray", "--report", tmp_path / "report.html").code == 0
    assert (tmp_path / "report.html").exists()
    compared = run("compare", shards, "--ray", "--methods", "temperature,vector", "--csv", "--bootstrap", "20")
    alone = run("compare", shards, "--methods", "temperature,vector", "--csv", "--bootstrap", "20")
    # The last column is the time that it took.
    assert [line.rpartition(",")[0] for line in compared.out.splitlines()] == [
        line.rpartition(",")[0] for line in alone.out.splitlines()
    ]


SIZES = [1000, 10, 1990]


def tables(logits: torch.Tensor) -> list[Any]:
    """Three blocks of a data set, of different sizes."""
    return [
        pyarrow.table({"logits": z.tolist(), "label": y.numpy()})
        for z, y in zip(torch.split(logits, SIZES), torch.split(LABELS, SIZES), strict=True)
    ]


def test_a_ray_data_set_is_calibrated_and_measured() -> None:
    calibrator = Temperature().fit(LOGITS, LABELS)
    calibrated = cluster.apply(calibrator, ray.data.from_arrow(tables(LOGITS)))
    found = cluster.evaluate(calibrated, metrics=["ece", "nll"], bootstrap=0)
    probs = calibrator.predict_proba(LOGITS)
    same_values(found, evaluate(probs, LABELS, metrics=["ece", "nll"], bootstrap=0))


def test_a_data_set_of_answers() -> None:
    confidence, correct = LOGITS.softmax(1).amax(1), LOGITS.argmax(1) == LABELS
    mine = Predictions.of(confidence, correct, answers=True)
    calibrator = Temperature().fit(mine.logits(), mine.labels)
    table = pyarrow.table({"confidence": confidence.numpy(), "correct": correct.numpy()})
    made = cluster.apply(calibrator, ray.data.from_arrow(table), answers=True).to_pandas()
    assert list(made.columns) == ["correct", "confidence", "calibrated_by"]
    assert made["confidence"].to_numpy() == pytest.approx(calibrator.predict_proba(mine.logits())[:, 1].numpy())
    whole = evaluate(mine, bootstrap=0)
    assert cluster.evaluate(ray.data.from_arrow(table), answers=True, bootstrap=0).row("ece").value == pytest.approx(
        whole.row("ece").value
    )
    twice = table.append_column("stated", table["confidence"])
    with pytest.raises(Exception, match="the column confidence collides with a new one; rename or remove it"):
        cluster.apply(calibrator, ray.data.from_arrow(twice), columns={"probs": "stated"}, answers=True).to_pandas()


def test_a_bad_row_of_a_ray_data_set() -> None:
    logits = LOGITS.clone()
    logits[1007, 1] = torch.inf
    with pytest.raises(InputError, match="logits must be finite; row 7, class 1 is inf"):
        cluster.evaluate(ray.data.from_arrow(tables(logits)))


def test_wrong_calls(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'metric'"):
        cluster.evaluate(shards, metric=["ece"])
    with pytest.raises(InputError, match=r"give a path, or a ray\.data\.Dataset"):
        cluster.evaluate(Predictions.of(LOGITS, LABELS, from_logits=True))
    with pytest.raises(InputError, match="must be a new folder"):
        cluster.apply(Temperature().fit(LOGITS, LABELS), shards, tmp_path / "out.parquet")
