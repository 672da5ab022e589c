"""Experiment trackers take what results give: numbers by name, figures, and the report as a page."""

from pathlib import Path
from typing import Any

import pytest

from report import samples
from temperance.jobs.comparison import compare
from temperance.jobs.evaluation import evaluate
from temperance.jobs.several import compare_each, evaluate_each
from temperance.predictions import Predictions
from temperance.report import draw_reliability, write_report

# The libraries' own warnings, about their own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def parts(n: int = 2) -> dict[str, Predictions]:
    return {f"set {i}": samples.predictions(seed=i) for i in range(n)}


def test_an_evaluation_is_its_metrics_by_name() -> None:
    found = samples.evaluation()
    values = found.to_dict()
    assert values["ece"] == found.row("ece").value and len(values) == len(found.rows)
    assert all(type(value) is float for value in values.values())
    assert set(found.to_dict("test/")) == {f"test/{name}" for name in values}


def test_several_methods_and_sets_are_part_of_the_name() -> None:
    methods = ["temperature", "temperature:objective=brier"]
    one = compare(samples.predictions(), methods=methods, bootstrap=20).to_dict()
    assert {"temperature/ece", "temperature_objective_brier/ece", "identity/ece"} <= set(one)
    evaluations = evaluate_each(parts(), metrics=["ece", "classwise-ece"], bootstrap=0)
    assert set(evaluations.to_dict()) == {f"set_{i}/{name}" for i in (0, 1) for name in ("ece", "classwise_ece")}
    assert evaluations.to_dict()["set_1/ece"] == evaluations.each["set 1"].row("ece").value
    several = compare_each(parts(), methods=methods, bootstrap=20)
    assert several.to_dict()["set_0/temperature/nll"] == several.findings["set 0"].measured["temperature"]["nll"]


def test_groups_are_part_of_the_name() -> None:
    data = samples.predictions()
    grouped = Predictions.of(data.scores, data.labels, groups=["a b", "c"] * (data.n // 2), from_logits=True)
    found = evaluate(grouped, metrics=["ece"], bootstrap=0, by_group=True)
    assert set(found.to_dict()) == {"ece", "a_b/ece", "c/ece"}


def test_retraining_has_values_before_and_after() -> None:
    found = samples.retrained()
    values = found.to_dict()
    assert values["mac_cal/ece"] == found.after.row("ece").value and len(values) == len(found.rows)


# What the page on frameworks shows, in each library.


def test_tensorboard_takes_numbers_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    found = samples.evaluation()
    with SummaryWriter(tmp_path) as writer:
        for name, value in found.to_dict("test/").items():
            writer.add_scalar(name, value, global_step=3)
        writer.add_figure("test/reliability", draw_reliability(found.reliability).figure)
    kept: Any = EventAccumulator(str(tmp_path))
    kept.Reload()
    assert set(kept.Tags()["scalars"]) == set(found.to_dict("test/")) and kept.Tags()["images"] == ["test/reliability"]
    assert kept.Scalars("test/ece")[0].value == pytest.approx(found.row("ece").value, rel=1e-6)


def test_mlflow_takes_numbers_figures_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    found = compare(samples.predictions(), methods=["temperature:objective=brier"], bootstrap=20)
    write_report(found, "report.html")
    with mlflow.start_run() as run:
        mlflow.log_metrics(found.to_dict("test/"))
        mlflow.log_params(found.provenance.settings)
        mlflow.log_figure(draw_reliability(samples.evaluation().reliability).figure, "reliability.png")
        mlflow.log_artifact("report.html")
    client = mlflow.MlflowClient()
    assert client.get_run(run.info.run_id).data.metrics == pytest.approx(found.to_dict("test/"), nan_ok=True)
    assert {entry.path for entry in client.list_artifacts(run.info.run_id)} == {"reliability.png", "report.html"}


def test_wandb_takes_numbers_figures_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    found = samples.evaluation()
    write_report(found, "report.html")
    with wandb.init(mode="offline", project="test", dir=tmp_path) as run:
        run.log(found.to_dict("test/"))
        run.log({"reliability": wandb.Image(draw_reliability(found.reliability).figure)})
        run.log({"report": wandb.Html("report.html")})
        kept = dict(run.summary)
    assert {name: kept[name] for name in found.to_dict("test/")} == pytest.approx(found.to_dict("test/"), nan_ok=True)
    assert kept["reliability"]["_type"] == "image-file" and kept["report"]["_type"] == "html-file"
