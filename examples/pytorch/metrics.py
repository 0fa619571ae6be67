"""Metrics of a training loop, as lines of $GRADIENT_METRICS_FILE, under the names that comparisons of jobs read."""

import json
import os
import time
from pathlib import Path


class Metrics:
    """Writes a line at each report, with the pace since the last; the first `warm_up` steps do not count in it."""

    def __init__(self, batch_size: int, warm_up: int = 5) -> None:
        self._path = Path(os.environ.get("GRADIENT_METRICS_FILE", os.devnull))
        self._batch_size, self._warm_up = batch_size, warm_up
        self._step, self._since = 0, (0, time.perf_counter())

    def step(self) -> None:
        """Count a training step; the device must have finished it."""
        self._step += 1
        if self._step == self._warm_up:
            self._since = self._step, time.perf_counter()

    def report(self, **values: float) -> None:
        """Write values of the steps so far. Report before an evaluation, and its result after it: it has no pace."""
        first, began = self._since
        if self._step > max(first, self._warm_up):
            pace = (self._step - first) / (time.perf_counter() - began)
            values |= {"steps_per_second": pace, "examples_per_second": pace * self._batch_size}
        self._since = self._step, time.perf_counter()
        with self._path.open("a", buffering=1, encoding="utf-8") as file:
            file.write(json.dumps({"step": self._step, "time": time.time(), **values}) + "\n")
