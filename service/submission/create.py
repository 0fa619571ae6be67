"""Submission of a job: check everything, store the workspace, then write the job to the database."""

import json
import logging
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of
from core.catalogue.machine_types import MachineType
from core.db.database import on_commit
from core.db.models.jobs import Job, Project
from core.errors import SpecInvalid, StoreUnavailable, WorkspaceNotFound
from core.jobs import lifecycle, notes, projects, queries, storage_quota
from core.jobs.lifecycle import NewJob
from core.jobs.scheduling.capacity import LiveWorkers, live_workers
from core.jobs.spec.container_options import is_in_workspace
from core.jobs.spec.job_spec import MAX_NAME, JobSpec, check_label, split_login
from core.jobs.spec.ports import check_not_reserved
from core.monitoring import tracing
from core.security import credentials
from core.security.encryption import Vault
from core.storage.archives import ArchiveLimits
from core.system.egress import Egress
from core.system.failpoints import failpoint
from service.deps import AppState
from service.presenters.jobs import machine_type_view, resolved_view, submitted_view
from service.schemas.job_changes import CloneJob
from service.schemas.jobs import DryRun, JobView, SubmitJob
from service.submission.image import choose_image, with_pinned_image

logger = logging.getLogger(__name__)

DEFAULT_PROJECT = "default"

_MAX_IDEMPOTENCY_KEY = 255


