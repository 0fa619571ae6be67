"""Schedules: their creation, and the creation of their jobs when it is time."""

import json
import logging
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import BinaryIO

from sqlalchemy import select
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.schedules import Schedule
from core.errors import GradientError, SpecInvalid, StoreUnavailable
from core.formatting import iso_time
from core.ids import new_id
from core.jobs import lifecycle, submission
from core.jobs.spec.params import SCHEDULED_AT
from core.jobs.templates import schedules
from core.notifications import deliveries
from service.app_state import AppState
from service.auth.authentication import sees_projects
from service.notifications.notices import of_missed_time
from service.schemas.schedules import SubmitSchedule
from service.submission.create import log_submission
from service.submission.insert import insert
from service.submission.stages import InsertedJob, PreparedJob, RequestOrigin
from service.submission.templates import insert_new, prepare_first, prepare_next

logger = logging.getLogger(__name__)

_SKIPPED = "Skipped: "  # what the refusal of a time begins with that has no job because of `on_overlap`


def create(
    app_state: AppState, origin: RequestOrigin, request: SubmitSchedule, upload: BinaryIO | None
) -> tuple[str, bool]:
    """Create a schedule. Returns its id, and whether it was created now, not before with its Idempotency-Key.

    `upload`: the archive of its workspace, or None; stored only if the rest is valid.
    """
    schedules.check(request.cron, request.timezone)
    valid = prepare_first(app_state, origin, request, upload, "schedule")
    options = request.model_dump(include={"cron", "timezone", "on_miss", "on_overlap"})
    spec = valid.spec.to_json()
    identity = json.dumps([options, request.project, request.project_id, spec], sort_keys=True)
    with app_state.database.write() as session:
        current = session.scalars(select(now())).one()
        made = Schedule(
            id=new_id("sc"),
            submitted_by=origin.key_id,
            idempotency_key=origin.idempotency_key,
            request_sha256=submission.request_digest(b"schedule", identity.encode()),
            **options,
            spec_json=spec,
            created_at=current,
            next_at=schedules.first_after(request.cron, request.timezone, current),
        )
        return insert_new(session, app_state, request, made, valid)


def run_due(app_state: AppState, current: datetime | None = None) -> int:
    """Create the job of the next time of each schedule that is due; return how many have moved on.

    Safe in any number of processes at once. `current`: the time; None: that of the database.
    """
    with app_state.database.read() as session:
        current = current or session.scalars(select(now())).one()
        due = schedules.due(session, current)
    return sum(_run_next(app_state, schedule, current) for schedule in due)


def _run_next(app_state: AppState, schedule: Schedule, current: datetime) -> bool:
    """Take the next time of a schedule; False if another process took it, or if the next call has to try again."""
    try:
        return _take(app_state, schedule, current)
    except Exception:  # one schedule must not stop the others
        logger.exception("schedule_failed", extra={"schedule_id": schedule.id})
        return False


def _take(app_state: AppState, schedule: Schedule, current: datetime) -> bool:
    due_at = schedule.next_at or current
    at, next_at, refusal = None, None, None
    try:
        at, next_at = schedules.take(schedule.cron, schedule.timezone, schedule.on_miss, due_at, current)
        if at is None:
            refusal = f"Missed: from {iso_time(due_at)} on, no API was running to create a job."
    except SpecInvalid as error:
        refusal = f"Suspended: {error.message}"
    prepared: PreparedJob | None = None
    if at is not None:
        try:
            prepared = _prepare(app_state, schedule, at)
        except StoreUnavailable:
            raise
        except GradientError as error:
            refusal = error.message
    inserted: InsertedJob | None = None
    with app_state.database.write() as session:
        if not schedules.move_on(session, schedule, next_at):
            return False
        if prepared is not None:
            try:
                with session.begin_nested():
                    inserted = _insert(session, app_state, schedule, prepared)
            except (GradientError, DataError) as error:
                refusal = error.message if isinstance(error, GradientError) else str(error.orig)
        _record(session, app_state, schedule, refusal, at or due_at)
    if inserted is not None:
        log_submission(inserted)
    else:
        logger.warning("schedule_refused", extra={"schedule_id": schedule.id, "why": refusal})
    return True


def _record(session: Session, app_state: AppState, schedule: Schedule, refusal: str | None, at: datetime) -> None:
    schedules.record_outcome(session, schedule, refusal, at)
    if refusal is not None and not refusal.startswith(_SKIPPED):
        sees = partial(sees_projects, app_state, session)
        deliveries.send(session, of_missed_time(session, app_state, schedule, refusal, at), sees)


def trigger(app_state: AppState, schedule_id: str, request_id: str) -> InsertedJob:
    """Create a job of a schedule now, suspended or not; its times stay as they are."""
    with app_state.database.read() as session:
        schedule = schedules.get(session, schedule_id)
        current = session.scalars(select(now())).one()
    prepared = _prepare(app_state, schedule, current)
    prepared = replace(prepared, request_id=request_id, idempotency_key=None)
    with app_state.database.write() as session:
        schedules.get(session, schedule_id, lock=True)
        inserted = _insert(session, app_state, schedule, prepared)
        schedules.record_outcome(session, schedule, None, None)
    log_submission(inserted)
    return inserted


def _prepare(app_state: AppState, schedule: Schedule, at: datetime) -> PreparedJob:
    """Check the job of a schedule's time. The time is in its Idempotency-Key: no second job can have it."""
    spec = schedule.spec
    spec = replace(spec, env_vars=spec.env_vars | {SCHEDULED_AT: iso_time(at)})
    return prepare_next(app_state, schedule, spec, schedule_id=schedule.id, idempotency_key=iso_time(at))


def _insert(session: Session, app_state: AppState, schedule: Schedule, prepared: PreparedJob) -> InsertedJob:
    """Insert a job of a schedule, which waits for those before it; the caller has locked the schedule's row."""
    before = schedules.unended_jobs(session, schedule.id)
    if before and schedule.on_overlap == "skip":
        raise SpecInvalid(f"{_SKIPPED}its job {before[-1].id} has not ended.", field="onOverlap")
    spec = replace(prepared.spec, after=tuple(f"{job.id}:ended" for job in before))
    inserted = insert(session, app_state, replace(prepared, spec=spec))
    for job in before if schedule.on_overlap == "replace" and inserted.created else ():
        lifecycle.request_stop(session, job.id)
    return inserted
