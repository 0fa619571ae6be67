"""Running times of commands, by a clock that nobody sets and that stands still while the machine is suspended."""

import time
from typing import Any

from worker.backends.base import Handle
from worker.backends.job_processes import boot_id

TOLERANCE_SECONDS = 5.0  # differences to the database's clock that delays of messages explain


def began() -> dict[str, Any]:
    """Return the keys of a handle that record that its command begins now."""
    return {"began": time.monotonic(), "boot": boot_id()}


def running_seconds(handle: Handle, recorded: float) -> float:
    """Return how long the command of a handle has run.

    `recorded`: the time by the database's clock; used if the command began before the machine last started.
    """
    return time.monotonic() - handle["began"] if handle.get("boot") == boot_id() else recorded


def differ(recorded: float, measured: float) -> bool:
    """Return whether a recorded time is wrong, because a clock was set."""
    return abs(recorded - measured) > TOLERANCE_SECONDS
