"""The attempts of a job as its pages list them: their phases, their time and cost, and where their logs begin."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from core.db.models.jobs import Attempt
from core.jobs import queries
from service.app_state import AppState
from service.dashboard.job.header import JobHeader
from service.dashboard.job.timeline import PhaseSpan, phase_spans
from service.schemas.jobs import EventView

_SECONDS_PER_HOUR = 3600
_ENDS = frozenset({"ended", "requeued", "finished"})  # kinds of events that have the reason for which an attempt ended


@dataclass(frozen=True, slots=True)
class AttemptRow:
    row: Attempt
    seconds: float | None  # running time of its command; None if it did not run or has not ended
    cost: float | None  # US dollars of that time
    gpu_hours: float
    message: str | None
    phase_spans: list[PhaseSpan]
    first_line: int | None  # number of the first line that it printed; None: nothing


def attempt_rows(
    session: Session, app_state: AppState, header: JobHeader, events: Sequence[EventView]
) -> list[AttemptRow]:
    reader = app_state.logs.reader(header.row.id)
    reasons = {event.attempt: event.message for event in reversed(events) if event.kind in _ENDS and event.message}
    rows = []
    for row in header.attempts or queries.attempts(session, header.row.id):
        ran = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
        rows.append(
            AttemptRow(
                row=row,
                seconds=ran,
                cost=None if ran is None else ran * header.row.price_per_hour / _SECONDS_PER_HOUR,
                gpu_hours=(ran or 0.0) * header.row.gpu_count / _SECONDS_PER_HOUR,
                message=reasons.get(row.attempt),
                phase_spans=phase_spans(events, datetime.now(UTC), row.attempt),
                first_line=reader.first_line(row.attempt),
            )
        )
    return rows
