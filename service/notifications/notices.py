"""Messages to receivers, with the fields of the API's views of jobs, arrays, sweeps and schedules."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Event, Job, Worker
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.formatting import iso_time
from core.jobs.costs import limits
from core.jobs.reasons import reason_message
from core.jobs.spec.arrays import is_sweep_id
from core.jobs.spec.guards import EVENT as GUARD
from core.jobs.spec.guards import LOG_REASON
from core.jobs.spec.notify import log_expressions
from core.jobs.states import JobState
from core.notifications.deliveries import Notice, read_now
from core.security.users import identity_of
from service.app_state import AppState
from service.presenters.job_list import folded_views
from service.presenters.jobs import STATE_WORDS, job_views
from service.presenters.schedules import schedule_view
from service.presenters.sweeps import sweep_views
from service.schemas.jobs import JobView, TemplateView

_SHOWN = {
    *("id", "name", "project", "project_id", "owner", "state", "reason", "message", "exit_code", "machine_type"),
    *("attempt", "schedule_id", "created_at", "started_at", "finished_at", "duration_seconds", "cost", "tags", "url"),
    *("array_members", "counts", "best", "refusal", "refused_at"),
}
"""Fields of views in messages, which leave the service: neither commands nor variables."""
_FAILED = {"Kept": "job.failed", "Failed": "job.failed", "Error": "job.error"}
_ENDED = {"Stopped": "job.succeeded", **_FAILED, "Cancelled": "job.cancelled"}
_OF_TRIALS = {"complete": "job.succeeded", "failed": "job.failed", "cancelled": "job.cancelled"}
_CEILING_STEPS, _BUDGET_STEPS = (0.5, 0.8), (0.5, 0.8, 1.0)  # parts that are spent
_LATELY_SECONDS = 3600  # a worker that has been silent for longer is no news


def notices_of(session: Session, app_state: AppState, events: Sequence[Event]) -> Iterator[Notice]:
    """Yield the messages of marked events; those of an array's members are one, when all have ended."""
    query = select(Job).where(Job.id.in_({event.job_id for event in events}))
    jobs = {job.id: job for job in session.scalars(query)}
    guarded = {event.job_id for event in events if event.kind == GUARD}
    shown = [job for job in jobs.values() if job.array_id is None or job.id in guarded]
    views = {view.id: view for view in job_views(session, app_state, shown)}
    for event in events:
        has_notice = jobs[event.job_id].array_id is None or event.kind == GUARD
        if has_notice and event.from_state != JobState.KEPT:  # of which it was told when it failed
            yield _of_job(session, event, jobs[event.job_id], views[event.job_id])
    arrays = {job.array_id: job for job in jobs.values() if job.array_id and not is_sweep_id(job.array_id)}
    for array_id, view in zip(arrays, folded_views(session, app_state, list(arrays.values())), strict=True):
        if view.finished_at is not None and array_id is not None:
            yield _of_array(session, app_state, arrays[array_id], array_id, view)


def _of_job(session: Session, event: Event, job: Job, view: JobView) -> Notice:
    if event.kind == "started":
        name, what = "job.running", f"runs on {view.machine_type}"
    elif event.kind in {"kept", "finished"}:
        name, what = _ENDED[view.state], f"{STATE_WORDS[view.state].lower()}: {view.message}"
    elif event.kind == GUARD:
        return _of_firing(session, event, job, view)
    else:
        name, what = "job.waiting", f"waits: {event.detail or event.reason or 'for a machine'}"
    return _notice(session, f"event-{event.id}", name, what, view, job, at=event.at)


def _of_firing(session: Session, event: Event, job: Job, view: JobView) -> Notice:
    """Return the message of what a guard found; those of the members of an array are one for each reason."""
    reason, detail = event.reason or "", event.detail or ""
    key = f"event-{event.id}" if job.array_id is None else f"found-{job.array_id}-{reason}"
    expressions = log_expressions(job.spec.notify) if reason == LOG_REASON else ()
    also = [f"job.log={expression}" for expression in expressions if detail.startswith(f"{expression}: ")]
    notice = _notice(session, key, f"job.{reason}", reason_message(reason, detail), view, job, at=event.at, also=also)
    return replace(notice, subjects=[*notice.subjects, *([job.array_id] if job.array_id else [])])


