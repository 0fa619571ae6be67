"""Steps that are repeated for running jobs: one thread waits for those of all jobs, and a few run them."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType

from core.monitoring.logging import bind

logger = logging.getLogger(__name__)

_MAX_AT_ONCE = 64  # steps that run at once, such as long copies; further ones wait
_THREAD_PAUSE_SECONDS = 1.0
PAUSE_FACTOR = 10  # of the time that a slow step takes, so that it takes at most a tenth of the time


def _do_nothing() -> None:
    """Do nothing."""


class PeriodicTask(ABC):
    """Repeats `step` at intervals, beside the job's own thread: a slow step must not delay what else is done for it.

    `pause`: seconds until the first step.
    """

    def __init__(self, pause: float, log_context: Mapping[str, object] = MappingProxyType({})) -> None:
        self._pause = pause
        self._log_context = log_context
        self._ended = threading.Event()
        self.in_progress = threading.Lock()  # held while the step runs

    @property
    def ended(self) -> bool:
        """True if no further step runs."""
        return self._ended.is_set()

    @abstractmethod
    def step(self) -> float | None:
        """Run the step once; return the seconds until the next one, or None if it need not be repeated."""

    def start(self, schedule: "Schedule") -> None:
        """Have the steps run, the first one after the pause."""
        schedule.add(self, time.monotonic() + self._pause)

    def run_step(self) -> float | None:
        """Run the step, unless the task has ended; return the seconds until the next one, or None."""
        with self.in_progress:
            if self._ended.is_set():
                return None
            bind(**self._log_context)
            return self.step()

    def end(self) -> None:
        """Start no further step, and wait for one in progress."""
        self._ended.set()
        with self.in_progress:
            pass


class Schedule:
    """Runs the steps of all tasks of a worker as they are due; its threads exist while there are tasks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, PeriodicTask]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._pool = ThreadPoolExecutor(_MAX_AT_ONCE, thread_name_prefix="periodic")

    def add(self, task: PeriodicTask, due: float) -> None:
        """Run a task's step at a time of the monotonic clock, and again after the pause that it returns."""
        with self._changed:
            heappush(self._waiting, (due, next(self._numbers), task))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="schedule", daemon=True)
                thread.start()
                self._thread = thread
            elif self._waiting[0][0] == due:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._waiting and self._waiting[0][2].ended:  # most jobs end before their first step is due
                    heappop(self._waiting)
                if not self._waiting:
                    self._thread = None
                    return
                wait = self._waiting[0][0] - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                task = heappop(self._waiting)[2]
            if not self._submit(partial(self._run_step, task)):
                return

    def _submit(self, step: Callable[[], None]) -> bool:
        """Run a step in the pool; return False if this process ends."""
        while True:
            try:
                self._pool.submit(step)
            except RuntimeError as error:
                if "new thread" not in str(error):
                    return False
                logger.warning("thread_not_started", exc_info=True)
                time.sleep(_THREAD_PAUSE_SECONDS)
                step = _do_nothing  # the step is queued already; only a thread to run it is missing
            else:
                return True

    def _run_step(self, task: PeriodicTask) -> None:
        try:
            pause = task.run_step()
        except Exception:
            logger.exception("periodic_step_failed")
            return
        if pause is not None:
            self.add(task, time.monotonic() + pause)
