"""Threads that repeat a step for a running job until they are ended."""

import threading
import time
from abc import ABC, abstractmethod

from core.db.models.jobs import Job
from core.monitoring.logging import bind


class PeriodicThread(threading.Thread, ABC):
    """Repeats `step` at intervals, in its own thread: a slow step must not delay what else is done for the job.

    Args:
        name: The thread's name.
        job: The job, bound to the thread's log lines.
        pause: Seconds until the first step.
    """

    def __init__(self, name: str, job: Job, pause: float) -> None:
        super().__init__(name=f"{name}-{job.id}", daemon=True)
        self._job = job
        self._start_at = time.monotonic() + pause
        self._ended = threading.Event()

    @abstractmethod
    def step(self) -> float:
        """Run the step once; return the seconds until the next one."""

    def run(self) -> None:
        """Repeat the step."""
        bind(**self._job.log_context())
        pause = max(0.0, self._start_at - time.monotonic())
        while not self._ended.wait(pause):
            pause = self.step()

    def start_if_due(self) -> None:
        """Start the thread once its first step is due, unless it was started or has ended."""
        if self.ident is None and time.monotonic() >= self._start_at and not self._ended.is_set():
            self.start()

    def end(self) -> None:
        """Start no further step, and wait for one in progress."""
        self._ended.set()
        if self.ident is not None:
            self.join()
