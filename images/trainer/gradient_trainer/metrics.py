import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self


class MetricsFile:
    """Appends metrics as JSON lines; without a path it does nothing.

    Each line holds `step`, `time` (unix seconds) and the values by name. A line is written with one call, so that a
    reader of the file never sees half a line.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0) if path is not None else None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Open the file that GRADIENT_METRICS_FILE names, if it is set."""
        path = environ.get("GRADIENT_METRICS_FILE")
        return cls(Path(path) if path else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append a line; values that JSON cannot express (infinite, not a number) are left out."""
        if self._file is None:
            return
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        line = json.dumps({"step": step, "time": round(time.time(), 3), **finite})
        self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
