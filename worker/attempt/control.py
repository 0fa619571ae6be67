"""Requests from the supervisor to a running attempt."""

import threading

from core.system.inotify import FileWatcher


class Detached(Exception):
    """The worker is shutting down or lost the job: leave it running and write nothing more."""


class AttemptControl:
    """Requests for one attempt, set by the supervisor's thread and read by the attempt's."""

    def __init__(self, *, stop_requested: bool = False) -> None:
        self._stop = stop_requested
        self._contact_lost = False
        self._detached = threading.Event()
        self._watcher: FileWatcher | None = None
        self._lock = threading.Lock()

    @property
    def stop_requested(self) -> bool:
        """True if the job should be stopped."""
        return self._stop

    @property
    def detached(self) -> bool:
        """True if the attempt must release the job without touching it."""
        return self._detached.is_set()

    def request_stop(self) -> None:
        """Request that the job be stopped."""
        if not self._stop:
            self._stop = True
            self._wake()

    @property
    def contact_lost(self) -> bool:
        """True if the database has been away for so long that other workers will soon restart the job."""
        return self._contact_lost

    def report_contact_lost(self) -> None:
        """Request that the job be ended before a worker that considers this host lost restarts it."""
        if not self._contact_lost:
            self._contact_lost = True
            self._wake()

    def detach(self) -> None:
        """Request that the attempt release the job."""
        self._detached.set()
        self._wake()

    def check(self) -> None:
        """Raise if the attempt must release the job.

        Raises:
            Detached: The attempt must release the job.
        """
        if self.detached:
            raise Detached

    def pause(self, seconds: float) -> None:
        """Wait, but at most until the attempt must release the job.

        Raises:
            Detached: The attempt must release the job.
        """
        if self._detached.wait(seconds):
            raise Detached

    @property
    def monitored(self) -> bool:
        """True while a watch follows the job and acts on requests."""
        return self._watcher is not None

    def set_watcher(self, watcher: FileWatcher | None) -> None:
        """Set the watch that every request wakes; None: none."""
        with self._lock:
            self._watcher = watcher

    def _wake(self) -> None:
        with self._lock:
            if self._watcher is not None:
                self._watcher.wake()
