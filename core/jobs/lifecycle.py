"""State transitions of jobs. Claims, heartbeats and retention write jobs in their own modules.

Each transition is one guarded statement: it names the lease and the states the job may be in, and its event is
written in the same transaction. If no row is returned, another process moved the job: `LeaseLost`. The caller's
session commits (`Database.write`); nothing here does.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, String, and_, bindparam, false, func, insert, literal, or_, select, update
from sqlalchemy import delete as delete_rows
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.credentials import GitLogin, WorkerToken
from core.db.models.jobs import Event, Job
from core.db.prepared import Prepared
from core.errors import JobNotFound
from core.jobs.guarded_updates import (
    AT_ONCE,
    JOBS,
    NEXT_LEASE,
    NOW,
    STOP_REQUESTED,
    add_event,
    enqueue_wake,
    returning_all,
    transition,
    update_attempt,
    update_job,
)
from core.jobs.reasons import INFRASTRUCTURE_FAULTS, REASONS, Reason
from core.jobs.scheduling import dependencies, nodes
from core.jobs.states import OWNED, JobState
from core.security import job_rights
from core.security.actor import acting_address, acting_key
from core.security.visibility import seeing_everything

RETRY_FIRST_SECONDS, RETRY_MAX_SECONDS = 5, 600
MAX_MACHINE_FAULTS = 3  # machine faults after which the job itself is the likely cause
_CLOSING = frozenset({JobState.FINISHING, JobState.KEPT})
_PHASES_WITH_PROGRESS = frozenset({"installing", "downloading", "pulling", "building", "pushing"})


def adopt(
    session: Session,
    worker: str,
    host: str,
    *,
    backends: Sequence[str],
    stale_seconds: float,
    held: Collection[str] = (),
) -> list[Job]:
    """Take over jobs of this host whose worker is dead or silent: lease + 1, same state, same attempt.

    Those of the worker's own name are taken at once, of any backend: a process locks its name, so the earlier holder is
    dead. Others are taken only after `stale_seconds` without a heartbeat, if their backend is one of `backends`, and
    never from a worker that has a token: it is on another host. Those that the caller holds (`held`) are skipped.
    """
    far = Job.worker.in_(select(WorkerToken.worker)) if backends else false()  # one with a token may not read these
    left = and_(Job.backend.in_(backends), Job.heartbeat_at < now(-stale_seconds), ~far)
    adopted = Job.host == host, Job.state.in_(OWNED), or_(Job.worker == worker, left), Job.id.not_in(held)
    values = {"lease": Job.lease + 1, "worker": worker, "heartbeat_at": now()}
    jobs = returning_all(session, update(Job).where(*adopted).values(values))
    for job in jobs:
        add_event(session, job, "adopted", detail=worker)
    return jobs


def confirm(session: Session, job: Job) -> Job:
    """Check the lease once more, renew the heartbeat, and return the current row with any stop request."""
    return update_job(session, job, frozenset({JobState.STARTING}), heartbeat_at=NOW)


def is_held(session: Session, job: Job, seconds: float) -> bool:
    """Return whether the caller holds the starting job under its lease, with a heartbeat of the last seconds."""
    return bool(_select_held(seconds).rows(session, {"of_id": job.id, "of_lease": job.lease}))


@cache
def _select_held(seconds: float) -> Prepared:
    held = JOBS.c.id == bindparam("of_id"), JOBS.c.lease == bindparam("of_lease"), JOBS.c.state == JobState.STARTING
    return Prepared(select(JOBS.c.id).where(*held, JOBS.c.heartbeat_at > now(-seconds)))


def set_phase(session: Session, job: Job, phase: str, detail: str | None = None) -> Job:
    moved = update_job(session, job, OWNED, phase=phase, phase_detail=detail)
    # A phase that reports progress gets one event at its start, not one for each update.
    counts = phase == job.phase and phase in _PHASES_WITH_PROGRESS
    if (phase, moved.phase_detail) != (job.phase, job.phase_detail) and not counts:
        add_event(session, moved, "phase", phase=phase, detail=detail)
    return moved


def mark_running(session: Session, job: Job, handle: dict[str, Any], at: ColumnElement[Any] | None = None) -> Job:
    """Record that the command runs since this time: `starting → running`, with the handle to find it by.

    The image, GPUs and machine in the handle (`image`, `gpus`, `allocation`) are stored with the attempt. The event
    reports a job that runs without a sandbox, or in one without a network of its own (`sandboxed` or `own_network` is
    False), or in one that is localhost alone (`leads_out` is False).
    """
    source = job.state
    moved = transition(
        session,
        job,
        JobState.RUNNING,
        handle=handle,
        image_digest=handle.get("image"),
        started_at=NOW if at is None else at,
        phase="running",
        phase_detail=None,
    )
    update_attempt(session, moved, **_start_values(handle, moved.started_at))
    _add_started(session, moved, source, handle)
    return moved


def _start_values(handle: dict[str, Any], started_at: datetime | None) -> dict[str, Any]:
    """Return the columns of an attempt whose command has begun."""
    machine = {"gpus": handle.get("gpus"), "allocation": handle.get("allocation")}
    return {"started_at": started_at, "image_digest": handle.get("image"), **machine}


def _add_started(session: Session, job: Job, source: JobState, handle: dict[str, Any]) -> None:
    detail = None
    if handle.get("sandboxed") is False:
        detail = "without a sandbox, as a process of the server's user"
    elif handle.get("own_network") is False:
        detail = "in the server's network, where it can reach every listening service"
    elif handle.get("leads_out") is False:
        detail = "in a network of localhost alone: the machine can make no other, and more than one API key is valid"
    add_event(session, job, "started", job.started_at, from_state=source, to_state=JobState.RUNNING, detail=detail)


def set_image_digest(session: Session, job: Job, digest: str | None) -> Job:
    updated = update_job(session, job, OWNED, image_digest=digest)
    update_attempt(session, updated, image_digest=digest)
    return updated


def correct_start(session: Session, job: Job, ran: float) -> Job:
    """Set the start of a running job to this many seconds ago: its worker's clock, which nobody sets, measured them."""
    moved = update_job(session, job, frozenset({JobState.RUNNING}), started_at=now(-ran))
    update_attempt(session, moved, started_at=moved.started_at)
    return moved


