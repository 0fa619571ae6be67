"""Finds out whether this worker has gone deaf: alive and connected, but no message reaches it any more.

It has happened to Celery's workers after Redis was restarted. A deaf worker still finds its work by looking, later
than it could. Nothing inside such a process can be trusted to mend it, so it ends: whatever started it starts it again.
"""

import logging
import threading
import time
from collections.abc import Callable

from core.errors import StoreUnavailable

logger = logging.getLogger(__name__)


class Probe:
    """A thread that sends messages to this worker's own queue, and counts how long none has come back.

    Args:
        ping: Sends one; raises OSError while the broker is away, which makes nobody deaf.
        note: Writes down that one came; may raise StoreUnavailable.
        on_deaf: Ends the worker.
        ping_seconds: Seconds between messages.
        deaf_seconds: Seconds without any that came back, after which the worker is deaf; 0: it never is.
    """

    def __init__(
        self,
        ping: Callable[[], None],
        note: Callable[[], None],
        on_deaf: Callable[[], None],
        *,
        ping_seconds: float,
        deaf_seconds: float,
    ) -> None:
        self._ping, self._note, self._on_deaf = ping, note, on_deaf
        self._ping_seconds, self._deaf_seconds = ping_seconds, deaf_seconds
        self._heard_at = time.monotonic()
        self._heard = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more; does not wait."""
        self._stopping = True
        self._heard.set()

    def heard(self) -> None:
        """A message came back: for the task that it calls. Quick: nothing may keep the pool's threads busy."""
        self._heard_at = time.monotonic()
        self._heard.set()

    def _run(self) -> None:
        silent = 0.0
        while not self._stopping:
            try:
                silent = self._round(silent)
            except Exception:  # the thread must outlive whatever a broker throws: nobody starts another
                logger.exception("probe_failed")
                time.sleep(self._ping_seconds)
                continue
            if self._deaf_seconds and silent >= self._deaf_seconds and not self._stopping:
                logger.error("worker_deaf", extra={"silent_seconds": round(time.monotonic() - self._heard_at)})
                self._on_deaf()
                return

    def _round(self, silent: float) -> float:
        """Send one and wait for it; for how long messages were sent and none came, as far as this thread was awake.

        It is counted by what was waited for, not by a clock: a process that was frozen has not yet had time to hear.
        """
        self._heard.clear()
        try:
            self._ping()
        except OSError as error:
            logger.info("broker_away", extra={"error": str(error)})
            self._pause(self._ping_seconds)
            return 0.0
        left = self._deaf_seconds - silent
        wait = min(self._ping_seconds, left) if left > 0 else self._ping_seconds
        began = time.monotonic()
        if not self._heard.wait(wait):
            return silent + wait
        try:
            self._note()
        except StoreUnavailable:
            logger.debug("not_noted")  # the next one is
        self._pause(self._ping_seconds - (time.monotonic() - began))
        return 0.0

    def _pause(self, seconds: float) -> None:
        """Wait; a message that comes late must not cut it short."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._heard.clear()
            self._heard.wait(left)
