"""Estimates when waiting jobs start, from the durations of earlier jobs. Pure functions without I/O.

Not taken into account: jobs of other machine types that compete for the same workers, jobs that are submitted later,
and how much a job differs from earlier ones.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

LEAST_HISTORY = 3
"""Ended jobs needed for an estimate."""
LEAST_LEFT = 0.1
"""Fraction of the median that a job running longer than it is assumed to need still."""
_SHORTEST = 0.001
"""Seconds; shorter jobs do not delay others."""


def typical(durations: Sequence[float]) -> float | None:
    """Return the median of `durations`, in seconds; None if there are fewer than LEAST_HISTORY."""
    return statistics.median(durations) if len(durations) >= LEAST_HISTORY else None


def left(lasts: float, elapsed: float) -> float:
    """Estimate the remaining seconds of a job that lasts `lasts` in all, after `elapsed`."""
    return max(lasts - max(0.0, elapsed), LEAST_LEFT * lasts)


def slots(idle: int, busy: Iterable[float], room: int) -> list[float]:
    """Return the seconds until each of `room` slots is free.

    Args:
        idle: Slots that are free now.
        busy: Seconds until each running job ends.
        room: Jobs that can run at once. If more are running, because the new job needs the room of several, those
            that end last count.
    """
    idle = min(idle, room)
    ends = sorted(busy)
    return [0.0] * idle + ends[max(0, len(ends) - (room - idle)) :]


def starts(free_in: Sequence[float], lasts: float, places: Iterable[int]) -> dict[int, float]:
    """Estimate the seconds until the jobs at some places of a queue start; empty if there is no slot.

    Each job takes the slot that is free first and occupies it for `lasts` seconds.

    Args:
        free_in: Seconds until each slot is free.
        lasts: Seconds that each job occupies its slot.
        places: Places in the queue; 1 is next.

    Returns:
        Seconds by place. A later place never starts earlier.
    """
    wanted = sorted(set(places))
    if not free_in or not wanted:
        return {}
    if lasts < _SHORTEST:
        return dict.fromkeys(wanted, min(free_in))
    line = _Line(free_in, lasts)
    found: dict[int, float] = {}
    earliest = 0.0
    for place in wanted:
        # Rounding depends on the order of summation; later places must not start earlier.
        earliest = found[place] = max(earliest, line.start(place))
    return found


class _Line:
    """The schedule of the slots, advanced by whole rounds: the thousandth place costs no more than the first.

    Slots that become free within one job's duration of each other are used in turn, round after round.

    Args:
        free_in: Seconds until each slot is free.
        lasts: Seconds that each job occupies its slot; more than 0.
    """

    def __init__(self, free_in: Sequence[float], lasts: float) -> None:
        self._lasts = lasts
        self._later = deque(sorted(free_in))
        self._turns: list[float] = []
        self._served = 0
        self._join()

    def start(self, place: int) -> float:
        """Return the seconds until a place is served. Must be called with ascending places."""
        while self._later:
            rounds = [max(0, math.ceil((self._later[0] - free) / self._lasts)) for free in self._turns]
            if self._served + sum(rounds) >= place:
                break
            self._served += sum(rounds)
            self._turns = [free + count * self._lasts for free, count in zip(self._turns, rounds, strict=True)]
            self._join()
        round_, turn = divmod(place - self._served - 1, len(self._turns))
        return self._turns[turn] + round_ * self._lasts

    def _join(self) -> None:
        """Add the slot that is free next, and those that are free within one job's duration after it."""
        first = self._later.popleft()
        self._turns.append(first)
        while self._later and self._later[0] <= first + self._lasts:
            self._turns.append(self._later.popleft())
        self._turns.sort()