def mark_finishing(
    session: Session,
    job: Job,
    reason: str,
    *,
    detail: str | None = None,
    exit_code: int | None = None,
    began: tuple[dict[str, Any], datetime] | None = None,  # handle and time of a start that is not recorded yet
    ended_at: datetime | ColumnElement[Any] | None = None,  # time of the command's end; None: now
) -> Job:
    """Record that the command ended or could not be started: `→ finishing`, with the reason."""
    source = job.state
    start: dict[str, Any] = {} if began is None else {"started_at": began[1], "image_digest": began[0].get("image")}
    if reason == "stopped_by_user" and (cause := _stop_cause(session, job)) is not None:
        reason, detail = "stopped_by_sweep", cause
    moved = transition(
        session,
        job,
        JobState.FINISHING,
        reason=reason,
        reason_detail=detail,
        exit_code=exit_code,
        ended_at=NOW if ended_at is None else ended_at,
        phase="collecting",
        phase_detail=None,
        **start,
    )
    end = {"ended_at": moved.ended_at, "exit_code": exit_code, "reason": reason, "reason_detail": detail}
    update_attempt(session, moved, **end, **(_start_values(*began) if began is not None else {}))
    if began is not None:
        _add_started(session, moved, source, began[0])
        source = JobState.RUNNING
    states = {"from_state": source, "to_state": moved.state}
    add_event(session, moved, "ended", moved.ended_at, **states, reason=reason, detail=detail)
    return moved


