"""Deletes expired logs, artifacts and archives in batches, once an hour."""

import logging
import time

from core.prune import prune
from worker.host import Host

logger = logging.getLogger(__name__)

EVERY_SECONDS = 3600.0
STRETCH_SECONDS = 20.0
"""Longest time in seconds that a removal delays the other repairs; the rest follows in the next sweep."""


class Keeping:
    """Applies the retention policies once an hour.

    Args:
        host: The stores.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._due_at = 0.0

    def run(self) -> int:
        """Remove what is due; return the number of logs, artifacts and archives removed."""
        if time.monotonic() < self._due_at:
            return 0
        report = prune(self._host, seconds=STRETCH_SECONDS)
        if not report.more:
            self._due_at = time.monotonic() + EVERY_SECONDS
        return report.total.count
