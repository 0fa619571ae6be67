"""What the supervisor tells a running attempt."""

import threading

from core.filewatch import FileWatch


class Detached(Exception):
    """The worker is going away, or lost the job: leave it running and write nothing more."""


class Signals:
    """Wishes for one attempt, set by the supervisor's thread and read by the attempt's."""

    def __init__(self, *, stop_requested: bool = False) -> None:
        self._stop = stop_requested
        self._cut_off = False
        self._detached = threading.Event()
        self._watch: FileWatch | None = None
        self._lock = threading.Lock()

    @property
    def stop_requested(self) -> bool:
        """Somebody wants the job stopped."""
        return self._stop

    @property
    def detached(self) -> bool:
        """The attempt has to let go of the job without touching it."""
        return self._detached.is_set()

    def request_stop(self) -> None:
        """Have the job stopped."""
        if not self._stop:
            self._stop = True
            self._wake()

    @property
    def cut_off(self) -> bool:
        """The worker has been without the database for so long that others will soon start the job elsewhere."""
        return self._cut_off

    def cut_off_from_record(self) -> None:
        """Have the job ended before somebody who takes this host for lost starts it again."""
        if not self._cut_off:
            self._cut_off = True
            self._wake()

    def detach(self) -> None:
        """Have the attempt let go of the job."""
        self._detached.set()
        self._wake()

    def check(self) -> None:
        """Raise if the attempt has to let go.

        Raises:
            Detached: It has.
        """
        if self.detached:
            raise Detached

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than until the attempt has to let go.

        Raises:
            Detached: It has.
        """
        if self._detached.wait(seconds):
            raise Detached

    @property
    def watched(self) -> bool:
        """Whether a watch follows the job now, and does to it what is wished."""
        return self._watch is not None

    def wakes(self, watch: FileWatch | None) -> None:
        """Wake this watch at every wish from now on; None: no more."""
        with self._lock:
            self._watch = watch

    def _wake(self) -> None:
        with self._lock:
            if self._watch is not None:
                self._watch.wake()
