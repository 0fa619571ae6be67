"""Repairs of the database that all hosts share; each may be made by any process that may change all jobs, at any time.

Workers beside the service make them. So does the service, since workers of other hosts may change only their own jobs.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TypeVar

from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import Session, aliased

from core.db.database import Database, now
from core.db.models.job_dependencies import JobDependency
from core.db.models.jobs import Job, Worker
from core.errors import LeaseLost
from core.jobs import lifecycle
from core.jobs.queries import WORKER_STALE_SECONDS
from core.jobs.scheduling import port_allocations, repair_queries
from core.jobs.states import OWNED, TERMINAL, JobState
from core.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RENOTIFY_SECONDS = 30.0  # workers also poll; this is for those that were disconnected from the broker
_LEASE_SWEEPS = 3
_BATCH = 100


class SharedRepairs:
    """For a while after the start, and after an outage of the database, no host is declared lost.

    An outage of the control plane must not look like dead hosts.

    Args:
        lease: Name of the lease that lets one process at a time make the repairs.
        host: Name of the holder's host, which is not lost; None: it runs no jobs.
        on_lost: Called with each job whose host is lost.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        lease: str,
        holder: str,
        host: str | None,
        on_lost: Callable[[Job], None],
    ) -> None:
        self._database = database
        self._settings = settings.worker
        self._lease, self._holder, self._host, self._on_lost = lease, holder, host, on_lost
        self._silent_since: dict[tuple[str, int, datetime | None], float] = {}
        self.defer_lost_detection()

    def defer_lost_detection(self) -> None:
        """Wait again before declaring hosts lost: they could not send heartbeats."""
        self._lost_detection_at = time.monotonic() + self._settings.lost_after_seconds

    def hosts_may_be_lost(self) -> bool:
        return time.monotonic() >= self._lost_detection_at

    def run(self) -> dict[str, int]:
        """Make the repairs if this process holds their lease; return their number by kind."""
        seconds = _LEASE_SWEEPS * self._settings.sweep_seconds
        leads = partial(repair_queries.try_become_leader, name=self._lease, holder=self._holder, seconds=seconds)
        if not self._write(leads):
            return {}
        return {
            "lost_jobs": self._fail_lost_attempts(),
            "settled": self._write(_settle_ended),
            "rung_again": self._write(partial(repair_queries.renotify_overdue, seconds=_RENOTIFY_SECONDS)),
            "drained": self._write(repair_queries.drain_failing_hosts),
            "gpus": self._write(repair_queries.release_orphaned_gpus),
            "ports": self._write(port_allocations.release_orphaned_ports),
        }

    def _fail_lost_attempts(self) -> int:
        """Fail attempts whose host sent no heartbeat for `lost_after_seconds`; they may be retried elsewhere.

        None came while two more were due, either: if the database's clock is set forward, every last one seems old. A
        host beside which no other lives is not lost: its worker finds its jobs when it is started again.
        """
        if not self.hosts_may_be_lost():
            return 0
        current = time.monotonic()
        others_live = exists().where(Worker.host != Job.host, Worker.seen_at >= now(-WORKER_STALE_SECONDS))
        elsewhere = others_live if self._host is None else Job.host != self._host
        silent_since = now(-self._settings.lost_after_seconds)
        # A job in a queue of its own runs on without its worker, until somebody wants it to end.
        on_host = or_(Job.backend.not_in(repair_queries.WITH_OWN_QUEUE), Job.stop_requested_at.is_not(None))
        lost = select(Job).where(Job.state.in_(OWNED), Job.heartbeat_at < silent_since, elsewhere, on_host)
        with self._database.read() as session:
            jobs = {(job.id, job.lease, job.heartbeat_at): job for job in session.scalars(lost)}
        self._silent_since = {silent: self._silent_since.get(silent, current) for silent in jobs}
        due = 2 * self._settings.heartbeat_seconds
        return sum(
            self._fail_lost(jobs[silent]) for silent, since in self._silent_since.items() if current - since >= due
        )

    def _fail_lost(self, job: Job) -> bool:
        detail = f"{self._settings.lost_after_seconds / 60:.0f} minutes"
        try:
            self._write(lambda session: lifecycle.fail_lost(session, job, "worker_lost", detail))
        except LeaseLost:
            return False  # the host came back
        self._on_lost(job)
        logger.warning("worker_lost", extra=job.log_context())
        return True

    def _write(self, action: Callable[[Session], T]) -> T:
        with self._database.write() as session:
            return action(session)


def _settle_ended(session: Session) -> int:
    """Settle jobs that have ended, and whose worker could change no other jobs and did not reach the service."""
    member, waited_for = aliased(Job), select(Job).where(Job.state.in_(TERMINAL)).limit(_BATCH)
    unended = exists().where(member.array_id == Job.array_id, member.state.not_in(TERMINAL))
    failed = and_(JobDependency.must_succeed, Job.state != JobState.SUCCEEDED)
    single = waited_for.join(JobDependency, JobDependency.after_id == Job.id)
    arrays = waited_for.join(JobDependency, JobDependency.after_id == Job.array_id).where(or_(~unended, failed))
    nodes = waited_for.join(member, member.array_id == Job.array_id).where(
        member.nodes.is_not(None), member.state == JobState.QUEUED
    )
    ended = {job.id: job for query in (single, arrays, nodes) for job in session.scalars(query)}
    for job in ended.values():
        lifecycle.settle(session, job)
    return len(ended)
