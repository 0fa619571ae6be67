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
from core.db.models.credentials import ApiKey
from core.db.models.schedules import Schedule
from core.errors import GradientError, SpecInvalid, StoreUnavailable, Unauthorized
from core.formatting import iso_time
from core.ids import new_id
from core.jobs import lifecycle, projects, schedules, submission
from core.jobs.scheduling import dependencies
from core.security import api_keys, credentials, users
from core.security.encryption import Vault
from service.deps import AppState
from service.schemas.jobs import SubmitJob
from service.schemas.schedules import SubmitSchedule
from service.submission.create import log_submission, prepare, save_logins, validate_stored
from service.submission.insert import InsertedJob, PreparedJob, RequestOrigin, insert
from service.submission.members import refuse_array
from service.submission.validation import DEFAULT_PROJECT

logger = logging.getLogger(__name__)

SCHEDULED_AT = "SCHEDULED_AT"  # variable of a job with the time that it is for, in UTC


def create(
    app_state: AppState, origin: RequestOrigin, request: SubmitSchedule, upload: BinaryIO | None
) -> tuple[str, bool]:
    """Create a schedule. Returns its id, and whether it was created now, not before with its Idempotency-Key.

    `upload`: the archive of its workspace, or None; stored only if the rest is valid.
    """
    valid = _prepare_first(app_state, origin, request, upload).valid
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
        repeated = schedules.find_repeated(session, made)
        if repeated is not None:
            return repeated.id, False
        dependencies.check(session, valid.spec)
        name = request.project or DEFAULT_PROJECT
        made.project_id = request.project_id or projects.get_or_create(session, name, origin.key_id)[0].id
        if valid.git_login:
            made.sealed = credentials.seal_schedule_login(Vault(app_state.settings), made.id, valid.git_login)
        schedules.insert(session, made)
        return made.id, True


def _prepare_first(
    app_state: AppState, origin: RequestOrigin, request: SubmitSchedule, upload: BinaryIO | None
) -> PreparedJob:
    schedules.check(request.cron, request.timezone)
    refuse_array(request)
    given = request.model_dump(by_alias=True, exclude_unset=True, include=set(SubmitJob.model_fields))
    if given.get("after"):
        raise SpecInvalid("The jobs of a schedule start at its times. Leave after out.", field="after")
    if request.registry_username:
        raise SpecInvalid(
            "A schedule stores no password for a registry. Store it for all jobs with `gradient-cli registries set`.",
            field="registryUsername",
        )
    return prepare(app_state, origin, SubmitJob.model_validate(given), upload)


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
    at, next_at = schedules.take(schedule.cron, schedule.timezone, schedule.on_miss, due_at, current)
    refusal = f"Missed: nothing was there to create its job from {iso_time(due_at)} on." if at is None else None
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
        schedules.record_outcome(session, schedule, refusal, at or due_at)
    if inserted is not None:
        log_submission(inserted)
    else:
        logger.warning("schedule_refused", extra={"schedule_id": schedule.id, "why": refusal})
    return True


def trigger(app_state: AppState, schedule_id: str, request_id: str) -> InsertedJob:
    """Create a job of a schedule now, suspended or not; its times stay as they are."""
    with app_state.database.read() as session:
        schedule = schedules.get(session, schedule_id)
        current = session.scalars(select(now())).one()
    prepared = _prepare(app_state, schedule, current)
    prepared = replace(prepared, origin=RequestOrigin(schedule.submitted_by, request_id, None))
    with app_state.database.write() as session:
        schedules.get(session, schedule_id, lock=True)
        inserted = _insert(session, app_state, schedule, prepared)
        schedules.record_outcome(session, schedule, None, None)
    log_submission(inserted)
    return inserted


def _prepare(app_state: AppState, schedule: Schedule, at: datetime) -> PreparedJob:
    """Check the job of a schedule's time. The time is in its Idempotency-Key: no second job can have it."""
    with app_state.database.read() as session:
        _require_valid_key(session, schedule.submitted_by)
        login = credentials.schedule_login(Vault(app_state.settings), schedule)
    spec = schedule.spec
    spec = replace(spec, env_vars=spec.env_vars | {SCHEDULED_AT: iso_time(at)})
    # With a space, which a client's key cannot have.
    origin = RequestOrigin(schedule.submitted_by, f"schedule-{schedule.id}", f"{schedule.id} {iso_time(at)}")
    return PreparedJob(
        origin=origin,
        valid=validate_stored(app_state, f"schedule {schedule.id}", spec, schedule.project_id),
        digest=submission.request_digest(b"schedule", schedule.id.encode()),
        project_id=schedule.project_id,
        schedule_id=schedule.id,
        save_logins=None if login is None else partial(save_logins, app_state, None, login),
    )


def _require_valid_key(session: Session, key_id: str) -> None:
    keys = session.scalars(select(ApiKey).where(ApiKey.id.in_(users.keys_of_same_user(session, key_id))))
    if not any(api_keys.state(key) == "valid" for key in keys):
        raise Unauthorized(
            f"The API key {key_id}, with which the schedule was created, is revoked or has expired. Create the "
            "schedule again with another key."
        )


def _insert(session: Session, app_state: AppState, schedule: Schedule, prepared: PreparedJob) -> InsertedJob:
    """Insert a job of a schedule, which waits for those before it; the caller has locked the schedule's row."""
    before = schedules.unended_jobs(session, schedule.id)
    if before and schedule.on_overlap == "skip":
        raise SpecInvalid(f"Skipped: its job {before[-1].id} has not ended.", field="onOverlap")
    spec = replace(prepared.valid.spec, after=tuple(f"{job.id}:ended" for job in before))
    inserted = insert(session, app_state, replace(prepared, valid=replace(prepared.valid, spec=spec)))
    for job in before if schedule.on_overlap == "replace" and inserted.created else ():
        lifecycle.request_stop(session, job.id)
    return inserted
