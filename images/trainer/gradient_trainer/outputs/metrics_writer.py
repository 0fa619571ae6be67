import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf


class MetricsWriter:
    """Writes every metric twice, under the same name: as TensorBoard events and as JSON lines.

    Each line of JSON holds `step`, `time` (unix seconds) and the values by name. A line is written with one call, so
    that a reader of the file never sees half a line. `environ`: `GRADIENT_METRICS_FILE` names the file of JSON lines;
    without it there is none.
    """

    def __init__(self, tensorboard: Path, environ: Mapping[str, str]) -> None:
        self._events = tf.summary.create_file_writer(str(tensorboard))
        name = environ.get("GRADIENT_METRICS_FILE")
        path = Path(name) if name else None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0) if path is not None else None

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Record the values of a step.

        None values are left out, and from JSON those that it cannot express (infinite, not a number).
        """
        given = {name: value for name, value in values.items() if value is not None}
        if self._file is not None:
            finite = {name: value for name, value in given.items() if math.isfinite(value)}
            line = json.dumps({"step": step, "time": round(time.time(), 3), **finite})
            self._file.write(line.encode() + b"\n")
        with self._events.as_default(step):
            for name, value in given.items():
                tf.summary.scalar(name, value)
        self._events.flush()  # users who watch a running training should see this point now, not with the last one

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._events.close()
