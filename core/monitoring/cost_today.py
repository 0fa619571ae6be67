import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs.states import OWNED
from core.monitoring.job_event_totals import SETTLED_SECONDS
from core.search import computed_columns


@dataclass(frozen=True, slots=True)
class Spent:
    dollars: float = 0.0
    gpu_hours: Counter[str] = field(default_factory=Counter)  # on machine types without a price, by type

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.dollars + other.dollars, self.gpu_hours + other.gpu_hours)


class CostToday:
    """Cost of all jobs since midnight UTC, of the last attempt of each.

    A job that has ended never costs more. So the sum of those whose end is certainly committed is kept, and each call
    reads only the ones that ended later and those that still run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._midnight = self._summed_until = datetime.min.replace(tzinfo=UTC)
        self._spent = Spent()

    def get(self, session: Session) -> Spent:
        """Return the cost up to now."""
        at = session.scalars(select(now())).one()
        midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
        settled = at - timedelta(seconds=SETTLED_SECONDS)
        with self._lock:
            if self._midnight != midnight:
                self._midnight = self._summed_until = midnight
                self._spent = Spent()
            if self._summed_until < settled:
                ended = (Job.finished_at >= self._summed_until) & (Job.finished_at < settled)
                self._spent += _sum_cost(session, midnight, ended)
                self._summed_until = settled
            kept, summed_until = self._spent, self._summed_until
        ended_since = _sum_cost(session, midnight, Job.finished_at >= summed_until)
        return kept + ended_since + _sum_cost(session, midnight, Job.state.in_(OWNED))


def _sum_cost(session: Session, since: datetime, condition: ColumnElement[bool]) -> Spent:
    hours = computed_columns.hours_since(session.get_bind().dialect.name, since)
    is_free = Job.price_per_hour == 0
    sums = func.sum(hours * Job.price_per_hour), func.sum(hours * Job.gpu_count)
    by_type = select(Job.machine_type, is_free, *sums).where(condition).group_by(Job.machine_type, is_free)
    rows = session.execute(by_type).all()
    gpu_hours = Counter({machine_type: hours for machine_type, free, _, hours in rows if free and hours})
    return Spent(sum(dollars or 0.0 for _, _, dollars, _ in rows), gpu_hours)
