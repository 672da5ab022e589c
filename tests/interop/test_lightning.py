"""A real Lightning run with the calibration callback, on a tiny network."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from temperance.calibrators import Temperature, load_calibrator
from temperance.errors import InputError
from temperance.metrics import ece, nll

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

lightning: Any = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
from temperance.interop.lightning import CalibrationCallback  # noqa: E402


class Tiny(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, returned: str = "both") -> None:
        super().__init__()
        self.layer, self.returned = nn.Linear(4, 3), returned
        self.passes = 0

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> Any:
        self.passes += 1
        logits = self.layer(batch[0])
        return {"logits": logits, "labels": batch[1]} if self.returned == "both" else logits.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def data(n: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 4, generator=generator)
    labels = (inputs[:, :3] + torch.randn(n, 3, generator=generator)).argmax(1)
    return TensorDataset(inputs, labels)


def fitted(tmp_path: Path, module: Tiny, *callbacks: Any, **more: Any) -> Any:
    usual = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", callbacks=list(callbacks), **(usual | quiet | more))
    trainer.fit(module, DataLoader(data(256, 0), 32), DataLoader(data(400, 1), 64))
    return trainer


def test_a_run_logs_metrics_and_leaves_a_calibrator_and_a_report(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, callback = Tiny(), CalibrationCallback("temperature", metrics=["ece", "nll"])
    trainer = fitted(tmp_path, module, callback)
    inputs, labels = data(400, 1).tensors
    with torch.no_grad():
        logits = module.layer(inputs)
    assert float(trainer.callback_metrics["val_ece"]) == pytest.approx(ece(logits, labels, from_logits=True), rel=1e-5)
    assert float(trainer.callback_metrics["val_nll"]) == pytest.approx(nll(logits, labels, from_logits=True), rel=1e-5)
    expected = Temperature().fit(logits, labels)
    saved = load_calibrator(tmp_path / "calibrator.safetensors")
    for found in (callback.calibrator, saved):
        assert isinstance(found, Temperature)
        assert float(found.temperature) == pytest.approx(float(expected.temperature), rel=1e-5)
    assert "<h1>" in (tmp_path / "calibration.html").read_text(encoding="utf-8")
    assert module.passes == 2 + 2 * 7, "two batches of the sanity check, then every batch once in each epoch"


def test_the_best_checkpoint_gets_its_own_calibrator(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, callback = Tiny(), CalibrationCallback("temperature", metrics=["nll"])
    first = lightning.callbacks.ModelCheckpoint(monitor="val_nll", mode="max")  # the worst, which is not the last
    trainer = fitted(tmp_path, module, callback, first, enable_checkpointing=True)
    assert isinstance(callback.calibrator, Temperature)
    last = float(callback.calibrator.temperature)
    inputs, labels = data(400, 1).tensors
    trainer.validate(module, DataLoader(data(400, 1), 64), ckpt_path="best", verbose=False)
    with torch.no_grad():
        expected = Temperature().fit(module.layer(inputs), labels)
    saved = load_calibrator(tmp_path / "calibrator.safetensors")
    for found in (callback.calibrator, saved):
        assert isinstance(found, Temperature)
        assert float(found.temperature) == pytest.approx(float(expected.temperature), rel=1e-5)
    assert abs(float(expected.temperature) - last) > 1e-3


def test_what_validation_step_must_return_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'let it return {"logits": logits, "labels": labels}'):
        fitted(tmp_path, Tiny("loss"), CalibrationCallback(), num_sanity_val_steps=0)


def test_a_wrong_method_is_refused_before_training() -> None:
    with pytest.raises(InputError, match="temprature"):
        CalibrationCallback("temprature")


def test_metrics_in_text_and_a_method_that_is_none(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, Tiny(), CalibrationCallback(metrics="ece, nll"))
    assert {"val_ece", "val_nll"} == set(trainer.callback_metrics)
    with pytest.raises(InputError, match=r"named in text, .*; got Temperature\(\)"):
        CalibrationCallback(Temperature())  # type: ignore[arg-type]


def test_a_training_without_validation_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pass validation data to fit"):
        fitted(tmp_path, Tiny(), CalibrationCallback(), limit_val_batches=0)