def _stop_cause(session: Session, job: Job) -> str | None:
    """Return why a job's sweep stopped it; None: another one did."""
    stop = select(Event.detail).where(Event.job_id == job.id, Event.kind == STOP_REQUESTED)
    return session.scalar(stop.where(Event.reason == "stopped_by_sweep").limit(1))


def finish(session: Session, job: Job, *, artifacts_state: str, settles: bool = True) -> Job:
    """Close the attempt: `finishing → succeeded | failed | cancelled`, or back to the queue for a retry.

    `settles`: see `settle`; False if the caller may change no other jobs.
    """
    source = job.state
    reason = REASONS[job.reason or "internal_error"]
    target = reason.final or JobState.FAILED
    reason, retry = _may_retry_all(session, job, reason)
    infrastructure = reason.fault in INFRASTRUCTURE_FAULTS and target is not JobState.SUCCEEDED
    if retry or infrastructure:
        # Locks the row, so that no stop request can arrive before the transition.
        requested = select(Job.stop_requested_at).where(Job.id == job.id).with_for_update()
        stop = session.scalar(requested) is not None  # the caller's row may be older than a stop request
        if retry and not stop:
            return _retry(session, job, reason, _CLOSING, artifacts_state=artifacts_state)
        if infrastructure and stop:
            target = JobState.CANCELLED  # as requested, though not by the request
    moved = transition(
        session,
        job,
        target,
        _CLOSING,
        artifacts_state=artifacts_state,
        finished_at=NOW,
        handle=None,
        phase=None,
        phase_detail=None,
    )
    return _record_end(session, source, moved, settles=settles)


def fail_lost(
    session: Session,
    job: Job,
    reason: str,
    detail: str | None = None,
    *,
    ended_at: datetime | None = None,  # time of the attempt's end; None: now
    again: bool = False,  # requeue it although it may not be retried, unless a stop was requested
) -> Job:
    """Close or requeue a job whose machine is lost, so that no worker can finish it."""
    if job.state is JobState.KEPT:  # it has failed already
        return finish(session, job, artifacts_state=job.artifacts_state)
    source, end = job.state, {"reason": reason, "reason_detail": detail}
    marked = update_job(session, job, frozenset({job.state}), ended_at=ended_at or NOW, **end)
    update_attempt(session, marked, ended_at=marked.ended_at, **end)
    decides, retry = _may_retry_all(session, marked, REASONS[reason])
    if retry or (again and marked.stop_requested_at is None):
        return _retry(session, marked, decides, frozenset({source}), artifacts_state=marked.artifacts_state)
    target = JobState.CANCELLED if marked.stop_requested_at is not None else JobState.FAILED
    moved = transition(session, marked, target, lease=NEXT_LEASE, finished_at=NOW, phase=None, phase_detail=None)
    return _record_end(session, source, moved)


def _record_end(session: Session, source: JobState, ended: Job, *, settles: bool = True) -> Job:
    """Record that a job has ended for good."""
    why = {"reason": ended.reason, "detail": ended.reason_detail}
    add_event(session, ended, "finished", from_state=source, to_state=ended.state, **why)
    if settles:
        settle(session, ended)
    return ended


def settle(session: Session, ended: Job) -> None:
    """Draw the consequences of a job's end for others, of which a repeat finds none.

    Nodes that were to run again together with it end, too. Jobs that waited for it start, or end if they never can.
    """
    for node in nodes.others(session, ended, {JobState.QUEUED}):
        cause = nodes.failures(session, [ended.array_id or ""]).get(ended.array_id)
        cancel_queued(session, node, "node_failed", cause)
    _release_dependents(session, ended)


def _may_retry_all(session: Session, job: Job, reason: Reason) -> tuple[Reason, bool]:
    """Return whether another attempt follows one with this reason, and the reason that decides: for nodes, of all."""
    decided = nodes.retry_decision(session, job) if job.nodes is not None else None
    if decided is None:
        return reason, may_retry(job, reason)
    return decided.reason, not decided.closed and may_retry(job, decided.reason, started=decided.started)


