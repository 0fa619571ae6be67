"""Submission of a job: check everything, store the workspace, then write the job to the database."""

import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of, runs_containers
from core.catalogue.default_packages import locked_versions
from core.db.models.jobs import Job
from core.errors import SpecInvalid, WorkspaceNotFound
from core.ids import new_id
from core.jobs import queries, submission
from core.jobs.costs import budgets
from core.jobs.reasons import reason_message
from core.jobs.scheduling import dependencies
from core.jobs.scheduling.capacity import (
    LiveWorkers,
    explain_too_large,
    explain_too_many_nodes,
    fits,
    live_workers,
)
from core.jobs.scheduling.wait_status import prospective_waits
from core.jobs.spec.arrays import ArrayMember, array_name, fixed_by_value
from core.jobs.spec.image_options import quoted
from core.jobs.spec.job_spec import JobSpec, hide_password, split_login
from core.jobs.spec.ports import check_not_reserved
from core.monitoring import tracing
from core.notifications import receivers
from core.security import credentials, users
from core.security.encryption import Vault
from core.settings import Settings
from core.system.failpoints import failpoint
from service.app_state import AppState
from service.auth.authentication import viewer_of
from service.auth.ownership import changeable
from service.presenters.jobs import machine_type_view, resolved_view, submitted_view, would_start
from service.schemas.job_changes import CloneJob
from service.schemas.jobs import DryRun, JobView, SubmitJob
from service.submission.image import with_pinned_image
from service.submission.image_check import plan_check
from service.submission.insert import find_project, insert, prepared_job
from service.submission.members import check_nodes, cloned_members, new_members
from service.submission.stages import InsertedJob, PreparedJob, RequestOrigin, ValidatedJob
from service.submission.validation import check_idempotency_key, validate, validate_spec
from service.submission.withheld import Withheld, withheld_from
from service.submission.workspace import (
    check_stored,
    store_workspace,
    with_workspace,
    workspace_limits,
)

logger = logging.getLogger(__name__)

# Without the workspace's sha256: a repeat may send it in place of the archive, which is the same request.
# Without a password: the stored hash of a request must not help to guess it.
_NOT_IN_DIGEST = {"workspace_sha256", "registry_password", "idempotency_key", "wait_anyway"}

_PUBLIC = "https://pypi.org/simple"
_DEFAULT_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_MORE = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


def is_installed(settings: Settings, project_id: str, digest: str) -> bool | None:
    """Return whether a worker of this host has made the environment; None: environments are made on other hosts."""
    root = settings.root / "environments"
    if not root.is_dir():
        return None
    for lock in (root / project_id).glob("*.lock"):
        with suppress(OSError, ValueError):
            if lock.with_suffix("").is_dir() and json.loads(lock.read_bytes()).get("declared") == digest:
                return True
    return False


def default_packages(settings: Settings) -> list[str]:
    default = settings.environments.default
    return default if isinstance(default, list) else list(locked_versions())


def package_sources() -> list[str]:
    """Return the indexes and folders from which a worker with the environment of this process installs packages."""
    first = next((os.environ[name] for name in _DEFAULT_INDEX if os.environ.get(name)), _PUBLIC)
    more = [source for name in _MORE for source in re.split(r"[\s,]+", os.environ.get(name, "")) if source]
    named = (source.partition("=")[2] if re.match(r"[\w-]+=", source) else source for source in (first, *more))
    return [source if Path(source).is_absolute() else hide_password(source) for source in named]


def submit(
    app_state: AppState,
    origin: RequestOrigin,
    request: SubmitJob,
    upload: BinaryIO | None,  # its workspace's archive, or None; stored only if the rest is valid
    *,
    parent_id: str | None = None,
    withheld: Sequence[str] = (),  # what it does not get from that job, as sentences
) -> InsertedJob:
    """Create the job that a client requested.

    `parent_id`: id of the job that it is a changed clone of; if both have the same git address and owner, it gets its
    login.
    """
    with tracing.span("submit"):
        prepared = prepare(app_state, origin, request, upload, parent_id=parent_id, withheld=withheld)
        return _insert(app_state, prepared)


def _insert(app_state: AppState, prepared: PreparedJob) -> InsertedJob:
    def commit(jobs: Sequence[PreparedJob]) -> list[InsertedJob]:
        with app_state.database.write() as session:
            return [insert(session, app_state, job) for job in jobs]

    if prepared.members:
        [inserted] = commit([prepared])
    else:
        inserted = app_state.submissions.insert(prepared, commit)
    log_submission(inserted)
    return inserted


