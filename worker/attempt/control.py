import threading
from collections.abc import Callable

from core.jobs.scheduling.workers import HeartbeatResult
from core.system.inotify import FileWatcher


class Detached(Exception):
    """The worker is shutting down or lost the job: leave it running and write nothing more."""


class AttemptControl:
    """Requests for one attempt, set by the supervisor's thread and read by the attempt's.

    `on_slot_free`: called when the attempt begins to wait without a slot.
    """

    def __init__(self, *, stop_requested: bool = False, on_slot_free: Callable[[], None] = lambda: None) -> None:
        self._stop = stop_requested
        self._at_once = False
        self._on_slot_free = on_slot_free
        self._waiting = False
        self._contact_lost = False
        self._node_failure: str | None = None
        self.start_unrecorded = False
        """True while the command runs, or may run, and its start is not recorded: for other workers it never began."""
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

    @property
    def waiting(self) -> bool:
        """True if the job needs no slot of its worker: it waits elsewhere, or runs there."""
        return self._waiting

    def set_waiting(self, *, waiting: bool) -> None:
        """Set whether the job only waits; called by the attempt's thread."""
        begins = waiting and not self._waiting
        self._waiting = waiting
        if begins:
            self._on_slot_free()

    @property
    def at_once(self) -> bool:
        """True if the job should be stopped without a grace period."""
        return self._at_once

    def apply(self, heartbeat: HeartbeatResult | None, lease: int) -> None:
        """Do what the answer to a heartbeat says of the job, which was claimed under this lease.

        None: its thread has just closed it, or another worker took it over. A watch does not use its lease while the
        job runs, and two watches must not write one log.
        """
        if heartbeat is None or heartbeat.lease != lease:
            self.detach()
        elif heartbeat.stop_requested:
            self.request_stop(at_once=heartbeat.at_once)
        elif heartbeat.node_failure is not None:
            self.report_node_failure(heartbeat.node_failure)

    def request_stop(self, *, at_once: bool = False) -> None:
        """Request that the job be stopped; without a grace period, if `at_once`."""
        if not self._stop or at_once > self._at_once:
            self._stop, self._at_once = True, at_once
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

    @property
    def node_failure(self) -> str | None:
        """Description of another node of the job for whose end this one has to end; None: there is none."""
        return self._node_failure

    def report_node_failure(self, description: str) -> None:
        if self._node_failure is None:
            self._node_failure = description
            self._wake()

    def detach(self) -> None:
        self._detached.set()
        self._wake()

    def check(self) -> None:
        """Raise if the attempt must release the job. Raises `Detached`: the attempt must release the job."""
        if self.detached:
            raise Detached

    def pause(self, seconds: float) -> None:
        """Wait, but at most until the attempt must release the job.

        Raises `Detached`: the attempt must release the job.
        """
        if self._detached.wait(seconds):
            raise Detached

    @property
    def monitored(self) -> bool:
        """True while a watch follows the job and acts on requests."""
        return self._watcher is not None

    def set_watcher(self, watcher: FileWatcher | None) -> None:
        with self._lock:
            self._watcher = watcher

    def _wake(self) -> None:
        with self._lock:
            if self._watcher is not None:
                self._watcher.wake()
