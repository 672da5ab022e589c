"""A real run of Hugging Face's Trainer with the calibration callback, on a tiny network that is made here."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from temperance.calibrators import Temperature, load_calibrator
from temperance.errors import InputError, TemperanceWarning
from temperance.metrics import ece

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
from temperance.interop.held_out import HeldOut  # noqa: E402
from temperance.interop.transformers import TrainerCalibration  # noqa: E402


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layer(inputs)
        return (
            {"logits": logits}
            if labels is None
            else {
                "loss": nn.functional.cross_entropy(logits, labels),
                "logits": logits,
            }
        )


class Samples(Dataset[dict[str, Tensor]]):
    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(n, 4, generator=generator)
        self.labels = (self.inputs[:, :3] + torch.randn(n, 3, generator=generator)).argmax(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[i], "labels": self.labels[i]}


def made(folder: Path, calibration: TrainerCalibration, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    usual = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "no", "learning_rate": 0.05}
    chosen = transformers.TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True, **(usual | (arguments or {}))
    )
    given = {"model": Tiny(), "eval_dataset": Samples(50, 1), "compute_metrics": calibration.compute_metrics, **more}
    return transformers.Trainer(args=chosen, train_dataset=Samples(128, 0), callbacks=[calibration], **given)


def test_a_run_logs_metrics_and_leaves_a_calibrator_and_a_report(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, held_out, calibration = Tiny(), Samples(400, 1), TrainerCalibration("temperature", metrics=["ece"])
    trainer = made(tmp_path, calibration, model=model, eval_dataset=held_out)
    trainer.train()
    with torch.no_grad():
        logits = model.layer(held_out.inputs)
    logged = [entry["eval_ece"] for entry in trainer.state.log_history if "eval_ece" in entry]
    assert len(logged) == 2
    assert logged[-1] == pytest.approx(ece(logits, held_out.labels, from_logits=True), rel=1e-5)
    expected = Temperature().fit(logits, held_out.labels)
    saved = load_calibrator(tmp_path / "calibrator.safetensors")
    assert isinstance(saved, Temperature)
    assert float(saved.temperature) == pytest.approx(float(expected.temperature), rel=1e-5)
    assert "<h1>" in (tmp_path / "calibration.html").read_text(encoding="utf-8")


BEST = {
    "num_train_epochs": 5,
    "learning_rate": 0.3,
    "lr_scheduler_type": "constant",
    "save_strategy": "epoch",
    "load_best_model_at_end": True,
}


def test_the_best_model_gets_its_own_calibrator(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, held_out, calibration = Tiny(), Samples(400, 1), TrainerCalibration("temperature", metrics=["ece"])
    trainer = made(tmp_path, calibration, BEST, model=model, eval_dataset=held_out)
    trainer.train()
    assert not str(trainer.state.best_model_checkpoint).endswith(f"-{trainer.state.global_step}")
    with torch.no_grad():
        expected = Temperature().fit(model.layer(held_out.inputs), held_out.labels)
    assert isinstance(calibration.calibrator, Temperature)
    assert float(calibration.calibrator.temperature) == pytest.approx(float(expected.temperature), rel=1e-5)
    again = made(tmp_path, TrainerCalibration("temperature"), BEST, eval_dataset=held_out)
    with pytest.warns(TemperanceWarning, match="resumed after the best network was validated"):
        again.train(resume_from_checkpoint=True)


def test_a_training_without_evaluations_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='eval_strategy="epoch"'):
        made(tmp_path, TrainerCalibration(), {"eval_strategy": "no"}).train()
    with pytest.raises(InputError, match="pass its compute_metrics to Trainer"):
        made(tmp_path, TrainerCalibration(), compute_metrics=None).train()


def test_a_training_that_ends_before_its_first_evaluation_is_not_lost(tmp_path: Path) -> None:
    with pytest.warns(TemperanceWarning, match="no calibrator was fitted"):
        assert HeldOut("temperature", ["ece"]).finish(tmp_path) is None


class Prediction(NamedTuple):
    predictions: Any
    label_ids: Any


def test_predictions_without_classes_are_refused() -> None:
    """As `preprocess_logits_for_metrics` leaves them if it takes the most probable class."""
    with pytest.raises(InputError, match=r"one dimension more than labels; got \(2,\) and \(2,\)"):
        TrainerCalibration().compute_metrics(Prediction(np.array([0.0, 1.0]), np.array([0, 1])))


def test_token_classification_ignores_special_tokens() -> None:
    """Logits (n, length, k), other outputs after them, and labels of −100."""
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(20, 7, 3)), generator.integers(3, size=(20, 7))
    labels[:, 0] = -100
    found = TrainerCalibration(metrics=["ece"]).compute_metrics(Prediction((logits, logits), labels))
    rows, truth = logits[:, 1:].reshape(-1, 3), labels[:, 1:].reshape(-1)
    assert found == {"ece": pytest.approx(ece(rows, truth, from_logits=True))}
