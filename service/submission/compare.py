"""Submission of a comparison: one program on several machine types, all of its jobs or none."""

import json
from dataclasses import replace
from functools import partial
from typing import BinaryIO

from sqlalchemy.orm import Session

from core.comparison import comparisons
from core.comparison.comparisons import MAX_JOBS
from core.comparison.differences import SEED
from core.comparison.measurement import parse_metric
from core.db.models.comparisons import Comparison
from core.errors import SpecInvalid
from core.jobs import queries, submission
from core.jobs.templates.templates import find_repeated
from service.app_state import AppState
from service.auth.authentication import viewer_of
from service.schemas.comparisons import CompareJobs, ComparisonFile, RepeatComparison, SubmitComparison
from service.schemas.job_changes import CloneJob
from service.schemas.jobs import SubmitJob
from service.submission.create import log_submission, prepare_clone, save_logins
from service.submission.insert import find_project, insert, prepared_job
from service.submission.members import refuse_array
from service.submission.stages import InsertedJob, PreparedJob, RequestOrigin, ValidatedJob
from service.submission.validation import check_idempotency_key, validate
from service.submission.workspace import store_workspace, with_workspace


def submit(
    app_state: AppState, origin: RequestOrigin, request: SubmitComparison, upload: BinaryIO | None
) -> tuple[str, bool]:
    """Create the jobs of a comparison, and the comparison, in one transaction.

    `upload`: the workspace's archive, or None; stored only if the rest is valid. Returns the comparison's id, and
    whether it was created now: the same Idempotency-Key gives the same comparison.
    """
    check_idempotency_key(origin.idempotency_key)
    jobs = split(request)
    valid = [validate(app_state, job, uploaded=upload is not None) for job in jobs]
    workspace = store_workspace(app_state, origin.key_id, upload, request.workspace_sha256)
    valid = [replace(valid_job, spec=with_workspace(valid_job.spec, workspace)) for valid_job in valid]
    digest = submission.request_digest(
        b"comparison", _canonical(request), (workspace.sha256 if workspace else "").encode()
    )
    new = _new_comparison(origin, request, valid[0].spec.name, digest)
    with app_state.database.write() as session:
        repeated = find_repeated(session, new)
        if repeated is not None:
            return repeated.id, False
        requested = list(zip(jobs, valid, strict=True))
        inserted = _insert(session, app_state, origin, requested, serial=request.serial)
        comparisons.create(session, new, [insertion.job for insertion in inserted])
        comparisons.share_ceiling(session, new.id)
    for insertion in inserted:
        log_submission(insertion)
    return new.id, True


def compare_jobs(
    session: Session, app_state: AppState, origin: RequestOrigin, request: CompareJobs
) -> tuple[str, bool]:
    """Create a comparison of existing jobs. Returns the comparison's id, and whether it was created now."""
    check_idempotency_key(origin.idempotency_key)
    digest = submission.request_digest(b"comparison", request.model_dump_json().encode())
    new = _new_comparison(origin, request, request.name, digest)
    repeated = find_repeated(session, new)
    if repeated is not None:
        return repeated.id, False
    comparisons.create(session, new, [queries.get(session, job_id) for job_id in request.jobs])
    find_project(session, viewer_of(app_state, origin.key_id), new.project_id, None)  # or nothing of it is kept
    return new.id, True


def import_file(
    session: Session, app_state: AppState, key_id: str, body: bytes, file: ComparisonFile
) -> tuple[str, bool]:
    """Store an imported comparison. Returns its id, and whether this key has imported it now and not before."""
    comparison = file.comparison
    comparisons.check_metric(comparison.metric, comparison.target)
    new = Comparison(
        submitted_by=key_id,
        name=comparison.name,
        metric=comparison.metric,
        goal=comparison.goal,
        target=comparison.target,
        idempotency_key=f"import {file.sha256}",
        request_sha256=file.sha256,
        imported_from=file.exported_from,
        imported_jobs=comparison.jobs,
        imported_program=file.program_sha256,
        imported_file=body.decode(),
    )
    repeated = find_repeated(session, new)
    if repeated is not None:
        return repeated.id, False
    project, _ = find_project(session, viewer_of(app_state, key_id), None, None)
    comparisons.insert(session, new, project.id)
    return new.id, True