@dataclass(frozen=True, slots=True)
class _ValidatedJob:
    """A job that can be run here, except that its workspace is not yet checked."""

    spec: JobSpec
    machine: MachineType
    image: str | None
    git_login: str | None


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The origin of a job.

    Attributes:
        key_id: Id of the client's API key.
        request_id: Id of the request.
        idempotency_key: The client's Idempotency-Key, or None.
    """

    key_id: str
    request_id: str
    idempotency_key: str | None


class Submitted(NamedTuple):
    """A stored job, and whether it was created now, or before under the same Idempotency-Key."""

    job: Job
    view: JobView
    created: bool


def submit(app_state: AppState, origin: RequestOrigin, request: SubmitJob, upload: BinaryIO | None) -> Submitted:
    """Create the job that a client requested.

    Args:
        app_state: The application's state.
        origin: The client and its request.
        request: The job.
        upload: Its workspace's archive, or None; stored only if the rest is valid.

    Raises:
        SpecInvalid: The spec cannot be run here.
        IdempotencyMismatch: The Idempotency-Key was used with another request before.
        LimitReached: Its key or project has too many queued jobs.
    """
    check_idempotency_key(origin.idempotency_key)
    with tracing.span("submit"):
        valid = _validate(app_state, request, uploaded=upload is not None)
        sha256 = _store_workspace(app_state, upload, request.workspace_sha256)
        if sha256 != valid.spec.workspace_sha256:
            valid = replace(valid, spec=replace(valid.spec, workspace_sha256=sha256))
        digest = lifecycle.request_digest(_canonical_request(request), (sha256 or "").encode())
        with app_state.database.write() as session:
            project = _resolve_project(session, request)
            job, created = _insert_job(session, app_state, origin, valid, project, digest)
            if created and request.registry_password:
                credentials.save_job_login(session, Vault(app_state.settings), job.id, request.registry_password)
            if created and valid.git_login:
                credentials.save_git_login(session, Vault(app_state.settings), job.id, valid.git_login)
        _log_submission(job, created=created)
    return _present(app_state, job, project.name, created=created)


def dry_run(app_state: AppState, request: SubmitJob, *, uploaded: bool) -> DryRun:
    """Return the job that `submit` would create, storing nothing.

    Raises:
        SpecInvalid: The spec cannot be run here.
    """
    valid = _validate(app_state, request, uploaded=uploaded)
    _check_workspace_stored(app_state, request.workspace_sha256)
    machine, backend = valid.machine, app_state.backend_for(valid.machine)
    project: dict[str, str | None] = {"id": request.project_id, "name": request.project}
    with app_state.database.read() as session:
        if request.project_id:
            project["name"] = queries.project(session, request.project_id).name
        offered = live_workers(session)
    project["name"] = project["name"] or DEFAULT_PROJECT
    return DryRun(
        job=resolved_view(valid.spec, machine, backend, project, valid.image),
        machine_type=machine_type_view(machine, backend, offered),
        price_per_hour=machine.price_per_hour,
        max_workspace_files=_archive_limits(app_state).max_files,
        notes=_dry_run_notes(machine, backend, offered, uploaded=uploaded)
        + notes.unused_container(backend, valid.spec.container),
    )


def clone(
    app_state: AppState, origin: RequestOrigin, job_id: str, changes: CloneJob | None = None, *, pin_image: bool = False
) -> Submitted:
    """Create a job with the spec, workspace and project of another.

    Args:
        app_state: The application's state.
        origin: The client and its request.
        job_id: The other job.
        changes: Options that differ from it.
        pin_image: Use the exact image digest of the other job, even if its image's name has moved on.

    Raises:
        JobNotFound: There is no job of this id.
        SpecInvalid: A changed option is not valid, or the job cannot be run here.
        WorkspaceNotFound: The upload it ran on is no longer stored.
        MachineTypeUnknown: Its machine type is no longer offered.
        IdempotencyMismatch: The Idempotency-Key was used with another request before.
        LimitReached: Its key or project has too many queued jobs.
    """
    check_idempotency_key(origin.idempotency_key)
    changes = changes or CloneJob()
    with tracing.span("submit"):
        valid = _validate_clone(app_state, job_id, changes, pin_image=pin_image)
        with app_state.database.write() as session:
            cloned = queries.get(session, job_id)
            requested = json.dumps(changes.model_dump(mode="json", exclude_none=True), sort_keys=True).encode()
            digest = lifecycle.request_digest(b"clone", cloned.id.encode(), *([b"pinned"] * pin_image), requested)
            project = queries.project(session, cloned.project_id)
            job, created = _insert_job(session, app_state, origin, valid, project, digest, parent_id=cloned.id)
            if created:
                credentials.copy_git_login(session, Vault(app_state.settings), cloned, job.id, valid.git_login)
        _log_submission(job, created=created)
    return _present(app_state, job, project.name, created=created)


def _validate_clone(app_state: AppState, job_id: str, changes: CloneJob, *, pin_image: bool) -> _ValidatedJob:
    with app_state.database.read() as session:
        cloned = queries.get(session, job_id)
        machine = app_state.catalogue.get(changes.machine_type or cloned.machine_type)
        spec = changes.changed(with_pinned_image(cloned) if pin_image else cloned.spec, machine.name)
        credentials.check_secrets_exist(session, spec, cloned.project_id)
    if spec.registry_username is not None:
        raise SpecInvalid(
            f"Job {job_id} came with a password for its registry, which is not stored for other jobs. Submit it again "
            "with the password, or store it for all jobs with `gradient-cli registries set`.",
            field="registryPassword",
        )
    check_not_reserved(spec.parsed_ports(), app_state.settings.own_ports)
    valid = _validate_spec(app_state, spec, machine, uploaded=False)
    if spec.workspace_sha256 is not None and not app_state.workspaces.mark_used(spec.workspace_sha256):
        raise WorkspaceNotFound(
            f"The workspace that job {job_id} ran on is no longer stored here, so it cannot be cloned. Submit the "
            "folder again with `gradient-cli jobs create`.",
            field="workspaceSha256",
        )
    return valid


def check_idempotency_key(key: str | None) -> None:
    """Validate an Idempotency-Key.

    Raises:
        SpecInvalid: The key is empty, too long, or not only visible ASCII.
    """
    if key is not None and not (
        0 < len(key) <= _MAX_IDEMPOTENCY_KEY and key.isascii() and key.isprintable() and " " not in key
    ):
        raise SpecInvalid(
            f"An Idempotency-Key has 1 to {_MAX_IDEMPOTENCY_KEY} visible ASCII characters; use a random UUID.",
            field="Idempotency-Key",
        )


def check_project_name(name: str) -> str:
    """Validate a project's name and return it.

    Raises:
        SpecInvalid: The name is not valid.
    """
    check_label(name, "project", MAX_NAME)
    return name


def _validate(app_state: AppState, request: SubmitJob, *, uploaded: bool) -> _ValidatedJob:
    machine = app_state.catalogue.get(request.machine_type)
    spec = request.spec(machine.name)
    if spec.workspace is not None and uploaded:
        raise SpecInvalid("Give either a git URL or an uploaded folder, not both.", field="workspace")
    if request.project is not None and request.project_id is not None:
        raise SpecInvalid("Give either project (a name) or projectId, not both.", field="projectId")
    if request.project is not None:
        check_project_name(request.project)
    check_not_reserved(spec.parsed_ports(), app_state.settings.own_ports)
    _check_registry(request)
    valid = _validate_spec(app_state, spec, machine, uploaded=uploaded)
    if request.project_id is not None or spec.secrets():
        with app_state.database.read() as session:
            if request.project_id is not None:
                project_id: str | None = queries.project(session, request.project_id).id
            else:
                project_id = projects.find_id(session, request.project or DEFAULT_PROJECT)
            credentials.check_secrets_exist(session, spec, project_id)
    return valid


def _validate_spec(app_state: AppState, spec: JobSpec, machine: MachineType, *, uploaded: bool) -> _ValidatedJob:
    """Refuse a job that cannot be run here, and separate the login of its git address."""
    spec, git_login = _split_git_login(spec)
    _check_backend_supports(app_state, spec, machine)
    image = choose_image(app_state, spec, machine, uploaded=uploaded)
    _check_egress(app_state, spec, image)
    return _ValidatedJob(spec, machine, image, git_login)


def _split_git_login(spec: JobSpec) -> tuple[JobSpec, str | None]:
    """Split a spec into the spec without the `user:password` of its git address, and that login."""
    if spec.workspace is None:
        return spec, None
    workspace, login = split_login(spec.workspace)
    return (spec, None) if login is None else (replace(spec, workspace=workspace), login)


def _check_egress(app_state: AppState, spec: JobSpec, image: str | None) -> None:
    """Refuse a job that names a git server or a registry to which connections are not allowed.

    Args:
        app_state: The application's state.
        spec: The job.
        image: The image reference that its `container` resolves to.

    Raises:
        EgressRefused: The job names such a server or registry.
    """
    if spec.workspace is None and image is None and spec.registry_target is None:
        return
    egress = Egress(app_state.settings.egress)
    if spec.workspace is not None:
        egress.check_url(spec.workspace.removeprefix("git+"), "workspace")
    if image is not None:
        egress.check_image(image, "container")
    if spec.registry_target is not None:
        egress.check_image(spec.registry_target, "registryTarget")


def _check_backend_supports(app_state: AppState, spec: JobSpec, machine: MachineType) -> None:
    """Refuse a priority over the limit, and options that the machine would ignore."""
    _check_priority(app_state, spec)
    capabilities = capabilities_of(app_state.backend_for(machine))
    if spec.outputs and not capabilities.local_workspace:
        raise SpecInvalid(
            f"A job on {machine.name} works on another machine, whose working directory is not fetched. Leave outputs "
            "out and write to $GRADIENT_ARTIFACTS_DIR.",
            field="outputs",
        )
    if capabilities.containers:
        if spec.python is not None:
            raise SpecInvalid(
                f"{machine.name} runs jobs in containers, whose image has their Python. Leave python out, and name an "
                "image, such as python:3.12-slim.",
                field="python",
            )
        return
    simulated = "Machine types are simulated on this server: jobs run as processes of the server's own user."
    if spec.user is not None:
        raise SpecInvalid(f"{simulated} Leave the user out, or use a server with containers.", field="user")
    if spec.working_dir is not None and not is_in_workspace(spec.working_dir):
        raise SpecInvalid(
            f"{simulated} They have no container; name a folder of the workspace, such as src/train.",
            field="workingDir",
        )


def _check_priority(app_state: AppState, spec: JobSpec) -> None:
    highest = app_state.settings.limits.priority
    if spec.priority > highest:
        raise SpecInvalid(
            f"{spec.priority} is above {highest}, the highest priority here (GRADIENT_LIMITS__PRIORITY).",
            field="priority",
        )


def _check_registry(request: SubmitJob) -> None:
    username, password = request.registry_username, request.registry_password
    if bool(username) != bool(password):
        raise SpecInvalid(
            "A registry login needs both registryUsername and registryPassword; give the other one too.",
            field="registryPassword" if username else "registryUsername",
        )
    if username and password:
        credentials.check_login(username, password, "registryUsername", "registryPassword")


def _archive_limits(app_state: AppState) -> ArchiveLimits:
    api = app_state.settings.api
    return ArchiveLimits(max_upload_bytes=api.max_upload_bytes, max_bytes=api.max_unpacked_bytes)


def _store_workspace(app_state: AppState, upload: BinaryIO | None, expected: str | None) -> str | None:
    if upload is None:
        # Marked as used, so that it is not deleted before the job that refers to it is stored.
        if expected is not None and not app_state.workspaces.mark_used(expected):
            raise _workspace_not_stored()
        return expected
    try:
        return app_state.workspaces.add(upload, _archive_limits(app_state), expected_sha256=expected).sha256
    except OSError as error:
        raise StoreUnavailable(f"The workspace could not be stored: {error.strerror}. Try again later.") from error


def _check_workspace_stored(app_state: AppState, sha256: str | None) -> None:
    if sha256 is not None and not app_state.workspaces.has(sha256):
        raise _workspace_not_stored()


def _workspace_not_stored() -> WorkspaceNotFound:
    return WorkspaceNotFound(
        "No archive with this sha256 is stored here; upload it with the job.", field="workspaceSha256"
    )


def _resolve_project(session: Session, request: SubmitJob) -> Project:
    if request.project_id is not None:
        return queries.project(session, request.project_id)
    return projects.get_or_create(session, request.project or DEFAULT_PROJECT)[0]


def _insert_job(
    session: Session,
    app_state: AppState,
    origin: RequestOrigin,
    valid: _ValidatedJob,
    project: Project,
    digest: str,
    *,
    parent_id: str | None = None,
) -> tuple[Job, bool]:
    submission = NewJob(
        spec=valid.spec,
        machine=valid.machine,
        backend=app_state.backend_for(valid.machine),
        project=project,
        submitted_by=origin.key_id,
        parent_id=parent_id,
        idempotency_key=origin.idempotency_key,
        request_sha256=digest,
        request_id=origin.request_id,
        trace_parent=tracing.trace_parent(),
        image=valid.image,
    )
    job, created = lifecycle.submit(session, submission)
    if created:  # a repeat under the same Idempotency-Key adds no job
        storage_quota.check_quota(session, project, app_state.settings.disk.project_mb)
        app_state.limits.queue.check(session, job)
    on_commit(session, app_state.wake)
    failpoint("submit_before_commit")
    return job, created


def _log_submission(job: Job, *, created: bool) -> None:
    """Write the created job's id to the log and the trace."""
    if created:
        logger.info("job_submitted", extra={"job_id": job.id, "machine_type": job.machine_type})
    tracing.set_attributes({"gradient.job.id": job.id, "gradient.machine_type": job.machine_type})


def _present(app_state: AppState, job: Job, project: str, *, created: bool) -> Submitted:
    failpoint("submit_after_commit")
    return Submitted(job, submitted_view(app_state, job, project), created)


def _canonical_request(request: SubmitJob) -> bytes:
    # Without the archive's sha256: a repeat may send it in place of the archive, which is the same request.
    # Without a password: the stored hash of a request must not help to guess it.
    fields = request.model_dump(mode="json", exclude_none=True, exclude={"workspace_sha256", "registry_password"})
    if request.workspace:
        fields["workspace"] = split_login(request.workspace)[0]
    return json.dumps(fields, sort_keys=True).encode()


def _dry_run_notes(machine: MachineType, backend: str, offered: LiveWorkers, *, uploaded: bool) -> list[str]:
    notes = []
    if backend != machine.backend:
        notes.append("Simulated: the job runs on this server's own CPU, at that CPU's speed.")
    if not offered.available(machine.name, backend):
        notes.append("No running worker offers this machine type now; the job would wait.")
    if uploaded:
        notes.append("The uploaded workspace was not validated.")
    return notes
