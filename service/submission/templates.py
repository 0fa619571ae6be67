"""Schedules and sweeps, from which jobs are created: their insertion, and the check of each of their jobs."""

from functools import partial
from typing import Any, BinaryIO, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.credentials import ApiKey
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.errors import SpecInvalid, Unauthorized
from core.jobs import submission
from core.jobs.scheduling import dependencies
from core.jobs.spec.job_spec import JobSpec
from core.jobs.templates import templates
from core.notifications import receivers
from core.security import api_keys, credentials, users
from core.security.encryption import Vault
from service.app_state import AppState
from service.auth.authentication import viewer_of
from service.schemas.jobs import SubmitJob
from service.submission.create import check_and_store, save_logins, validate_stored
from service.submission.insert import find_project, prepared_job
from service.submission.members import refuse_array
from service.submission.stages import PreparedJob, RequestOrigin, ValidatedJob

T = TypeVar("T", Schedule, Sweep)


def prepare_first(
    app_state: AppState, origin: RequestOrigin, request: SubmitJob, upload: BinaryIO | None, noun: str
) -> ValidatedJob:
    """Check the job of a new schedule or sweep as that of a submission, and store its workspace."""
    valid = check_and_store(app_state, origin, job_of(request, noun), upload)
    app_state.keys.rights(origin.key_id).check_machine_type(valid.machine.name)
    return valid


def job_of(request: SubmitJob, noun: str) -> SubmitJob:
    """Return the request of each job of a new schedule or sweep."""
    refuse_array(request)
    given = request.model_dump(by_alias=True, exclude_unset=True, include=set(SubmitJob.model_fields))
    if given.get("after"):
        raise SpecInvalid(f"The {noun} decides when its jobs start. Leave after out.", field="after")
    if request.registry_username:
        raise SpecInvalid(
            f"A {noun} cannot store a registry password. Store it for all jobs with `gradient-cli registries set`.",
            field="registryUsername",
        )
    return SubmitJob.model_validate(given)


def insert_new(
    session: Session, app_state: AppState, request: SubmitJob, new: T, valid: ValidatedJob | None
) -> tuple[str, bool]:
    """Insert a schedule or a sweep. Returns its id, and whether it was created now, not before with its key."""
    repeated = templates.find_repeated(session, new)
    if repeated is not None:
        return repeated.id, False
    if valid is not None:
        dependencies.check(session, valid.spec)
    viewer = viewer_of(app_state, new.submitted_by)
    new.project_id = find_project(session, viewer, request.project_id, request.project)[0].id
    if valid is not None and valid.git_login:
        new.sealed = credentials.seal_template_login(Vault(app_state.settings), new.id, valid.git_login)
    templates.insert(session, new)
    if valid is not None:
        receivers.follow(session, valid.spec.notify, type(new).__name__.lower(), new.id)
    return new.id, True


def prepare_next(app_state: AppState, template: T, spec: JobSpec, **others: Any) -> PreparedJob:  # noqa: ANN401 - fields
    """Check a job of a schedule or a sweep.

    `others`: fields of `PreparedJob`. A job with an Idempotency-Key has one with a space, which a client's cannot have.
    """
    noun = type(template).__name__.lower()
    with app_state.database.read() as session:
        _require_valid_key(session, template.submitted_by, noun)
        login = credentials.template_login(Vault(app_state.settings), template)
    key = others.pop("idempotency_key")
    return prepared_job(
        app_state,
        RequestOrigin(template.submitted_by, f"{noun}-{template.id}", f"{template.id} {key}"),
        validate_stored(app_state, f"{noun} {template.id}", spec, template.project_id),
        request_sha256=submission.request_digest(noun.encode(), template.id.encode()),
        project_id=template.project_id,
        save_logins=None if login is None else partial(save_logins, app_state, None, login),
        **others,
    )


def _require_valid_key(session: Session, key_id: str, noun: str) -> None:
    keys = session.scalars(select(ApiKey).where(ApiKey.id.in_(users.keys_of_same_user(session, key_id))))
    if not any(api_keys.state(key) == "valid" for key in keys):
        raise Unauthorized(
            f"The API key {key_id} that created the {noun} is revoked or has expired. Create the {noun} again with "
            "another key."
        )
