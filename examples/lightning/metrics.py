"""Metrics of a Lightning training, as lines of $GRADIENT_METRICS_FILE, under the names that comparisons read."""

import json
import os
import time
from pathlib import Path

import lightning
from lightning.pytorch.callbacks import Callback


class MetricsLines(Callback):
    """Writes pace and loss at the end of each epoch's training, and what a validation logged."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, _module: lightning.LightningModule) -> None:
        """Take the time."""
        self._began, self._first = time.perf_counter(), trainer.global_step

    def on_train_batch_end(
        self, trainer: lightning.Trainer, _module: lightning.LightningModule, *_batch: object
    ) -> None:
        """Report after the epoch's last step, before the validation."""
        if trainer.is_last_batch:
            pace = (trainer.global_step - self._first) / (time.perf_counter() - self._began)
            self._write(trainer, {"steps_per_second": pace})

    def on_validation_end(self, trainer: lightning.Trainer, _module: lightning.LightningModule) -> None:
        """Report what the validation logged."""
        if not trainer.sanity_checking:
            self._write(trainer, {f"val_{name}": float(value) for name, value in trainer.callback_metrics.items()})

    def _write(self, trainer: lightning.Trainer, values: dict[str, float]) -> None:
        with Path(os.environ.get("GRADIENT_METRICS_FILE", os.devnull)).open("a", buffering=1, encoding="utf-8") as file:
            file.write(json.dumps({"step": trainer.global_step, "time": time.time(), **values}) + "\n")
