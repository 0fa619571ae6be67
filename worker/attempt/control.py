import threading
import time
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
        self.held_since = time.monotonic()  # when the job was claimed or adopted: its thread may begin much later
        self.stop_requested = stop_requested
        self.at_once = False  # whether the job is to be stopped without a grace period
        self._on_slot_free = on_slot_free
        self.waiting = False  # whether the job needs no slot of its worker: it waits elsewhere, or runs there
        self.contact_lost = False  # whether the database is away for so long that other workers will soon restart it
        self.node_failure: str | None = None  # description of another node of the job for whose end this one has to end
        # whether the command runs, or may run, and its start is not recorded: for other workers it never began
        self.start_unrecorded = False
        self._detached = threading.Event()
        self._watcher: FileWatcher | None = None
        self.together = False  # whether the job may be submitted with other members of its array
        self._resume: Callable[[], None] | None = None
        self._resumed = False
        self._lock = threading.Lock()

    @property
    def detached(self) -> bool:
        """True if the attempt must release the job without touching it."""
        return self._detached.is_set()

    def set_waiting(self, *, waiting: bool) -> None:
        """Set whether the job only waits; called by the attempt's thread."""
        begins = waiting and not self.waiting
        self.waiting = waiting
        if begins:
            self._on_slot_free()

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
        if not self.stop_requested or at_once > self.at_once:
            self.stop_requested, self.at_once = True, at_once
            self._wake()

    def report_contact_lost(self) -> None:
        """Request that the job be ended before a worker that considers this host lost restarts it."""
        if not self.contact_lost:
            self.contact_lost = True
            self._wake()

    def report_node_failure(self, description: str) -> None:
        if self.node_failure is None:
            self.node_failure = description
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

    def may_retry(self, seconds: float) -> bool:
        """Wait before the next try; return False if the attempt must release the job instead."""
        return not self._detached.wait(seconds)

    @property
    def monitored(self) -> bool:
        """True while a watch follows the job and acts on requests."""
        return self._watcher is not None

    def set_watcher(self, watcher: FileWatcher | None) -> None:
        with self._lock:
            self._watcher = watcher

    def park(self, resume: Callable[[], None]) -> bool:
        """Let this be called for the next request, while no thread runs the attempt; False: there was one meanwhile."""
        with self._lock:
            if self._resumed:
                self._resumed = False
                return False
            self._resume = resume
            return True

    def resume(self) -> None:
        """Let a thread run the attempt that waits elsewhere."""
        with self._lock:
            resume, self._resume = self._resume, None
            self._resumed = resume is None
        if resume is not None:
            resume()

    def _wake(self) -> None:
        with self._lock:
            if self._watcher is not None:
                self._watcher.wake()
        self.resume()
