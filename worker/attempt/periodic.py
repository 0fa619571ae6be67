"""Threads that repeat a step for a running job until they are ended."""

import threading
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
        self._pause = pause
        self._ended = threading.Event()

    @abstractmethod
    def step(self) -> float:
        """Run the step once; return the seconds until the next one."""

    def run(self) -> None:
        """Repeat the step."""
        bind(**self._job.log_context())
        pause = self._pause
        while not self._ended.wait(pause):
            pause = self.step()

    def end(self) -> None:
        """Start no further step, and wait for one in progress."""
        self._ended.set()
        self.join()
