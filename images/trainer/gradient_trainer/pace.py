import time
from collections.abc import Callable

WARM_UP_STEPS = 5


class Pace:
    """Steps per second over stretches of pure training.

    A stretch lies between `begin` and `end`: evaluation, checkpoints and the writing of metrics are outside. The first
    steps of a process count neither as steps nor as time, because TensorFlow traces and compiles the graph in them.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seen = 0
        self._began: float | None = None
        self._stretch_steps = 0
        self._steps = 0
        self._seconds = 0.0

    def begin(self) -> None:
        """Start a stretch."""
        self._stretch_steps = 0
        self._began = self._clock() if self._seen >= WARM_UP_STEPS else None

    def step(self) -> None:
        """Count a finished step."""
        self._seen += 1
        if self._began is not None:
            self._stretch_steps += 1
        elif self._seen == WARM_UP_STEPS:
            self._began = self._clock()

    def end(self) -> float | None:
        """End the stretch and return its steps per second, or None if it was all warm-up."""
        if self._began is None or self._stretch_steps == 0:
            return None
        seconds = self._clock() - self._began
        self._steps += self._stretch_steps
        self._seconds += seconds
        self._began = None
        return self._stretch_steps / seconds

    @property
    def overall(self) -> float | None:
        """Steps per second over all stretches so far, or None before the warm-up is over."""
        return self._steps / self._seconds if self._steps else None