def repeat(app_state: AppState, origin: RequestOrigin, comparison_id: str, request: RepeatComparison) -> None:
    """Submit one more job on machine types of a comparison, all of them or none."""
    check_idempotency_key(origin.idempotency_key)
    with app_state.database.read() as session:
        jobs = comparisons.jobs_of(session, comparisons.get(session, comparison_id).id)
    serial = any(job.spec.after != jobs[0].spec.after for job in jobs)  # each follows the one before it
    digest = submission.request_digest(b"repeat", comparison_id.encode(), request.model_dump_json().encode())
    prepared = []
    for index, name in enumerate(request.machine_types):
        machine = app_state.catalogue.get(name)
        members = [job for job in jobs if job.machine_type == machine.name]
        if not members:
            raise SpecInvalid(f"The comparison has no job on {machine.name} to repeat.", field="machineTypes")
        seed = max(_parse_seed(job.spec.env_vars.get(SEED, "1")) for job in members) + 1
        own_origin = replace(origin, idempotency_key=origin.idempotency_key and f"{origin.idempotency_key}.{index}")
        clone = prepare_clone(
            app_state, own_origin, members[-1].id, CloneJob.model_validate({"envVars": {SEED: str(seed)}})
        )
        if request.max_cost is not None:
            clone = replace(clone, spec=replace(clone.spec, max_cost=request.max_cost))
        prepared.append(replace(clone, request_sha256=digest))
    with app_state.database.write() as session:
        last, inserted = jobs[-1].id, list[InsertedJob]()
        for clone in prepared:
            inserted.append(insert(session, app_state, _after(clone, last) if serial else clone))
            last = inserted[-1].job.id
        comparisons.add_jobs(session, comparison_id, [insertion.job for insertion in inserted])
        comparisons.share_ceiling(session, comparison_id)
    for insertion in inserted:
        log_submission(insertion)


def _new_comparison(
    origin: RequestOrigin, request: SubmitComparison | CompareJobs, name: str | None, digest: str
) -> Comparison:
    parsed, goal = parse_metric(request.metric or "", request.goal)
    metric = None if request.metric is None else parsed
    comparisons.check_metric(metric, request.target)
    return Comparison(
        submitted_by=origin.key_id,
        name=name,
        metric=metric,
        goal=goal,
        target=request.target,
        idempotency_key=origin.idempotency_key,
        request_sha256=digest,
    )


def _insert(
    session: Session,
    app_state: AppState,
    origin: RequestOrigin,
    requested: list[tuple[SubmitJob, ValidatedJob]],
    *,
    serial: bool,
) -> list[InsertedJob]:
    unkeyed = replace(origin, idempotency_key=None)
    inserted: list[InsertedJob] = []
    for request, valid in requested:
        prepared = prepared_job(
            app_state,
            unkeyed,
            valid,
            project_id=request.project_id,
            project_name=request.project,
            save_logins=partial(save_logins, app_state, request.registry_password, valid.git_login),
        )
        if serial and inserted:
            prepared = _after(prepared, inserted[-1].job.id)
        inserted.append(insert(session, app_state, prepared))
    return inserted


def _after(prepared: PreparedJob, job_id: str) -> PreparedJob:
    return replace(prepared, spec=replace(prepared.spec, after=(f"{job_id}:ended",)))


def split(request: SubmitComparison) -> list[SubmitJob]:
    """Return the requests of the jobs: repeat by repeat, so that a busy server measures all machine types early."""
    refuse_array(request)
    names = [name.strip() for name in request.machine_type.split(",") if name.strip()]
    if not 1 < len(names) * request.repeats <= MAX_JOBS:
        raise SpecInvalid(
            f"{len(names)} machine types times {request.repeats} repeats: a comparison has 2 to {MAX_JOBS} jobs. "
            "Separate machine types with commas, such as CPU,V100.",
            field="machineType",
        )
    shared = request.model_dump(by_alias=True, exclude_unset=True, include=set(SubmitJob.model_fields))
    variables = shared.get("envVars") or {}
    first = _parse_seed(variables.get(SEED, "1"))
    return [
        SubmitJob.model_validate(shared | {"machineType": name, "envVars": variables | {SEED: str(first + repeat)}})
        for repeat in range(request.repeats)
        for name in names
    ]


def _parse_seed(given: str) -> int:
    if not given.isascii() or not given.isdecimal():
        raise SpecInvalid(f"{SEED} is {given!r}. Give a whole number: repeats count up from it.", field="envVars")
    return int(given)


def _canonical(request: SubmitComparison) -> bytes:
    # As in a job's: an archive's digest may take the place of the archive, and a password must not be found by guesses.
    fields = request.model_dump(mode="json", exclude_none=True, exclude={"workspace_sha256", "registry_password"})
    return json.dumps(fields, sort_keys=True).encode()
