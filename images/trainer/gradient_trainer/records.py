from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from .metrics import MetricsFile


class Records:
    """Writes every metric twice, under the same name: to the metrics file and as a TensorBoard event."""

    def __init__(self, metrics: MetricsFile, tensorboard_folder: Path) -> None:
        self._metrics = metrics
        self._events = tf.summary.create_file_writer(str(tensorboard_folder))

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Record the values of a step; None values are left out."""
        known = {name: value for name, value in values.items() if value is not None}
        self._metrics.write(step, known)
        with self._events.as_default(step):
            for name, value in known.items():
                tf.summary.scalar(name, value)
        # Users who watch a running training should see this point now, not with the last one.
        self._events.flush()

    def close(self) -> None:
        """Close the metrics file and the event writer."""
        self._metrics.close()
        self._events.close()
