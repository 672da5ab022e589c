"""A Lightning callback: calibration metrics after every validation epoch, a fitted calibrator at the end.

    trainer = Trainer(callbacks=[CalibrationCallback("temperature")])

The `validation_step` returns what it has computed anyway, {"logits": logits, "labels": labels}, so nothing is predicted
twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.calibrators import Calibrator
from temperance.errors import InputError, optional
from temperance.interop.held_out import MEASURED, HeldOut, as_rows
from temperance.losses.distributed import all_rows

with optional("lightning", "lightning", "temperance.interop.lightning"):
    from lightning.pytorch import Callback


class CalibrationCallback(Callback):  # type: ignore[misc]
    """Logs calibration metrics of every validation epoch, and writes a calibrator and a report at the end of `fit`.

    method        the calibrator, such as "temperature" or "auto"; it is fitted to the last validation epoch, and so to
                  the network of that time; `trainer.validate(ckpt_path="best")` fits it to the best checkpoint
    metrics       names of metrics, logged as `prefix` + name
    folder        where calibrator.safetensors and calibration.html go; by default the folder of the logger
    ignore_index  samples with this label are ignored

    After `fit` or `validate`, `calibrator` is the fitted one. Only the first validation loader counts. Several
    processes gather their predictions; a distributed sampler that repeats samples to fill up a batch repeats them here,
    too.
    """

    def __init__(
        self,
        method: str = "temperature",
        *,
        metrics: Sequence[str] = MEASURED,
        prefix: str = "val_",
        folder: str | Path | None = None,
        ignore_index: int = -100,
    ) -> None:
        self.prefix, self.folder, self.ignore_index = prefix, folder, ignore_index
        self.calibrator: Calibrator | None = None
        self._held_out = HeldOut(method, metrics)
        self._batches: list[tuple[Tensor, Tensor]] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.enable_validation:
            raise InputError(
                "CalibrationCallback fits a calibrator to what is validated during training: pass validation data to "
                "fit, give the module a validation_step, and do not set limit_val_batches to 0"
            )

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._batches = []

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if dataloader_idx:
            return
        if not isinstance(outputs, Mapping) or not {"logits", "labels"} <= set(outputs):
            raise InputError(
                'CalibrationCallback needs what validation_step has predicted: let it return {"logits": logits, '
                '"labels": labels}'
            )
        self._batches.append(as_rows(outputs["logits"], outputs["labels"], self.ignore_index))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        batches, self._batches = self._batches, []
        if trainer.sanity_checking:
            return
        with torch.no_grad():
            logits, labels = (all_rows(torch.cat(column))[0] for column in zip(*batches, strict=True))
        self.log_dict(self._held_out.measured(logits.cpu(), labels.cpu(), self.prefix))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.state.fn == "validate":
            self.on_fit_end(trainer, pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.calibrator = self._held_out.finish(self.folder or trainer.log_dir or trainer.default_root_dir)
