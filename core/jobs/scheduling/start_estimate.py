"""Estimates when waiting jobs start, from the durations of earlier jobs. Pure functions without I/O.

Not taken into account: jobs that are submitted later. An estimate that is likely to be off by more than a quarter, and
by more than a minute, is not made.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

MIN_HISTORY = 3  # ended jobs needed for an estimate
UNKNOWN = (0.0, 1e9)  # the shortest and the longest duration of jobs of which nothing is known
_MAX_OFF, _MAX_OFF_SECONDS = 0.25, 60.0
_NEGLIGIBLE_SECONDS = 0.001  # jobs shorter than this, in seconds, do not delay others


def typical_durations(durations: Sequence[float]) -> tuple[float, float]:
    """Return durations between which eight of ten jobs lie; UNKNOWN if there are fewer than MIN_HISTORY."""
    if len(durations) < MIN_HISTORY:
        return UNKNOWN
    tenths = statistics.quantiles(durations, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def between(earliest: float, latest: float) -> float | None:
    """Return the middle of two estimates; None if it may be off by more than a quarter and by more than a minute."""
    middle = (earliest + latest) / 2
    return middle if latest - middle <= max(middle * _MAX_OFF, _MAX_OFF_SECONDS) else None


def remaining_seconds(durations: Sequence[float], elapsed: float) -> tuple[float, float]:
    """Return in how many seconds a job ends after `elapsed`, at least and at most, by those that lasted longer.

    If there are fewer than MIN_HISTORY, nothing is known.
    """
    longer = [duration for duration in durations if duration >= elapsed]
    if len(longer) < MIN_HISTORY:
        return 0.0, math.inf
    return min(longer) - max(0.0, elapsed), max(longer) - max(0.0, elapsed)


def slot_free_times(idle: int, busy: Iterable[float], capacity: int) -> list[float]:
    """Return the seconds until each of `capacity` slots is free.

    Args:
        busy: Seconds until each running job ends.
        capacity: Jobs that can run at once. If more are running, because the new job needs the room of several, those
            that end last count.
    """
    idle = min(idle, capacity)
    ends = sorted(busy)
    return [0.0] * idle + ends[max(0, len(ends) - (capacity - idle)) :]


def start_times(free_in: Sequence[float], duration: float, positions: Iterable[int]) -> dict[int, float]:
    """Estimate the seconds until the jobs at some positions of a queue start; empty if there is no slot.

    Each job takes the slot that is free first and occupies it for `duration` seconds. Returns seconds by position. A
    later position never starts earlier.
    """
    wanted = sorted(set(positions))
    free_in = [seconds for seconds in free_in if seconds < math.inf]
    if not free_in or not wanted:
        return {}
    if duration < _NEGLIGIBLE_SECONDS:
        return dict.fromkeys(wanted, min(free_in))
    schedule = _SlotSchedule(free_in, duration)
    times: dict[int, float] = {}
    earliest = 0.0
    for position in wanted:
        # Rounding depends on the order of summation; later places must not start earlier.
        earliest = times[position] = max(earliest, schedule.start(position))
    return times


class _SlotSchedule:
    """The schedule of the slots, advanced by whole rounds: the thousandth place costs no more than the first.

    Slots that become free within one job's duration of each other are used in turn, round after round.
    """

    def __init__(self, free_in: Sequence[float], duration: float) -> None:
        self._duration = duration
        self._pending = deque(sorted(free_in))
        self._active: list[float] = []
        self._served = 0
        self._add_slots()

    def start(self, position: int) -> float:
        """Return the seconds until a place is served. Must be called with ascending places."""
        while self._pending:
            rounds = [max(0, math.ceil((self._pending[0] - free) / self._duration)) for free in self._active]
            if self._served + sum(rounds) >= position:
                break
            self._served += sum(rounds)
            self._active = [free + count * self._duration for free, count in zip(self._active, rounds, strict=True)]
            self._add_slots()
        round_, turn = divmod(position - self._served - 1, len(self._active))
        return self._active[turn] + round_ * self._duration

    def _add_slots(self) -> None:
        """Add the slot that is free next, and those that are free within one job's duration after it."""
        first = self._pending.popleft()
        self._active.append(first)
        while self._pending and self._pending[0] <= first + self._duration:
            self._active.append(self._pending.popleft())
        self._active.sort()
