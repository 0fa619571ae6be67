"""Submission of a job: check everything, store the workspace, then write the job to the database."""

import json
import logging
from dataclasses import dataclass, replace
from typing import BinaryIO

from sqlalchemy.orm import Session

from core import credentials, tracing
from core.archives import ArchiveLimits
from core.backends import capabilities_of
from core.db import on_commit
from core.errors import SpecInvalid, StoreUnavailable, WorkspaceNotFound
from core.failpoints import failpoint
from core.jobs import lifecycle, projects, queries, stored
from core.jobs.lifecycle import Submission
from core.jobs.models import Job, Project
from core.jobs.offers import Offers, offers
from core.jobs.options import is_in_workspace
from core.jobs.ports import refuse_taken
from core.jobs.spec import MAX_NAME, JobSpec, check_label, split_login
from core.machines import MachineType
from core.vault import Vault
from service.addresses import check_egress, without_login
from service.deps import OpenStores
from service.image_choice import image_of, pinned_spec
from service.uploads import Body
from service.views import machine_type_view, resolved_view, submitted_view
from service.wire import DryRun, JobView, SubmitJob, parse

logger = logging.getLogger(__name__)

DEFAULT_PROJECT = "default"

_MAX_KEY = 255


@dataclass(frozen=True, slots=True)
class _Checked:
    """A valid request, except that its workspace is not yet checked."""

    asked: SubmitJob
    spec: JobSpec
    machine: MachineType
    image: str | None
    git_login: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a job.

    Attributes:
        key_id: Id of the client's API key.
        request_id: Id of the request.
        idempotency_key: The client's Idempotency-Key, or None.
    """

    key_id: str
    request_id: str
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class _Written:
    """A stored job with its project's name; created now, or before under the same Idempotency-Key."""

    job: Job
    project: str
    made: bool


def submit(stores: OpenStores, origin: Origin, body: Body) -> tuple[JobView, bool]:
    """Create the job that a client requested.

    Args:
        stores: The open stores.
        origin: The client and its request.
        body: The request's body; its workspace is stored only if the rest is valid.

    Returns:
        The job, and whether it was created now.

    Raises:
        RequestValidationError: The spec has the wrong shape.
        SpecInvalid: The spec cannot be run here.
        IdempotencyMismatch: The Idempotency-Key was used with another request before.
        LimitReached: Its key or project has too many queued jobs.
    """
    check_key(origin.idempotency_key)
    with tracing.span("submit"):
        written = _submit(stores, origin, body)
    return _answer(stores, written)


def _submit(stores: OpenStores, origin: Origin, body: Body) -> _Written:
    checked = _check(stores, body)
    sha256 = _store(stores, body.workspace, checked.asked.workspace_sha256)
    spec = replace(checked.spec, workspace_sha256=sha256)
    digest = lifecycle.request_digest(_canonical(checked.asked), (sha256 or "").encode())
    with stores.database.write() as session:
        submission = Submission(
            spec=spec,
            machine=checked.machine,
            backend=stores.backend_for(checked.machine),
            project=_project(session, checked.asked),
            submitted_by=origin.key_id,
            idempotency_key=origin.idempotency_key,
            request_sha256=digest,
            request_id=origin.request_id,
            trace_parent=tracing.trace_parent(),
            image=checked.image,
        )
        written = _write(session, stores, submission)
        job_id = written.job.id
        if written.made and checked.asked.registry_password:
            credentials.keep_login(session, Vault(stores.settings), job_id, checked.asked.registry_password)
        if written.made and checked.git_login:
            credentials.keep_git_login(session, Vault(stores.settings), job_id, checked.git_login)
    return _noted(written)


def dry_run(stores: OpenStores, body: Body) -> DryRun:
    """Return the job that `submit` would create, storing nothing.

    Raises:
        RequestValidationError: The spec has the wrong shape.
        SpecInvalid: The spec cannot be run here.
    """
    checked = _check(stores, body)
    _check_stored(stores, checked.asked.workspace_sha256)
    machine, backend = checked.machine, stores.backend_for(checked.machine)
    project: dict[str, str | None] = {"id": checked.asked.project_id, "name": checked.asked.project}
    with stores.database.read() as session:
        if checked.asked.project_id:
            project["name"] = queries.project(session, checked.asked.project_id).name
        offered = offers(session)
    project["name"] = project["name"] or DEFAULT_PROJECT
    spec = replace(checked.spec, workspace_sha256=checked.asked.workspace_sha256)
    return DryRun(
        job=resolved_view(spec, machine, backend, project, checked.image),
        machine_type=machine_type_view(machine, backend, offered),
        price_per_hour=machine.price_per_hour,
        notes=_notes(machine, backend, offered, uploaded=body.workspace is not None),
    )


