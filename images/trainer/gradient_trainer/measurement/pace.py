"""The pace of a training, without its compilation and other work."""

import statistics
import time
from collections.abc import Callable
from typing import Any

WARM_UP_STEPS = 5
_QUARTERS = 4


class Pace:
    """Steps per second over periods of pure training.

    A period is the time between `begin` and `end`: evaluation, checkpoints and the writing of metrics are outside. The
    first steps of a process count neither as steps nor as time, because the backend traces and compiles in them.

    Args:
        clock: Returns the time in seconds.
        cpu_clock: Returns the CPU time of all threads of this process in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._cpu_began = self._cpu_seconds = 0.0
        self._all_steps = 0
        self._began: float | None = None
        self._warming_since = 0.0
        self._period_steps = 0
        self._periods: list[tuple[int, float]] = []
        # time of the first execution, with its compilation; None before it
        self.first_step_seconds: float | None = None
        self.warm_up_seconds = 0.0  # time of the first executions, until WARM_UP_STEPS are done

    @property
    def warming_up(self) -> bool:
        """True while the next step is one of the first; wait for the device after such a step."""
        return self._all_steps < WARM_UP_STEPS

    def begin(self) -> None:
        self._period_steps = 0
        self._warming_since = self._clock()
        self._began = None if self.warming_up else self._warming_since
        self._cpu_began = self._cpu_clock()

    def step(self, count: int = 1) -> None:
        warming_up = self.warming_up
        self._all_steps += count
        if not warming_up:
            self._period_steps += count
            return
        now = self._clock()
        self.warm_up_seconds += now - self._warming_since
        self.first_step_seconds = self.first_step_seconds or now - self._warming_since
        self._warming_since = now
        if not self.warming_up:
            self._began, self._cpu_began = now, self._cpu_clock()

    def end(self) -> float | None:
        """End the period and return its steps per second, or None if it was all warm-up."""
        if self._began is None or self._period_steps == 0:
            return None
        seconds = self._clock() - self._began
        self._periods.append((self._period_steps, seconds))
        self._cpu_seconds += self._cpu_clock() - self._cpu_began
        self._began = None
        return self._period_steps / seconds

    @property
    def overall(self) -> float | None:
        """Steps per second over all periods so far, or None before the warm-up is over."""
        seconds = sum(seconds for _, seconds in self._periods)
        return sum(steps for steps, _ in self._periods) / seconds if self._periods else None

    @property
    def cpu_seconds_per_step(self) -> float | None:
        """CPU time of a step in seconds, of all threads: almost the same on a busy machine. None before any period."""
        return self._cpu_seconds / sum(steps for steps, _ in self._periods) if self._periods else None

    def spread(self, factor: int) -> dict[str, float] | None:
        """Return median and quartiles over the periods of steps per second, times `factor`; None before any period."""
        paces = [factor * steps / seconds for steps, seconds in self._periods]
        if not paces:
            return None
        quarters = statistics.quantiles(paces, n=_QUARTERS, method="inclusive") if len(paces) > 1 else paces * 3
        return dict(zip(("p25", "median", "p75"), quarters, strict=True))


def format_pace(steps_per_second: float | None, examples_per_second: float | None) -> str:
    if steps_per_second is None or examples_per_second is None:
        return "(warming up)"
    return f"{steps_per_second:.1f} steps/s  {examples_per_second:,.0f} examples/s"


def peak_shares(
    steps_per_second: float | None, cost: dict[str, Any] | None, tflops: float | None, bandwidth: float | None
) -> dict[str, float | None]:
    """Return the shares of a device's given peaks that a training reaches; None where something is unknown."""
    done = steps_per_second and cost and {name: steps_per_second * cost[name] for name in ("flops", "bytes")}
    return {
        "flops": done["flops"] / (tflops * 1e12) if done and tflops else None,
        "bandwidth": done["bytes"] / (bandwidth * 1e9) if done and bandwidth else None,
    }
