"""Messages to receivers: of events of jobs, and of the ends of arrays."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Event, Job, Worker
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.formatting import iso_time
from core.jobs.spec.arrays import array_name, is_sweep_id
from core.jobs.states import TERMINAL, JobState
from core.jobs.templates.sweeps import sweeps
from core.jobs.templates.sweeps.plan import Plan
from core.notifications.deliveries import Notice
from core.notifications.receivers import owner_of
from service.app_state import AppState
from service.presenters.jobs import STATE_WORDS, job_views, public_state
from service.schemas.jobs import JobView

_SHOWN = {
    *("id", "name", "project", "project_id", "owner", "state", "reason", "message", "exit_code", "machine_type"),
    *("attempt", "schedule_id", "created_at", "started_at", "finished_at", "duration_seconds", "cost", "tags", "url"),
}
"""Fields of a job in messages, which leave the service: neither its command nor its variables."""
_OF_TRIALS = {"complete": "job.succeeded", "failed": "job.failed", "cancelled": "job.cancelled"}
_LATELY_SECONDS = 3600  # a worker that has been silent for longer is no news
_MOST_NAMED = 20  # jobs that did not succeed, in a message
_ENDED = {"Stopped": "job.succeeded", "Failed": "job.failed", "Error": "job.error", "Cancelled": "job.cancelled"}


def end_event(job: Job) -> str:
    """Return the name of the event of a job's end."""
    return _ENDED[public_state(job.state, job.exit_code)]


def notices_of(session: Session, app_state: AppState, events: Sequence[Event]) -> Iterator[Notice]:
    """Yield the messages of marked events; those of an array's members are one, when all have ended."""
    query = select(Job).where(Job.id.in_({event.job_id for event in events}))
    jobs = {job.id: job for job in session.scalars(query)}
    single = [job for job in jobs.values() if job.array_id is None]
    views = {view.id: view for view in job_views(session, app_state, single)}
    for event in events:
        job = jobs[event.job_id]
        if job.array_id is None:
            yield _of_job(session, event, job, views[job.id])
    ended = {jobs[event.job_id].array_id for event in events if event.kind == "finished"}
    for array_id in sorted(array_id for array_id in ended if array_id is not None and not is_sweep_id(array_id)):
        notice = _of_array(session, app_state, array_id)
        if notice is not None:
            yield notice


def ended_subjects(notices: Sequence[Notice]) -> list[str]:
    """Return the ids of the jobs and arrays that have ended."""
    return [notice.data[kind]["id"] for notice in notices for kind in ("job", "array") if _has_ended(notice, kind)]


def _has_ended(notice: Notice, kind: str) -> bool:
    return kind in notice.data and notice.event in {*_ENDED.values(), "array.ended"}


def _of_job(session: Session, event: Event, job: Job, view: JobView) -> Notice:
    data: dict[str, Any] = view.model_dump(mode="json", by_alias=True, include=_SHOWN)
    if event.kind == "started":
        name, what = "job.running", f"runs on {view.machine_type}"
    elif event.kind == "finished":
        name, what = end_event(job), f"{STATE_WORDS[view.state].lower()}: {view.message}"
    else:
        name, what = "job.waiting", f"waits: {event.detail or event.reason or 'for a machine'}"
    return Notice(
        key=f"event-{event.id}",
        event=name,
        summary=f"{view.name} ({job.id}) {what}",
        data={"job": data},
        at=event.at,
        subjects=(job.id, job.project_id, owner_of(session, job.submitted_by)),
    )


def _of_array(session: Session, app_state: AppState, array_id: str) -> Notice | None:
    """Return the message of an array; None: it has not ended."""
    members = list(session.scalars(select(Job).where(Job.array_id == array_id).order_by(Job.array_index)))
    if any(job.state not in TERMINAL for job in members):
        return None
    first = members[0]
    counts = Counter(STATE_WORDS[public_state(job.state, job.exit_code)] for job in members)
    bad = [job.id for job in members if job.state is not JobState.SUCCEEDED]
    view = job_views(session, app_state, [first])[0]
    name = array_name(view.name, first.array_index)
    return Notice(
        key=f"array-{array_id}",
        event="array.ended",
        summary=f"{name} ({array_id}): {describe_counts(counts)} of {len(members):,} jobs",
        data={
            "array": {
                "id": array_id,
                "name": name,
                "project": view.project,
                "projectId": first.project_id,
                "jobs": len(members),
                "states": counts,
                "notSucceeded": bad[:_MOST_NAMED],
                "url": f"{app_state.settings.public_url}/ui/jobs?array={array_id}",
            }
        },
        at=max(job.finished_at or job.created_at for job in members),
        subjects=(array_id, first.project_id, owner_of(session, first.submitted_by)),
        also={end_event(job) for job in members},
    )


def describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state.lower()}" for state, count in sorted(counts.items()))


def of_sweep(session: Session, app_state: AppState, sweep: Sweep) -> Notice | None:
    """Return the message of a sweep that has ended or paused; None: trials of an ended one still run."""
    states = Counter(sweeps.counts(session, [sweep.id])[sweep.id])
    if sweep.state != "paused" and states["running"]:
        return None
    plan, name = Plan.from_json(sweep.plan), sweep.spec.name or "sweep"
    best = sweeps.best_trial(session, sweep.id, plan)
    result = "" if best is None else f"; best {plan.metric} {best.value:.6g} in trial {best.number}"
    event = "sweep.paused" if sweep.state == "paused" else "sweep.ended"
    return Notice(
        key=f"sweep-{sweep.id}-{sweep.turn}",
        event=event,
        summary=f"{name} ({sweep.id}) {sweep.state}: {describe_counts(states) or 'no trials'}{result}. {sweep.reason}",
        data={
            "sweep": {
                "id": sweep.id,
                "name": sweep.spec.name,
                "projectId": sweep.project_id,
                "state": sweep.state,
                "reason": sweep.reason,
                "trials": states,
                "best": best and {"number": best.number, "value": best.value, "params": best.params},
                "url": f"{app_state.settings.public_url}/ui/sweeps/{sweep.id}",
            }
        },
        at=session.scalars(select(now())).one(),
        subjects=(sweep.id, sweep.project_id, owner_of(session, sweep.submitted_by)),
        also={_OF_TRIALS[state] for state in states if state in _OF_TRIALS} if event == "sweep.ended" else (),
    )


def of_missed_time(session: Session, app_state: AppState, schedule: Schedule, refusal: str, missed: datetime) -> Notice:
    """Return the message of a time of a schedule that has no job."""
    name = schedule.spec.name or "schedule"
    return Notice(
        key=f"schedule-{schedule.id}-{iso_time(missed)}",
        event="schedule.missed",
        summary=f"{name} ({schedule.id}) has no job for {iso_time(missed)}: {refusal}",
        data={
            "schedule": {
                "id": schedule.id,
                "name": schedule.spec.name,
                "projectId": schedule.project_id,
                "missed": iso_time(missed),
                "reason": refusal,
                "url": f"{app_state.settings.public_url}/ui/schedules/{schedule.id}",
            }
        },
        at=session.scalars(select(now())).one(),
        subjects=(schedule.id, schedule.project_id, owner_of(session, schedule.submitted_by)),
    )


def of_workers(session: Session, app_state: AppState) -> Iterator[Notice]:
    """Yield a message for each lost worker, each one that the service drained, and each broken GPU; always the same.

    A worker is lost once it is silent for as long as its jobs wait for it, and is not drained.
    """
    lost = now(-app_state.settings.worker.lost_after_seconds)
    lately = now(-app_state.settings.worker.lost_after_seconds - _LATELY_SECONDS)
    current = session.scalars(select(now())).one()
    silent = Worker.seen_at.between(lately, lost) & Worker.drained_at.is_(None)
    of_interest = or_(silent, Worker.drain_reason.is_not(None), Worker.gpu_faults.is_not(None))
    for worker, is_silent in session.execute(select(Worker, silent).where(of_interest)):
        name, events = f"Worker {worker.name} on {worker.host}", []
        if is_silent:
            events.append(("worker.lost", f"has been silent since {iso_time(worker.seen_at)}"))
        if worker.drain_reason is not None:
            events.append(("worker.drained", f"claims no more jobs: {worker.drain_reason}"))
        for gpu, why in (worker.gpu_faults or {}).items():
            events.append(("gpu.drained", f"gives jobs GPU {gpu} no more, which is broken: {why}"))
        for event, what in events:
            yield Notice(
                key=f"worker-{hashlib.sha256(f'{worker.name} {what}'.encode()).hexdigest()}",
                event=event,
                summary=f"{name} {what}",
                data={"worker": {"name": worker.name, "host": worker.host, "seenAt": iso_time(worker.seen_at)}},
                at=current,
                subjects=(),
            )
