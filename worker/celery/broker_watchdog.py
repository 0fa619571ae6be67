"""Detects a worker that is alive and connected but no longer receives messages.

This has happened to Celery workers after a restart of Redis. Such a worker still finds its work by polling, later than
it could. Nothing inside such a process can be trusted to repair it, so it exits and relies on being restarted.
"""

import logging
import threading
import time
from collections.abc import Callable

from core.errors import StoreUnavailable

PING_SECONDS = 20.0  # between messages
SILENT_SECONDS = 90.0  # without a returned message after which the worker is ended
logger = logging.getLogger(__name__)


class BrokerWatchdog:
    """Sends messages to this worker's own queue from a thread, and measures for how long none has returned.

    `ping`: sends one; raises OSError if the broker is down, which does not count as a missed ping.
    """

    def __init__(
        self,
        ping: Callable[[], None],
        record_ping: Callable[[], None],  # records that one returned; may raise StoreUnavailable
        on_silent: Callable[[], None],
    ) -> None:
        self._ping, self._record_ping, self._on_silent = ping, record_ping, on_silent
        self._received_at = time.monotonic()
        self._received = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="broker-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; does not wait for the thread."""
        self._stopping = True
        self._received.set()

    def ping_received(self) -> None:
        """Record that a message came back; called by the ping task, in a pool thread that must not be kept busy."""
        self._received_at = time.monotonic()
        self._received.set()

    def _run(self) -> None:
        silent = 0.0
        while not self._stopping:
            try:
                silent = self._ping_once(silent)
            except Exception:  # the thread must survive any broker error: nothing restarts it
                logger.exception("broker_watchdog_failed")
                time.sleep(PING_SECONDS)
                continue
            if silent >= SILENT_SECONDS and not self._stopping:
                logger.error(
                    "broker_messages_missing", extra={"silent_seconds": round(time.monotonic() - self._received_at)}
                )
                self._on_silent()
                return

    def _ping_once(self, silent: float) -> float:
        """Send a message and wait for it; return the seconds waited so far without an answer.

        Counts the time waited, not clock time: a process resumed from SIGSTOP must get time to receive pings before it
        counts as silent.
        """
        self._received.clear()
        try:
            self._ping()
        except OSError as error:
            logger.info("broker_unreachable", extra={"error": str(error)})
            self._pause(PING_SECONDS)
            return 0.0
        left = SILENT_SECONDS - silent
        wait = min(PING_SECONDS, left) if left > 0 else PING_SECONDS
        began = time.monotonic()
        if not self._received.wait(wait):
            return silent + wait
        try:
            self._record_ping()
        except StoreUnavailable:
            logger.debug("ping_not_recorded")  # the next one will be
        self._pause(PING_SECONDS - (time.monotonic() - began))
        return 0.0

    def _pause(self, seconds: float) -> None:
        """Wait the whole time unless `stop` is called; a late message must not shorten the wait."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._received.clear()
            self._received.wait(left)
