import logging
import threading
import time

from worker.attempt.disk_quota import measure_used_bytes
from worker.context import WorkerContext
from worker.environments.default_environment import service_python

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 600.0


class EnvironmentSweep:
    """The Python environments below this host's GRADIENT_HOME."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._next_at = 0.0

    def run(self) -> int:
        """Remove environments by age and disk usage, every ten minutes; return how many."""
        if time.monotonic() < self._next_at:
            return 0
        self._next_at = time.monotonic() + _INTERVAL_SECONDS
        default = self._context.default_environment.wanted(service_python())
        try:
            return self._context.environments.evict(
                lambda folder: measure_used_bytes([folder], threading.Event()), keep=default
            )
        except Exception:  # a failure here must not prevent the other repairs
            logger.exception("environments_not_removed")
            return 0
