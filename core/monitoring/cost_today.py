import threading
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs.states import OWNED
from core.monitoring.job_event_totals import SETTLED_SECONDS
from core.search import computed_columns


class CostToday:
    """Cost of all jobs since midnight UTC, of the last attempt of each.

    A job that has ended never costs more. So the sum of those whose end is certainly committed is kept, and each call
    reads only the ones that ended later and those that still run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._midnight = self._summed_until = datetime.min.replace(tzinfo=UTC)
        self._dollars = 0.0

    def get(self, session: Session) -> float:
        """Return the cost up to now, US dollars."""
        at = session.scalars(select(now())).one()
        midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
        settled = at - timedelta(seconds=SETTLED_SECONDS)
        with self._lock:
            if self._midnight != midnight:
                self._midnight = self._summed_until = midnight
                self._dollars = 0.0
            if self._summed_until < settled:
                ended = (Job.finished_at >= self._summed_until) & (Job.finished_at < settled)
                self._dollars += _sum_cost(session, midnight, ended)
                self._summed_until = settled
            kept, summed_until = self._dollars, self._summed_until
        ended_since = _sum_cost(session, midnight, Job.finished_at >= summed_until)
        return kept + ended_since + _sum_cost(session, midnight, Job.state.in_(OWNED))


def _sum_cost(session: Session, since: datetime, condition: ColumnElement[bool]) -> float:
    cost = computed_columns.cost_since(session.get_bind().dialect.name, since)
    return session.scalar(select(func.sum(cost)).where(condition)) or 0.0