def _of_array(session: Session, app_state: AppState, job: Job, array_id: str, view: JobView) -> Notice:
    states = view.array_members or {}
    view.id, view.url = array_id, f"{app_state.settings.public_url}/ui/jobs?array={array_id}"
    counts = describe_counts({STATE_WORDS[state]: states[state] for state in states})
    what = f"has ended: {counts} of {sum(states.values()):,} jobs"
    also = {_ENDED[state] for state in states}
    return _notice(session, f"array-{array_id}", "array.ended", what, view, job, at=view.finished_at, also=also)


def describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state.lower()}" for state, count in sorted(counts.items()))


def of_sweep(session: Session, app_state: AppState, sweep: Sweep) -> Notice | None:
    """Return the message of a sweep that has ended or paused; None: trials of an ended one still run."""
    [view] = sweep_views(session, app_state, [sweep])
    if sweep.state != "paused" and view.counts.get("running"):
        return None
    best = "" if view.best is None else f"; best {view.metric} {view.best.value:.6g} in trial {view.best.number}"
    what = f"{sweep.state}: {describe_counts(view.counts) or 'no trials'}{best}. {sweep.reason}"
    event = "sweep.paused" if sweep.state == "paused" else "sweep.ended"
    also = {_OF_TRIALS[state] for state in view.counts if state in _OF_TRIALS} if event == "sweep.ended" else ()
    return _notice(session, f"sweep-{sweep.id}-{sweep.turn}", event, what, view, sweep, also=also)


def of_missed_time(session: Session, app_state: AppState, schedule: Schedule, refusal: str, missed: datetime) -> Notice:
    """Return the message of a time of a schedule that has no job."""
    view, at = schedule_view(session, app_state, schedule), iso_time(missed)
    view.refusal, view.refused_at = refusal, missed
    what = f"has no job for {at}: {refusal}"
    return _notice(session, f"schedule-{schedule.id}-{at}", "schedule.missed", what, view, schedule)


def _notice(
    session: Session,
    key: str,
    event: str,
    what: str,
    view: JobView | TemplateView,
    row: Job | Sweep | Schedule,
    **others: Any,  # noqa: ANN401 - fields of the notice
) -> Notice:
    kind = type(row).__name__.lower() if view.id == row.id else "array"
    return Notice(
        key=key,
        event=event,
        summary=f"{view.name} ({view.id}) {what}",
        data={kind: view.model_dump(mode="json", by_alias=True, include=_SHOWN)},
        subjects=(view.id, row.project_id, identity_of(session, row.submitted_by)),
        **{"at": read_now(session)} | others,
    )


def of_costs(session: Session, app_state: AppState) -> Iterator[Notice]:
    """Yield a message for each ceiling and each budget of which half or more is spent; always the same."""
    used = [(fund, job, part) for fund, job, part in limits.used_ceilings(session) if part >= _CEILING_STEPS[0]]
    views = {view.id: view for view in job_views(session, app_state, [job for _, job, _ in used])}
    for fund, job, part in used:
        percent = _reached(_CEILING_STEPS, part)
        key, what = f"cost-{fund.subject}-{fund.unit}-{percent}", f"has spent {percent} % of {fund.text}"
        notice = _notice(session, key, "job.cost", what, views[job.id], job)
        yield replace(notice, subjects=[*notice.subjects, fund.subject, *([job.array_id] if job.array_id else [])])
    for fund, part in limits.used_budgets(session):
        if part >= _BUDGET_STEPS[0]:
            percent = _reached(_BUDGET_STEPS, part)
            yield Notice(
                key=f"budget-{fund.subject}-{fund.unit}-{fund.amount:g}-{iso_time(fund.since)}-{percent}",
                event=f"budget.{percent}",
                summary=f"{percent} % of {fund.text}, are spent",
                data={
                    "budget": {"kind": fund.kind, "amount": fund.amount, "unit": fund.unit, "used": round(part, 4)}
                    | ({"projectId": fund.subject} if fund.kind == "project" else {})
                },
                at=read_now(session),
                subjects={fund.subject, identity_of(session, fund.subject)},
            )


def _reached(steps: Sequence[float], part: float) -> int:
    return round(100 * max(step for step in steps if part >= step))


def of_workers(session: Session, app_state: AppState) -> Iterator[Notice]:
    """Yield a message for each lost worker, each one that the service drained, and each broken GPU; always the same.

    A worker is lost once it is silent for as long as its jobs wait for it, and is not drained.
    """
    lost = now(-app_state.settings.worker.lost_after_seconds)
    lately = now(-app_state.settings.worker.lost_after_seconds - _LATELY_SECONDS)
    current = read_now(session)
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
