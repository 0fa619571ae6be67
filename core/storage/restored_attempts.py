"""Jobs of a restored database that have run since its backup: their next run must not reuse an attempt number."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.credentials import WorkerToken
from core.db.models.jobs import IS_ACTIVE, Job
from core.jobs import lifecycle, queries
from core.jobs.guarded_updates import update_job
from core.jobs.states import OWNED, JobState
from core.storage.artifacts.manifests import ArtifactsState
from core.storage.stores import Stores

_WAITING = frozenset({JobState.QUEUED})
_DETAIL = "the database was restored from an earlier backup"


class _Traces(NamedTuple):
    """Traces of a job outside the database: the last attempt with any, and the state of its stored artifacts."""

    last_attempt: int
    artifacts_state: ArtifactsState


def adapt_jobs(stores: Stores) -> int:
    """Adapt jobs that have not ended to the logs, artifacts and scratch folders of their attempts.

    - A job with a later attempt than its row waits again, with that attempt's number: the next claim takes the number
      after it, as both stores refuse or mix up a second run of an attempt. The attempts that the database does not know
      do not count against `max_attempts`.
    - Without the scratch folder of its attempt, which every host has below GRADIENT_HOME, a job is not adopted: one
      that had started by the row ends with `process_lost`, or is retried; one that was about to start, and left
      outputs, waits again. Those of workers with a GRADIENT_HOME of their own are left to these, which have the folder.

    No other process of the service may run. Returns number of jobs changed; a repeat changes none.
    """
    with stores.database.read() as session:
        active = session.execute(select(Job.id, Job.attempt, Job.state, Job.worker).where(IS_ACTIVE)).all()
        far = set(session.scalars(select(WorkerToken.worker)))
    scratch = _list_scratch(stores.settings.root / "attempts")
    behind = []
    for job_id, attempt, state, worker in active:
        traces = _find_traces(stores, job_id, scratch.get(job_id, ()))
        lost = state in OWNED and worker not in far and attempt not in scratch.get(job_id, ())
        if traces.last_attempt > attempt or lost:
            behind.append((job_id, traces))
    with stores.database.write() as session:
        return sum(_adapt(session, job_id, traces) for job_id, traces in behind)


def _list_scratch(attempts: Path) -> dict[str, set[int]]:
    attempts_of: dict[str, set[int]] = {}
    for entry in attempts.iterdir() if attempts.is_dir() else ():
        job_id, _, attempt = entry.name.rpartition("-")
        if attempt.isdecimal():
            attempts_of.setdefault(job_id, set()).add(int(attempt))
    return attempts_of


def _find_traces(stores: Stores, job_id: str, scratch: Iterable[int]) -> _Traces:
    artifacts = stores.artifacts.last_attempt(job_id)
    last = max(stores.logs.reader(job_id).last_attempt, artifacts, *scratch)
    return _Traces(last, stores.artifacts.list(job_id, artifacts, limit=1).state if artifacts else "none")


def _adapt(session: Session, job_id: str, traces: _Traces) -> bool:
    """Adapt one job, whose attempt has no scratch folder if it is not the last one; return whether that changed it."""
    job = queries.get_row(session, job_id)
    if job is None:
        return False
    before = (job.lease, job.attempt, job.artifacts_state)
    if traces.artifacts_state != "none":
        job = update_job(session, job, frozenset({job.state}), artifacts_state=traces.artifacts_state)
    again = traces.last_attempt > job.attempt or (job.state is JobState.STARTING and traces.last_attempt == job.attempt)
    if job.state in OWNED and (again or job.state is JobState.RUNNING):
        job = lifecycle.fail_lost(
            session,
            job,
            job.reason or "process_lost",
            job.reason_detail or _DETAIL,
            ended_at=job.ended_at or _last_seen_at(job),
            again=again,
        )
    if job.state is JobState.QUEUED and traces.last_attempt > job.attempt:
        faults = job.machine_faults + traces.last_attempt - job.attempt
        job = update_job(session, job, _WAITING, attempt=traces.last_attempt, machine_faults=faults)
    return before != (job.lease, job.attempt, job.artifacts_state)


def _last_seen_at(job: Job) -> datetime | None:
    """Return the last time at which the job's attempt is known to have run; a start may follow the last heartbeat."""
    return max((at for at in (job.heartbeat_at, job.started_at) if at is not None), default=None)