def clone(stores: OpenStores, origin: Origin, job_id: str, *, pin_image: bool = False) -> tuple[JobView, bool]:
    """Create a job with the spec, workspace and project of another.

    Args:
        stores: The open stores.
        origin: The client and its request.
        job_id: The other job.
        pin_image: Use the exact image digest of the other job, even if its image's name has moved on.

    Returns:
        The new job, and whether it was created now.

    Raises:
        JobNotFound: There is no job of this id.
        WorkspaceNotFound: The upload it ran on is no longer stored.
        MachineTypeUnknown: Its machine type is no longer offered.
        IdempotencyMismatch: The Idempotency-Key was used with another request before.
        LimitReached: Its key or project has too many queued jobs.
    """
    check_key(origin.idempotency_key)
    with tracing.span("submit"):
        written = _clone(stores, origin, job_id, pin_image=pin_image)
    return _answer(stores, written)


def _clone(stores: OpenStores, origin: Origin, job_id: str, *, pin_image: bool) -> _Written:
    with stores.database.read() as session:
        cloned = queries.get(session, job_id)
        spec, git_login = without_login(pinned_spec(cloned) if pin_image else cloned.spec)
        credentials.check_named(session, spec, cloned.project_id)
    if spec.registry_username is not None:
        raise SpecInvalid(
            f"Job {job_id} came with a password for its registry, which is not kept for another job. Submit it again "
            "with the password, or store it for all jobs with `gradient-cli registries set`.",
            field="registryPassword",
        )
    machine = stores.catalogue.get(spec.machine_type)
    _check_can_be_run(stores, spec, machine)
    image = image_of(stores, spec, machine, uploaded=spec.workspace_sha256 is not None)
    check_egress(stores, spec, image)
    if spec.workspace_sha256 is not None and not stores.workspaces.use(spec.workspace_sha256):
        raise WorkspaceNotFound(
            f"The workspace that job {job_id} ran on is no longer stored here, so it cannot be cloned. Submit the "
            "folder again with `gradient-cli jobs create`.",
            field="workspaceSha256",
        )
    with stores.database.write() as session:
        original = queries.get(session, job_id)
        submission = Submission(
            spec=spec,
            machine=machine,
            backend=stores.backend_for(machine),
            project=queries.project(session, original.project_id),
            submitted_by=origin.key_id,
            parent_id=original.id,
            idempotency_key=origin.idempotency_key,
            request_sha256=lifecycle.request_digest(b"clone", original.id.encode(), *([b"pinned"] * pin_image)),
            request_id=origin.request_id,
            trace_parent=tracing.trace_parent(),
            image=image,
        )
        written = _write(session, stores, submission)
        if written.made:
            credentials.copy_git_login(session, Vault(stores.settings), original, written.job.id, git_login)
    return _noted(written)


def check_key(key: str | None) -> None:
    """Validate an Idempotency-Key.

    Raises:
        SpecInvalid: The key is empty, too long, or not only visible ASCII.
    """
    if key is not None and not (0 < len(key) <= _MAX_KEY and key.isascii() and key.isprintable() and " " not in key):
        raise SpecInvalid(
            f"An Idempotency-Key has 1 to {_MAX_KEY} visible ASCII characters; a random UUID is a good one.",
            field="Idempotency-Key",
        )


def check_project_name(name: str) -> str:
    """Validate a project's name and return it.

    Raises:
        SpecInvalid: The name is not valid.
    """
    check_label(name, "project", MAX_NAME)
    return name


def _check(stores: OpenStores, body: Body) -> _Checked:
    asked = parse(SubmitJob, body.spec)
    machine = stores.catalogue.get(asked.machine_type)
    spec, git_login = without_login(replace(asked.spec(None), machine_type=machine.name))
    if spec.workspace is not None and (body.workspace is not None or asked.workspace_sha256 is not None):
        raise SpecInvalid("Give either a git URL or an uploaded folder, not both.", field="workspace")
    if asked.project is not None and asked.project_id is not None:
        raise SpecInvalid("Give either project (a name) or projectId, not both.", field="projectId")
    if asked.project is not None:
        check_project_name(asked.project)
    refuse_taken(spec.asked_ports(), stores.settings.own_ports)
    _check_can_be_run(stores, spec, machine)
    if asked.project_id is not None:
        with stores.database.read() as session:
            queries.project(session, asked.project_id)
    if spec.secrets():
        with stores.database.read() as session:
            project_id = asked.project_id or projects.known_id(session, asked.project or DEFAULT_PROJECT)
            credentials.check_named(session, spec, project_id)
    _check_registry(asked)
    uploaded = body.workspace is not None or asked.workspace_sha256 is not None
    image = image_of(stores, spec, machine, uploaded=uploaded)
    check_egress(stores, spec, image)
    return _Checked(asked, spec, machine, image, git_login)


