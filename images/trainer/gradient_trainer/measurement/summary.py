"""`summary.json`: the settings of a training and everything measured in it; docs/metrics.md documents the fields."""

import json
import resource
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
FILE_NAME = "summary.json"


@dataclass
class Summary:
    """A training's settings and measurements; each attribute is a block of the file."""

    training: dict[str, Any]
    device: dict[str, Any]
    hyperparameters: dict[str, Any]
    seconds: dict[str, float | None] = field(default_factory=dict)
    steps_per_second: dict[str, float] | None = None
    examples_per_second: dict[str, float] | None = None
    target: dict[str, float | None] | None = None
    memory: dict[str, int | None] = field(default_factory=dict)
    input: dict[str, float | None] = field(default_factory=dict)
    step_cost: dict[str, Any] | None = None
    share_of_peak: dict[str, float | None] = field(default_factory=dict)
    accuracy: dict[str, float | None] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        partial = folder / f"{FILE_NAME}.partial"
        partial.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=2) + "\n", encoding="utf-8")
        partial.replace(folder / FILE_NAME)


def peak_host_memory() -> int:
    """Return the most memory that this process had at once, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
