"""Calibration in Hugging Face's `Trainer`: metrics of every evaluation, a fitted calibrator at the end.

calibration = TrainerCalibration("temperature")
trainer = Trainer(..., compute_metrics=calibration.compute_metrics, callbacks=[calibration])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from temperance.calibrators import Calibrator
from temperance.errors import InputError, optional
from temperance.interop.held_out import MEASURED, HeldOut, as_rows

with optional("transformers", "transformers", "temperance.interop.transformers"):
    from transformers import TrainerCallback


class TrainerCalibration(TrainerCallback):  # type: ignore[misc]
    """Calibration metrics of every evaluation, and at the end of `train` a calibrator and a report.

    method        the calibrator, such as "temperature" or "auto"; it is fitted to the last evaluation, or with
                  `load_best_model_at_end` to that of the best model, which is then loaded
    metrics       names of metrics; `Trainer` logs them as eval_ece and so on
    folder        where calibrator.safetensors and calibration.html go; by default `output_dir`
    ignore_index  labels to ignore, such as those of special tokens

    `Trainer` has to evaluate during training: `eval_strategy="epoch"`. Of several evaluation sets the last one counts.
    Sequence classification gives logits (n, k), token classification (n, length, k). After `train`, `calibrator` is the
    fitted one.
    """

    def __init__(
        self,
        method: str = "temperature",
        *,
        metrics: Sequence[str] = MEASURED,
        folder: str | Path | None = None,
        ignore_index: int = -100,
    ) -> None:
        self.folder, self.ignore_index = folder, ignore_index
        self.calibrator: Calibrator | None = None
        self._held_out = HeldOut(method, metrics)

    def compute_metrics(self, prediction: Any) -> dict[str, float]:
        """The metrics of an evaluation; give it to `Trainer` as its `compute_metrics`."""
        found = prediction.predictions
        logits = torch.as_tensor(found[0] if isinstance(found, tuple) else found)
        logits = torch.movedim(logits, -1, 1) if logits.ndim > 1 else logits
        return self._held_out.measured(*as_rows(logits, torch.as_tensor(prediction.label_ids), self.ignore_index))

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if args.eval_strategy == "no":
            raise InputError(
                "TrainerCalibration fits a calibrator to what is evaluated during training: pass an eval_dataset to "
                'Trainer, and eval_strategy="epoch" to TrainingArguments'
            )

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self._held_out.is_empty:
            raise InputError(
                "TrainerCalibration has seen no predictions: pass its compute_metrics to Trainer, and labels in "
                "eval_dataset"
            )

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        # `Trainer` evaluates before it saves, and only a saved model can be the best one.
        if str(state.best_model_checkpoint).endswith(f"-{state.global_step}"):
            self._held_out.latest_is_best()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.is_world_process_zero:
            best = args.load_best_model_at_end and state.best_model_checkpoint is not None
            self.calibrator = self._held_out.finish(self.folder or args.output_dir, best=best)