def prepare(
    app_state: AppState,
    origin: RequestOrigin,
    request: SubmitJob,
    upload: BinaryIO | None = None,
    *,
    parent_id: str | None = None,
    withheld: Sequence[str] = (),
) -> PreparedJob:
    """Check a job that a client requested, and store its workspace; the arguments and errors are those of `submit`."""
    valid = check_and_store(app_state, origin, request, upload)
    digest = submission.request_digest(_canonical_request(request), (valid.spec.workspace_sha256 or "").encode())
    has_logins = request.registry_password or valid.git_login or parent_id is not None
    return prepared_job(
        app_state,
        origin,
        valid,
        request_sha256=None if origin.idempotency_key is None else digest,
        project_id=request.project_id,
        project_name=request.project,
        parent_id=parent_id,
        save_logins=partial(save_logins, app_state, request.registry_password, valid.git_login) if has_logins else None,
        notes=(*withheld, *valid.notes),
        members=new_members(request, valid),
    )


def check_and_store(
    app_state: AppState, origin: RequestOrigin, request: SubmitJob, upload: BinaryIO | None
) -> ValidatedJob:
    check_idempotency_key(origin.idempotency_key)
    valid = validate(app_state, request, uploaded=upload is not None, may_ignore_container=origin.may_ignore_container)
    for name, given, rate in (
        ("maxCost", valid.spec.max_cost, valid.machine.price_per_hour),
        ("maxGpuHours", valid.spec.max_gpu_hours, valid.machine.gpus),
    ):
        if given is not None and not rate:
            what = "no price" if name == "maxCost" else "no GPU"
            raise SpecInvalid(
                f"{valid.machine.name} has {what}: it never ends a job. Set timeLimit instead.", field=name
            )
    _check_fits(app_state, valid, request)
    workspace = store_workspace(app_state, origin.key_id, upload, request.workspace_sha256)
    return replace(valid, spec=with_workspace(valid.spec, workspace))


def save_logins(
    app_state: AppState, registry_password: str | None, git_login: str | None, session: Session, job: Job
) -> None:
    """Store the logins of a job: for its registry, and for its git address or that of the job it is a clone of."""
    vault = Vault(app_state.settings)
    if registry_password:
        credentials.save_job_login(session, vault, job.id, registry_password)
    original = None if job.parent_id is None else queries.get(session, job.parent_id)
    if original is not None and original.spec.workspace == job.spec.workspace and not git_login:
        owned = changeable(session, app_state, job.submitted_by, [(original.submitted_by, original.project_id)])
        git_login = credentials.git_login(session, vault, original) if owned else None
    if git_login:
        credentials.save_git_login(session, vault, job.id, git_login)


def dry_run(
    app_state: AppState, key_id: str, request: SubmitJob, *, uploaded: bool, requirements: str | None = None
) -> DryRun:
    """Return the job that `submit` would create, storing nothing; `requirements` is the digest of what it declares."""
    valid = validate(app_state, request, uploaded=uploaded)
    app_state.keys.rights(key_id).check_machine_type(valid.machine.name)
    members = new_members(request, valid)
    _check_fits(app_state, valid, request)
    check_stored(app_state, key_id, request.workspace_sha256)
    machine, backend = valid.machine, app_state.backend_for(valid.machine)
    follows = bool(valid.spec.after or valid.spec.inputs)
    with app_state.database.read() as session:
        dependencies.check(session, valid.spec, lock=False)
        project = find_project(
            session, viewer_of(app_state, key_id), request.project_id, request.project, create=False
        )[0]
        job = _prospective_job(valid, backend, project.id, request.nodes if members else None)
        job.submitted_by, job.user_id = key_id, users.identity_of(session, key_id)
        budgets.check(session, job, len(members) if request.nodes else 1)
        offered, waits = live_workers(session), prospective_waits(session, [job])[job.id]
        check_image = plan_check(session, app_state.settings, valid, job, request)
    return DryRun(
        job=resolved_view(valid.spec, machine, backend, {"id": request.project_id, "name": project.name}, valid.image),
        machine_type=machine_type_view(machine, backend, offered),
        price_per_hour=(valid.spec.nodes or 1) * machine.price_per_hour,
        max_cost=_max_cost(valid),
        queue_position=waits.position,
        wait_reason=waits.reason,
        wait_message=reason_message(waits.reason, waits.detail),
        estimated_start_at=None if follows else waits.starts_at,
        would_start=None if follows else would_start(waits),
        package_sources=package_sources(),
        default_packages=default_packages(app_state.settings),
        requirements_installed=is_installed(app_state.settings, project.id, requirements) if requirements else None,
        image_check=check_image(),
        max_workspace_files=workspace_limits(app_state).max_files,
        notes=_dry_run_notes(valid, job, offered, len(members), uploaded=uploaded),
    )


