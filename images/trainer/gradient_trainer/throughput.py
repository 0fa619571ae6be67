import time
from collections.abc import Callable

WARM_UP_STEPS = 5


class Throughput:
    """Steps per second over periods of pure training.

    A period is the time between `begin` and `end`: evaluation, checkpoints and the writing of metrics are outside. The
    first steps of a process count neither as steps nor as time, because TensorFlow traces and compiles the graph in
    them.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._all_steps = 0
        self._began: float | None = None
        self._period_steps = 0
        self._steps = 0
        self._seconds = 0.0

    def begin(self) -> None:
        """Start a period."""
        self._period_steps = 0
        self._began = self._clock() if self._all_steps >= WARM_UP_STEPS else None

    def step(self) -> None:
        """Count a finished step."""
        self._all_steps += 1
        if self._began is not None:
            self._period_steps += 1
        elif self._all_steps == WARM_UP_STEPS:
            self._began = self._clock()

    def end(self) -> float | None:
        """End the period and return its steps per second, or None if it was all warm-up."""
        if self._began is None or self._period_steps == 0:
            return None
        seconds = self._clock() - self._began
        self._steps += self._period_steps
        self._seconds += seconds
        self._began = None
        return self._period_steps / seconds

    @property
    def overall(self) -> float | None:
        """Steps per second over all periods so far, or None before the warm-up is over."""
        return self._steps / self._seconds if self._steps else None


def format_throughput(steps_per_second: float | None, examples_per_second: float | None) -> str:
    """Format a throughput for the user."""
    if steps_per_second is None or examples_per_second is None:
        return "(warming up)"
    return f"{steps_per_second:.1f} steps/s  {examples_per_second:,.0f} examples/s"