def _check_can_be_run(stores: OpenStores, spec: JobSpec, machine: MachineType) -> None:
    """Refuse a priority over the limit, and options that a simulated machine would ignore."""
    _check_priority(stores, spec)
    if capabilities_of(stores.backend_for(machine)).containers:
        return
    simulated = "Machine types are simulated on this server: a job is a process of the server's own user there."
    if spec.user is not None:
        raise SpecInvalid(f"{simulated} Leave the user out, or use a server with containers.", field="user")
    if spec.working_dir is not None and not is_in_workspace(spec.working_dir):
        raise SpecInvalid(
            f"{simulated} It has no folders of a container's; name one of the workspace, such as src/train.",
            field="workingDir",
        )


def _check_priority(stores: OpenStores, spec: JobSpec) -> None:
    highest = stores.settings.limits.priority
    if spec.priority > highest:
        raise SpecInvalid(
            f"{spec.priority} is above {highest}, the highest priority here (GRADIENT_LIMITS__PRIORITY).",
            field="priority",
        )


def _check_registry(asked: SubmitJob) -> None:
    username, password = asked.registry_username, asked.registry_password
    if bool(username) != bool(password):
        raise SpecInvalid(
            "Signing in to a registry takes both registryUsername and registryPassword; give the other one too.",
            field="registryPassword" if username else "registryUsername",
        )
    if username and password:
        credentials.check_login(username, password, "registryUsername", "registryPassword")


def _store(stores: OpenStores, upload: BinaryIO | None, expected: str | None) -> str | None:
    if upload is None:
        # Marked as used, so that it is not deleted before the job that refers to it is stored.
        if expected is not None and not stores.workspaces.use(expected):
            raise _not_stored()
        return expected
    api = stores.settings.api
    limits = ArchiveLimits(max_upload_bytes=api.max_upload_bytes, max_bytes=api.max_unpacked_bytes)
    try:
        return stores.workspaces.add(upload, limits, expected_sha256=expected).sha256
    except OSError as error:
        raise StoreUnavailable(f"The workspace could not be stored: {error.strerror}. Try again later.") from error


def _check_stored(stores: OpenStores, sha256: str | None) -> None:
    if sha256 is not None and not stores.workspaces.has(sha256):
        raise _not_stored()


def _not_stored() -> WorkspaceNotFound:
    return WorkspaceNotFound("No archive with this sha256 is stored here; send it along.", field="workspaceSha256")


def _project(session: Session, asked: SubmitJob) -> Project:
    if asked.project_id is not None:
        return queries.project(session, asked.project_id)
    return lifecycle.ensure_project(session, asked.project or DEFAULT_PROJECT)[0]


def _write(session: Session, stores: OpenStores, submission: Submission) -> _Written:
    job, made = lifecycle.submit(session, submission)
    if made:  # an earlier submission stays accepted
        stored.require_room(session, submission.project, stores.settings.disk.project_mb)
    if made:  # a repeat under the same Idempotency-Key adds no job
        stores.limits.queue.check(session, job)
    on_commit(session, stores.wake)
    failpoint("submit_before_commit")
    return _Written(job, submission.project.name, made)


def _noted(written: _Written) -> _Written:
    """Write the created job's id to the log and the trace."""
    job = written.job
    if written.made:
        logger.info("job_submitted", extra={"job_id": job.id, "machine_type": job.machine_type})
    tracing.note({"gradient.job.id": job.id, "gradient.machine_type": job.machine_type})
    return written


def _answer(stores: OpenStores, written: _Written) -> tuple[JobView, bool]:
    failpoint("submit_after_commit")
    return submitted_view(stores, written.job, written.project), written.made


def _canonical(asked: SubmitJob) -> bytes:
    # Without the archive's sha256: a repeat may send it in place of the archive, which is the same request.
    # Without a password: the stored hash of a request must not help to guess it.
    fields = asked.model_dump(mode="json", exclude_none=True, exclude={"workspace_sha256", "registry_password"})
    if asked.workspace:
        fields["workspace"] = split_login(asked.workspace)[0]
    return json.dumps(fields, sort_keys=True).encode()


def _notes(machine: MachineType, backend: str, offered: Offers, *, uploaded: bool) -> list[str]:
    notes = []
    if backend != machine.backend:
        notes.append("Simulated: the job runs on this server's own CPU, at that CPU's speed.")
    if not offered.available(machine.name, backend):
        notes.append("No running worker offers this machine type now; the job would wait.")
    if uploaded:
        notes.append("The uploaded workspace was not looked at.")
    return notes
