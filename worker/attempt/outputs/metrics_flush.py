"""Stores the metrics of a worker's running attempts: what is new of all of them, in one transaction a second."""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.database import Database
from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs.guarded_updates import update_attempt
from core.jobs.tracking import metrics, params
from worker.attempt.outputs.metrics_reader import BATCH_VALUES
from worker.attempt.periodic import PeriodicTask, Schedule

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
_TOTALS_SECONDS = 30.0
_MAX_QUEUED_VALUES = 5 * BATCH_VALUES


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: list[dict[str, Any]]
    totals: dict[str, Any]  # columns of the attempt, such as the peaks of its usage; empty: unchanged
    left_out: dict[str, str]  # metrics that were left out, and that was not recorded yet: by reason, a sentence


class MetricsQueue:
    def __init__(self, job: Job, left_out: Mapping[str, str]) -> None:
        self.job = job
        self._left_out = left_out
        self._reported: set[str] = set()
        self._rows: deque[dict[str, Any]] = deque()
        self._values = 0
        self._totals: dict[str, Any] = {}
        self._totals_at = time.monotonic()
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """True if unread metrics should wait in the job's file, because the database is slower than the job."""
        return self._values >= _MAX_QUEUED_VALUES

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._totals and len(self._left_out) == len(self._reported)

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            self._rows += rows
            self._values += sum(len(row["values"]) for row in rows)

    def set_totals(self, totals: dict[str, Any], *, at_once: bool) -> None:
        """Queue the attempt's peaks; otherwise than at once, only at intervals."""
        with self._lock:
            if at_once or time.monotonic() - self._totals_at >= _TOTALS_SECONDS:
                self._totals, self._totals_at = self._totals | totals, time.monotonic()

    def take(self) -> _Batch:
        with self._lock:
            rows: list[dict[str, Any]] = []
            values = 0
            while self._rows and values < BATCH_VALUES:
                rows.append(self._rows.popleft())
                values += len(rows[-1]["values"])
            self._values -= values
            totals, self._totals = self._totals, {}
        new = {reason: text for reason, text in dict(self._left_out).items() if reason not in self._reported}
        self._reported |= new.keys()
        return _Batch(rows, totals, new)

    def put_back(self, batch: _Batch) -> None:
        with self._lock:
            self._rows.extendleft(reversed(batch.rows))
            self._values += sum(len(row["values"]) for row in batch.rows)
            self._totals = batch.totals | self._totals
        self._reported -= batch.left_out.keys()


class MetricsFlush(PeriodicTask):
    """Stores the queues that are not empty, a second after the first of them got something."""

    def __init__(self, database: Database, schedule: Schedule) -> None:
        super().__init__(PAUSE_SECONDS)
        self._database = database
        self._schedule = schedule
        self._queues: dict[MetricsQueue, None] = {}
        self._changed = threading.Lock()

    def request(self, queue: MetricsQueue) -> None:
        with self._changed:
            first = not self._queues
            self._queues[queue] = None
        if first:
            self.start(self._schedule)

    def step(self) -> None:
        """Store what is queued; if the database does not answer, try again after the pause."""
        with self._changed:
            queues, self._queues = list(self._queues), {}
        while queues := [queue for queue in queues if not queue.is_empty]:
            try:
                self._store(queues)
            except StoreUnavailable:
                for queue in queues:
                    self.request(queue)
                return
            except Exception:
                logger.exception("metrics_not_stored", extra={"jobs": [queue.job.id for queue in queues]})
                if len(queues) == 1:
                    return
                for queue in queues:  # one must not keep back the others
                    try:
                        self._store([queue])
                    except StoreUnavailable:
                        self.request(queue)
                    except Exception:
                        logger.exception("metrics_not_stored", extra={"jobs": [queue.job.id]})
                return

    def flush(self, queue: MetricsQueue) -> None:
        """Store all of a queue now. Raises `StoreUnavailable`: the database does not answer; the rest stays queued."""
        self.forget(queue)
        while not queue.is_empty:
            self._store([queue])

    def forget(self, queue: MetricsQueue) -> None:
        """Do not store a queue any more, and wait until it is not being stored."""
        with self._changed:
            self._queues.pop(queue, None)
        with self.in_progress:
            pass

    def _store(self, queues: Sequence[MetricsQueue]) -> None:
        batches = [(queue, queue.take()) for queue in queues]
        try:
            with self._database.write() as session:
                _write(session, batches)
        except BaseException:
            for queue, batch in batches:
                queue.put_back(batch)
            raise


def _write(session: Session, batches: Sequence[tuple[MetricsQueue, _Batch]]) -> None:
    """Store the batches of jobs that are still held: another worker has stored newer metrics of the others."""
    leases = select(Job.id, Job.lease).where(Job.id.in_([queue.job.id for queue, _ in batches]))
    held = {(row.id, row.lease) for row in session.execute(leases)}
    batches = [(queue, batch) for queue, batch in batches if (queue.job.id, queue.job.lease) in held]
    metrics.write(session, [row for _, batch in batches for row in batch.rows if row["source"] != "params"])
    for queue, batch in batches:
        logged = [row["values"] for row in batch.rows if row["source"] == "params"]
        if logged:
            params.add_logged(
                session, queue.job, {name: value for params_logged in logged for name, value in params_logged.items()}
            )
        if batch.totals:
            update_attempt(session, queue.job, **batch.totals)
        for reason, text in batch.left_out.items():
            metrics.record_limit(session, queue.job, reason, text)
