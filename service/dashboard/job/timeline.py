"""Timeline of a job: the durations of waiting, provisioning, running and collecting."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from service.schemas.jobs import EventView

_QUEUED_EVENTS = {"submitted", "requeued"}
_PHASE_BY_EVENT = {
    "submitted": "queued",
    "requeued": "queued",
    "claimed": "provisioning",
    "started": "running",
    "ended": "collecting",
    "kept": "kept",
}
_WIDTH = 1000.0
_MIN_WIDTH = 14.0


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    phase: str
    seconds: float
    open: bool  # whether the phase has not ended
    left: float  # its start in a drawing 1000 wide
    width: float  # its width there; a short phase is drawn wider than its share, so that it can be seen


def phase_spans(events: Sequence[EventView], current: datetime, attempt: int | None = None) -> list[PhaseSpan]:
    """Return the phases of one attempt, from when the job was queued for it.

    `attempt`: number of the attempt; None: the phases since the job was last queued.
    """
    queued = [at for at, event in enumerate(events) if event.kind in _QUEUED_EVENTS]
    last = len(queued) - 1
    chosen = last if attempt is None else min(attempt - 1, last)
    first, stop = (queued[chosen], [*queued, len(events)][chosen + 1]) if queued else (0, len(events))
    began: list[tuple[str, datetime]] = []
    ended: datetime | None = events[stop].at if stop < len(events) else None
    for event in events[first:stop]:
        phase = event.phase if event.kind == "phase" else _PHASE_BY_EVENT.get(event.kind)
        if event.kind == "finished":
            ended = event.at
        elif phase and (not began or began[-1][0] != phase):
            began.append((phase, event.at))
    ends = [*(at for _, at in began[1:]), ended or current]
    lasted = [max(0.0, (end - at).total_seconds()) for (_, at), end in zip(began, ends, strict=True)] if began else []
    shared = _WIDTH - _MIN_WIDTH * len(lasted)
    total = sum(lasted) or 1.0
    drawn: list[PhaseSpan] = []
    left = 0.0
    for number, ((phase, _), seconds) in enumerate(zip(began, lasted, strict=True), start=1):
        width = _MIN_WIDTH + shared * seconds / total
        drawn.append(PhaseSpan(phase, seconds, ended is None and number == len(began), round(left, 1), round(width, 1)))
        left += width
    return drawn
