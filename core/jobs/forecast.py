"""When a waiting job may start, from how long earlier jobs ran. Numbers in, numbers out: nothing is read here.

What is not known is left out: jobs of other machine types that compete for the same workers, jobs that are yet to be
submitted, and how much a job differs from those before it.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

LEAST_HISTORY = 3
"""Jobs that must have ended before anything is said."""
LEAST_LEFT = 0.1
"""Of the median: what a job that has outlived it is taken to need still."""
_SHORTEST = 0.001
"""Seconds; jobs that last no longer keep nobody waiting."""


def typical(durations: Sequence[float]) -> float | None:
    """How long a job lasts, in seconds: the median of `durations`; None of fewer than three."""
    return statistics.median(durations) if len(durations) >= LEAST_HISTORY else None


def left(lasts: float, elapsed: float) -> float:
    """Seconds that a job is taken to need still, of `lasts` in all, after `elapsed`."""
    return max(lasts - max(0.0, elapsed), LEAST_LEFT * lasts)


def slots(idle: int, busy: Iterable[float], room: int) -> list[float]:
    """In how many seconds each of `room` slots is free.

    Args:
        idle: Slots that are free now.
        busy: Seconds until each running job ends.
        room: Jobs that can run at once. Where more run than fit in, as when a job needs the room of several, the
            last of them to end decide.
    """
    idle = min(idle, room)
    ends = sorted(busy)
    return [0.0] * idle + ends[max(0, len(ends) - (room - idle)) :]


def starts(free_in: Sequence[float], lasts: float, places: Iterable[int]) -> dict[int, float]:
    """Seconds until the jobs at some places of a queue start; empty if there is no slot.

    Each job takes the slot that is free first and keeps it for as long as a job lasts.

    Args:
        free_in: In how many seconds each slot is free.
        lasts: How long each job keeps its slot, in seconds.
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
        # Sums of the same numbers in another order differ in their last digit.
        earliest = found[place] = max(earliest, line.start(place))
    return found


class _Line:
    """The slots as places are served, moved on by whole rounds: the thousandth place costs no more than the first.

    Slots that are free within a job's length of each other are taken in turn, round after round.

    Args:
        free_in: In how many seconds each slot is free.
        lasts: How long each job keeps its slot, in seconds; more than 0.
    """

    def __init__(self, free_in: Sequence[float], lasts: float) -> None:
        self._lasts = lasts
        self._later = deque(sorted(free_in))
        self._turns: list[float] = []
        self._served = 0
        self._join()

    def start(self, place: int) -> float:
        """When a place is served. Places are asked in their order."""
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
        """Let the slot that is free next take part, and those that are free soon after."""
        first = self._later.popleft()
        self._turns.append(first)
        while self._later and self._later[0] <= first + self._lasts:
            self._turns.append(self._later.popleft())
        self._turns.sort()