def clone(
    app_state: AppState,
    origin: RequestOrigin,
    job_id: str,  # id of a job, or of an array
    changes: CloneJob | None = None,
    *,
    pin_image: bool = False,
    only_failed: bool = False,
) -> InsertedJob:
    """Create a job with the spec, workspace and project of another; or an array with the members of another.

    `pin_image`: use the exact image digest of the other job, even if its image's name has moved on. `only_failed`: of
    an array, only the members that have failed. Raises `MachineTypeUnknown`: its machine type is no longer offered.
    """
    check_idempotency_key(origin.idempotency_key)
    with tracing.span("submit"):
        changes, members = changes or CloneJob(), cloned_members(app_state, job_id, only_failed=only_failed)
        cloned_id = members[0][1] if members else job_id
        prepared = prepare_clone(app_state, origin, cloned_id, changes, pin_image=pin_image)
        if members:
            requested = f"{job_id} {only_failed} {pin_image} {changes.model_dump_json(exclude_none=True)}"
            digest = submission.request_digest(b"clone", requested.encode())
            prepared = replace(prepared, members=members, request_sha256=digest)
        if prepared.members and not members and prepared.members[0][0].nodes is not None:
            raise SpecInvalid("The nodes of a job can only be cloned together. Give the id of their array.", field="id")
        return _insert(app_state, prepared)


def prepare_clone(
    app_state: AppState, origin: RequestOrigin, job_id: str, changes: CloneJob, *, pin_image: bool = False
) -> PreparedJob:
    """Check the clone of a job; the arguments and errors are those of `clone`."""
    valid, withheld, cloned = _validate_clone(app_state, origin, job_id, changes, pin_image=pin_image)
    if cloned.nodes is not None or valid.spec.nodes is not None:
        check_nodes(valid)
    given = changes.model_dump(exclude_none=True).get("params", {})
    if changes.command is None and (name := fixed_by_value(cloned, given)) is not None:
        raise SpecInvalid(
            f"The program would not get {name}: its command has $GRADIENT_ARRAY_VALUE, which stays "
            f"{quoted(cloned.array_value or '')}. Give a command with the option as well.",
            field="params",
        )
    requested = json.dumps(changes.model_dump(mode="json", exclude_none=True), sort_keys=True).encode()
    return prepared_job(
        app_state,
        origin,
        valid,
        request_sha256=submission.request_digest(b"clone", cloned.id.encode(), *([b"pinned"] * pin_image), requested),
        project_id=cloned.project_id,
        parent_id=cloned.id,
        members=[(ArrayMember.of(new_id("a"), cloned), cloned.id)] if cloned.array_id else (),
        save_logins=partial(save_logins, app_state, None, valid.git_login),
        notes=(*withheld.notes(changes.env_vars or {}), *valid.notes),
    )


def _validate_clone(
    app_state: AppState, origin: RequestOrigin, job_id: str, changes: CloneJob, *, pin_image: bool
) -> tuple[ValidatedJob, Withheld, Job]:
    with app_state.database.read() as session:
        cloned = queries.get(session, job_id)
        machine = app_state.catalogue.get(changes.machine_type or cloned.machine_type)
        withheld = withheld_from(session, app_state, origin.key_id, cloned)
        spec = withheld.remainder(with_pinned_image(cloned) if pin_image else cloned.spec)
        if spec.name and cloned.array_id:
            spec = replace(spec, name=array_name(spec.name, cloned.array_index))
        spec = changes.changed(spec, machine.name)
        ran_in_container = runs_containers(cloned.backend, app_state.settings, cloned.image)
        had_stand_in = cloned.image is not None and app_state.images.stand_in(cloned.image) is not None
    may_ignore = origin.may_ignore_container or not (ran_in_container or had_stand_in)
    valid = validate_stored(app_state, f"job {job_id}", spec, cloned.project_id, may_ignore_container=may_ignore)
    return valid, withheld, cloned


def validate_stored(
    app_state: AppState, owner: str, spec: JobSpec, project_id: str, *, may_ignore_container: bool = False
) -> ValidatedJob:
    """Check the specification of a job or a schedule, its `owner`, for a new job, and mark its workspace as used."""
    machine = app_state.catalogue.get(spec.machine_type)
    with app_state.database.read() as session:
        credentials.check_secrets_exist(session, spec, project_id)
        receivers.check_exist(session, spec.notify)
    if spec.registry_username is not None:
        raise SpecInvalid(
            f"The registry password of {owner} was not kept for other jobs. Submit it again with the password, or "
            "store the password for all jobs with `gradient-cli registries set`.",
            field="registryPassword",
        )
    check_not_reserved(spec.parsed_ports(), app_state.settings.own_ports)
    valid = validate_spec(app_state, spec, machine, uploaded=False, may_ignore_container=may_ignore_container)
    if spec.workspace_sha256 is not None and not app_state.workspaces.mark_used(spec.workspace_sha256):
        raise WorkspaceNotFound(
            f"The workspace of {owner} is no longer stored, so it cannot run again. Submit the folder again with "
            f"`gradient-cli {owner.partition(' ')[0]}s create`.",
            field="workspaceSha256",
        )
    return valid