def may_retry(job: Job, reason: Reason, *, started: bool | None = None) -> bool:
    """Return whether another attempt follows one that ended with this reason.

    A fault of the machine or the service does not count as an attempt. If the command had started, it is run
    again only if the user allowed more than one attempt: its external effects cannot be undone. `started`: whether it
    had; None: as the row says.
    """
    if not reason.retries(job.spec) or job.stop_requested_at is not None:
        return False
    if reason.fault not in INFRASTRUCTURE_FAULTS:
        return job.attempt - job.machine_faults < job.max_attempts
    started = job.started_at is not None if started is None else started
    allowed = job.max_attempts > 1 or not started or reason.never_began
    return allowed and (reason.unlimited or job.machine_faults < MAX_MACHINE_FAULTS)


def _retry(session: Session, job: Job, reason: Reason, sources: frozenset[JobState], *, artifacts_state: str) -> Job:
    source = job.state
    pause = min(RETRY_FIRST_SECONDS * 2 ** (job.attempt - 1), RETRY_MAX_SECONDS)
    ended_with = job.reason_detail  # of the attempt; the transition may refresh this row
    why = ended_with or reason.name.replace("_", " ")
    faults = job.machine_faults
    if reason.fault in INFRASTRUCTURE_FAULTS:
        faults += 1
        detail = f"attempt {job.attempt} ended ({why}). The job was not at fault, so the attempt does not count."
    else:
        detail = f"attempt {job.attempt - faults} of {job.max_attempts} ended ({why})."
    moved = transition(
        session,
        job,
        JobState.QUEUED,
        sources,
        lease=NEXT_LEASE,
        reason="retrying",
        reason_detail=detail,
        run_after=now(pause),
        artifacts_state=artifacts_state,
        machine_faults=faults,
        worker=None,
        host=None,
        handle=None,
        phase="queued",
        phase_detail=None,
    )
    states = {"from_state": source, "to_state": moved.state}
    add_event(session, moved, "requeued", **states, reason=reason.name, detail=ended_with)
    enqueue_wake(session, moved)
    return moved


def request_stop(session: Session, job_id: str, *, at_once: bool = False, sweep_cause: str | None = None) -> Job:
    """Request that the job stop. A waiting job is cancelled at once; stopping an ended one does nothing.

    Once its command has ended, the request stops the collection of outputs; what is stored by then is kept. With
    `at_once` the job has no grace period, also if it is stopping already. With a node, all are stopped.
    `sweep_cause`: why its sweep stops it.
    """
    # Locked: a job that is requeued between the read and the update must not miss the request.
    return _stop_nodes(session, lock_job(session, job_id), at_once=at_once, sweep_cause=sweep_cause)


def _stop_nodes(session: Session, job: Job, *, at_once: bool = False, sweep_cause: str | None = None) -> Job:
    for other in nodes.others(session, job, OWNED | {JobState.QUEUED}):
        _request_stop(session, other, at_once=at_once, sweep_cause=sweep_cause)
    return _request_stop(session, job, at_once=at_once, sweep_cause=sweep_cause)


def _request_stop(session: Session, job: Job, *, at_once: bool, sweep_cause: str | None) -> Job:
    if job.state is JobState.QUEUED:
        reason = "stopped_by_sweep" if sweep_cause else "stopped_by_user"
        return cancel_queued(session, job, reason, sweep_cause, actor=acting_key(), stop_requested_at=NOW)
    stops_collecting = job.state is JobState.FINISHING and not stop_follows_end(session, job)
    repeated = job.stop_requested_at is not None and not stops_collecting
    if job.state not in OWNED or (repeated and not at_once):
        return job
    at = job.stop_requested_at if repeated else NOW
    requested = update_job(session, job, OWNED, stop_requested_at=at)
    detail = sweep_cause or (AT_ONCE if at_once else None)
    by_sweep = "stopped_by_sweep" if sweep_cause else None
    add_event(session, requested, STOP_REQUESTED, reason=by_sweep, detail=detail, actor=acting_key())
    enqueue_wake(session, requested)
    return requested


