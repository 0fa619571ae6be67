"""When a waiting job may start, from how long earlier jobs ran. Numbers in, numbers out: nothing is read here.

What is not known is left out: jobs of other machine types that compete for the same workers, jobs that are yet to be
submitted, and how much a job differs from those before it.
"""

import heapq
import statistics
from collections.abc import Iterable, Sequence

LEAST_HISTORY = 3
"""Jobs that must have ended before anything is said."""
LEAST_LEFT = 0.1
"""Of the median: what a job that has outlived it is taken to need still."""


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
    wanted = set(places)
    free = list(free_in)
    if not free or not wanted:
        return {}
    heapq.heapify(free)
    found: dict[int, float] = {}
    for place in range(1, max(wanted) + 1):
        if place in wanted:
            found[place] = free[0]
        heapq.heapreplace(free, free[0] + lasts)
    return found