def log_submission(inserted: InsertedJob) -> None:
    job = inserted.job
    if inserted.created:
        logger.info("job_submitted", extra={"job_id": job.id, "machine_type": job.machine_type})
    tracing.set_attributes({"gradient.job.id": job.id, "gradient.machine_type": job.machine_type})
    failpoint("submit_after_commit")


def present(app_state: AppState, inserted: InsertedJob) -> JobView:
    return submitted_view(app_state, inserted.job, inserted.project, inserted.notes)


def _canonical_request(request: SubmitJob) -> bytes:
    fields = request.model_dump(mode="json", exclude_none=True, exclude=_NOT_IN_DIGEST)
    if request.workspace:
        fields["workspace"] = split_login(request.workspace)[0]
    return json.dumps(fields, sort_keys=True).encode()


def _prospective_job(valid: ValidatedJob, backend: str, project_id: str, nodes: int | None = None) -> Job:
    """Build the row of a job that is not submitted, to ask how it would wait."""
    return Job(
        id="",
        project_id=project_id,
        machine_type=valid.machine.name,
        backend=backend,
        priority=valid.spec.priority,
        gpus=valid.machine.gpus,
        gpu_count=(valid.spec.nodes or 1) * valid.machine.gpus,
        price_per_hour=(valid.spec.nodes or 1) * valid.machine.price_per_hour,
        cpus=valid.spec.cpus,
        memory_mb=valid.spec.memory_mb,
        nodes=nodes,
        spec_json=valid.spec.to_json(),
    )


def _check_fits(app_state: AppState, valid: ValidatedJob, request: SubmitJob) -> None:
    """Refuse a job that is too large for every running worker of its machine type; without one, it may wait."""
    spec, machine, nodes = valid.spec, valid.machine, request.nodes
    backend = app_state.backend_for(machine)
    may_not_fit = spec.cpus or spec.memory_mb or machine.gpus or nodes
    if request.wait_anyway or not may_not_fit or capabilities_of(backend).own_queue:
        return
    job = _prospective_job(valid, backend, "", nodes)
    with app_state.database.read() as session:
        workers = live_workers(session).for_machine_type(machine.name, job.backend)
    if workers and not any(fits(worker, job) for worker in workers):
        field = "cpus" if spec.cpus else "memoryMb" if spec.memory_mb else "machineType"
        raise SpecInvalid(
            f"The job requests {explain_too_large(job, workers)}. It would never start. Request less, or use "
            "--waitAnyway if a larger worker will join.",
            field=field,
        )
    if workers and (too_many := explain_too_many_nodes(job, workers)) is not None:
        raise SpecInvalid(
            f"The job requests {too_many}. It would never start. Request fewer, or use --waitAnyway if a larger "
            "machine will join.",
            field="nodes",
        )


def _max_cost(valid: ValidatedJob) -> float | None:
    spec, price = valid.spec, (valid.spec.nodes or 1) * valid.machine.price_per_hour
    bounds = [spec.time_limit * spec.max_attempts * price / 3600] if spec.time_limit is not None else []
    bounds += [spec.max_cost] if spec.max_cost is not None else []
    if spec.max_gpu_hours is not None and valid.machine.gpus:
        bounds.append(spec.max_gpu_hours * valid.machine.price_per_hour / valid.machine.gpus)
    return round(min(bounds), 6) if bounds else None


def _dry_run_notes(valid: ValidatedJob, job: Job, offered: LiveWorkers, members: int, *, uploaded: bool) -> list[str]:
    notes = [f"An array of {members:,} jobs would be submitted."] if members else []
    machine, backend = valid.machine, job.backend
    workers = offered.for_machine_type(machine.name, backend)
    if backend != machine.backend and not valid.answer_notes:
        notes.append("Simulated: the job runs on this server's own CPU, at that CPU's speed.")
    if not offered.available(machine.name, backend):
        notes.append("No running worker offers this machine type now; the job would wait.")
    elif not any(fits(worker, job) for worker in workers):
        notes.append(f"The job requests {explain_too_large(job, workers)}. It would wait for a larger worker.")
    if uploaded:
        notes.append("The uploaded workspace was not validated.")
    return [*notes, *valid.answer_notes, *valid.notes]
