"""What policies no longer keep is removed by the workers, a stretch at a time."""

import logging
import time

from core.prune import prune
from worker.host import Host

logger = logging.getLogger(__name__)

EVERY_SECONDS = 3600.0
STRETCH_SECONDS = 20.0
"""Longest a removal holds up the repairs beside it; the rest follows with the next."""


class Keeping:
    """Removes by policy, once an hour.

    Args:
        host: The stores.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._due_at = 0.0

    def run(self) -> int:
        """Remove what is due; how many logs, artifacts and archives went."""
        if time.monotonic() < self._due_at:
            return 0
        report = prune(self._host, seconds=STRETCH_SECONDS)
        if not report.more:
            self._due_at = time.monotonic() + EVERY_SECONDS
        return report.total.count
