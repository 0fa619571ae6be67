"""Metrics of a Hugging Face Trainer, as lines of $GRADIENT_METRICS_FILE, under the names that comparisons read."""

import json
import os
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState

_NAMES = {"loss": "loss", "learning_rate": "learning_rate", "eval_loss": "val_loss", "eval_accuracy": "val_accuracy"}


class MetricsLines(TrainerCallback):
    """Writes a line at each of the Trainer's reports; evaluations and checkpoints do not count in the pace."""

    def on_train_begin(self, _args: object, state: TrainerState, *_: object, **_more: object) -> None:
        """Take the time."""
        self._since = state.global_step, time.perf_counter()

    on_evaluate = on_save = on_train_begin

    def on_log(self, _args: object, state: TrainerState, _: object, logs: dict[str, Any], **_more: object) -> None:
        """Report what the Trainer logs, and the pace with the loss of the training."""
        values = {_NAMES[name]: float(value) for name, value in logs.items() if name in _NAMES}
        first, began = self._since
        if "loss" in values and state.global_step > first:
            values["steps_per_second"] = (state.global_step - first) / (time.perf_counter() - began)
            self.on_train_begin(_args, state)
        if values:
            line = json.dumps({"step": state.global_step, "time": time.time(), **values})
            with Path(os.environ.get("GRADIENT_METRICS_FILE", os.devnull)).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
