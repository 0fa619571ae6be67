"""The time for which the machine of a failed job is kept, so that its user can look: `finishing → kept`.

Its running time goes on meanwhile, since the machine is in use. `kept_until` in the job's handle is when that ends.
"""

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Job, Worker
from core.errors import JobNotKept
from core.formatting import format_moment
from core.jobs import lifecycle, queries
from core.jobs.costs import limits
from core.jobs.guarded_updates import NOW, add_event, transition, update_attempt, update_job
from core.jobs.reasons import REASONS
from core.jobs.states import JobState

_OWN_ENDS = frozenset(
    {
        *("exit_nonzero", "command_not_found", "command_not_executable", "killed", "signalled"),
        *("out_of_memory", "machine_memory"),
    }
)
"""Reasons of jobs that ended by themselves, and left a machine to look at."""


def may_keep(session: Session, job: Job) -> bool:
    """Return whether the machine of a finishing job is to be kept: it failed by itself, and is not retried."""
    until = _keep_until(job)
    if until is None or job.reason not in _OWN_ENDS or job.stop_requested_at is not None:
        return False
    return until > session.scalars(select(now())).one() and not lifecycle.may_retry(job, REASONS[job.reason])


def _keep_until(job: Job) -> datetime | None:
    """Return until when a job may be kept: at most until its time limit or ceiling; None: it may not."""
    seconds, limit = job.spec.keep_on_fail, limits.deadline(job)
    if seconds is None or job.started_at is None or job.ended_at is None:
        return None
    until = job.ended_at + timedelta(seconds=seconds)
    return until if limit is None else min(until, job.started_at + timedelta(seconds=limit.seconds))


def keep(session: Session, job: Job, *, artifacts_state: str) -> Job:
    until = _keep_until(job)
    if until is None:
        raise ValueError(f"job {job.id} is not to be kept")
    moved = transition(
        session,
        job,
        JobState.KEPT,
        frozenset({JobState.FINISHING}),
        artifacts_state=artifacts_state,
        handle={**(job.handle or {}), "kept_until": until.isoformat()},
        ended_at=None,
        phase="kept",
        phase_detail=f"until {format_moment(until)}",
    )
    update_attempt(session, moved, ended_at=None)
    states = {"from_state": job.state, "to_state": moved.state}
    add_event(session, moved, "kept", **states, reason=moved.reason, detail=moved.reason_detail)
    return moved


def end(session: Session, job: Job, *, settles: bool) -> Job:
    """Close a kept job, whose machine is gone."""
    moved = update_job(session, job, frozenset({JobState.KEPT}), ended_at=NOW)
    update_attempt(session, moved, ended_at=moved.ended_at)
    return lifecycle.finish(session, moved, artifacts_state=moved.artifacts_state, settles=settles)


def kept_until(job: Job) -> datetime | None:
    """Return until when a job is kept at most; None: it is not."""
    return datetime.fromisoformat((job.handle or {})["kept_until"]) if job.state is JobState.KEPT else None


def is_over(session: Session, job: Job) -> bool:
    """Return whether a kept job is to be ended now: its time is over, or its worker is drained."""
    until, drained = kept_until(job), select(Worker.drained_at).where(Worker.name == job.worker)
    return until is None or until <= session.scalars(select(now())).one() or session.scalar(drained) is not None


def release(session: Session, job_id: str) -> Job:
    """End the time for which a job is kept. Raises `JobNotKept`: it is not."""
    job = queries.get(session, job_id)
    if job.state is not JobState.KEPT:
        raise JobNotKept(f"Job {job_id} is {job.state}, not kept for a look: there is nothing to release.")
    return lifecycle.request_stop(session, job_id)