def stop_follows_end(session: Session, job: Job) -> bool:
    """Return whether a stop was requested after the attempt's command had ended.

    By the order of the events, not by their times: a clock may be set back in between.
    """
    of_attempt = Event.job_id == job.id, Event.attempt == job.attempt
    ended = select(func.max(Event.id)).where(*of_attempt, Event.kind == "ended").scalar_subquery()
    stops = select(Event.id).where(Event.job_id == job.id, Event.kind == STOP_REQUESTED, Event.id > ended)
    return session.scalar(stops.limit(1)) is not None


def cancel_queued(session: Session, job: Job, *why: str | None, **values: Any) -> Job:  # noqa: ANN401 - column values
    """Cancel a waiting job; `why`: the reason and its detail."""
    cancelled = _cancel_queued(session, job, *why, **values)
    _release_dependents(session, cancelled)
    return cancelled


def _cancel_queued(session: Session, job: Job, *why: str | None, actor: str | None = None, **values: Any) -> Job:  # noqa: ANN401 - column values
    reason, detail = why
    over = {"finished_at": NOW, "phase": None, "phase_detail": None, "reason": reason, "reason_detail": detail}
    waiting = frozenset({JobState.QUEUED})
    cancelled = transition(session, job, JobState.CANCELLED, waiting, lease=NEXT_LEASE, **over, **values)
    states = {"from_state": JobState.QUEUED, "to_state": JobState.CANCELLED}
    add_event(session, cancelled, "finished", **states, reason=reason, detail=detail, actor=actor)
    return cancelled


@seeing_everything()
def _release_dependents(session: Session, ended: Job) -> None:
    """Let jobs start that waited for one that has ended, and cancel those that can never start, with their own."""
    ends = [ended]
    while ends:
        before = ends.pop()
        for job_id, never in dependencies.take(session, before):
            waiting = select(Job).where(Job.id == job_id, Job.state == JobState.QUEUED).with_for_update()
            job = session.scalar(waiting, execution_options={"populate_existing": True})
            lost = None if job is None else job_rights.find_lost(session, job)
            if job is not None and lost is not None:  # its owner is not told how the other ended, either
                ends.append(_cancel_queued(session, job, "access_lost", lost.text))
            elif job is not None and never:
                ends.append(_cancel_queued(session, job, "dependency_failed", dependencies.describe_end(before)))
            elif job is not None:
                enqueue_wake(session, job)


def delete(session: Session, job_id: str) -> Job:
    """Hide the job and stop it if it runs; its outputs are removed once it has ended, its row stays."""
    job = lock_job(session, job_id)
    session.execute(update(Job).where(Job.id == job_id).values(deleted_at=now()))  # told to the jobs that wait for it
    job = _stop_nodes(session, job)
    session.execute(delete_rows(GitLogin).where(GitLogin.job_id == job_id))
    add_event(session, job, "deleted", actor=acting_key())
    return job


def delete_of_project(session: Session, project_id: str) -> None:
    """Hide all jobs of a project, as `delete` does, in three statements: all of them must have ended."""
    shown = Job.project_id == project_id, Job.deleted_at.is_(None)
    actor = literal(acting_key(), String), literal(acting_address(), String)
    events = select(Job.id, now(), literal("deleted"), Job.attempt, Job.lease, *actor).where(*shown)
    session.execute(insert(Event).from_select(["job_id", "at", "kind", "attempt", "lease", "actor", "address"], events))
    logins = delete_rows(GitLogin).where(GitLogin.job_id.in_(select(Job.id).where(*shown)))
    for statement in (logins, update(Job).where(*shown).values(deleted_at=now())):
        session.execute(statement, execution_options={"synchronize_session": False})


def lock_job(session: Session, job_id: str) -> Job:
    job = session.scalar(select(Job).where(Job.id == job_id, Job.deleted_at.is_(None)).with_for_update())
    if job is None:
        raise JobNotFound(job_id)
    return job
