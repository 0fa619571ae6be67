"""Insertion of new jobs, each with its first event and its outbox message, in the caller's transaction."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of
from core.catalogue.machine_types import MachineType
from core.db.database import Base
from core.db.models.credentials import UserKey
from core.db.models.jobs import Job
from core.db.prepared import Prepared
from core.errors import IdempotencyMismatch
from core.ids import new_id
from core.jobs.guarded_updates import JOBS, NOW, add_submitted_events, enqueue_wakes, insert_ignore, job_of
from core.jobs.scheduling import dependencies
from core.jobs.scheduling.port_allocations import count_dynamic_ports, request_ports
from core.jobs.spec.arrays import ArrayMember
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import JobState
from core.jobs.tracking import params


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    spec: JobSpec
    machine: MachineType
    backend: str
    submitted_by: str
    project_id: str | None = None  # None: not yet found
    parent_id: str | None = None
    schedule_id: str | None = None
    idempotency_key: str | None = None
    request_sha256: str | None = None
    request_id: str | None = None
    trace_parent: str | None = None
    address: str | None = None  # of the client
    image: str | None = None
    array: ArrayMember | None = None


_DEFAULTS = {column.key: getattr(column.default, "arg", None) for column in JOBS.c}
"""Each column of a new row that has no other value."""
_NOT_IN_ARRAY = dict.fromkeys(ArrayMember._fields)


_USER_KEYS = Base.metadata.tables[UserKey.__tablename__]
_USER_OF_KEY = select(_USER_KEYS.c.user_id).where(_USER_KEYS.c.key_id == bindparam("key")).scalar_subquery()
_STORED = (JOBS.c.id, JOBS.c.seq, JOBS.c.created_at, JOBS.c.user_id)  # what the database gives a new row, after its id


@cache
def _insert_job(dialect: str) -> Any:  # noqa: ANN401 - the two dialects share no class
    return insert_ignore(dialect, JOBS).values(created_at=NOW).returning(*_STORED)


@cache
def _insert_one_job(dialect: str, names: tuple[str, ...]) -> Prepared:
    constants = {name: value for name, value in _DEFAULTS.items() if value is not None and name not in names}
    if "user_id" not in names:
        constants["user_id"] = _USER_OF_KEY
    return Prepared(_insert_job(dialect).values(constants), names)


def _initial_values(new_job: NewJob) -> dict[str, Any]:
    spec = new_job.spec
    shared = new_job.array and new_job.array.array_id
    nodes = spec.nodes or 1
    here = not capabilities_of(new_job.backend).own_queue  # else it uses nothing of the worker's host
    return {
        "id": new_id("j"),
        "project_id": new_job.project_id,
        "submitted_by": new_job.submitted_by,
        "parent_id": new_job.parent_id,
        "schedule_id": new_job.schedule_id,
        "idempotency_key": new_job.idempotency_key,
        "request_sha256": new_job.request_sha256,
        "request_id": new_job.request_id,
        "trace_parent": new_job.trace_parent,
        "spec": spec.to_json(),
        "name": spec.name,
        "machine_type": new_job.machine.name,
        "backend": new_job.backend,
        "simulated": new_job.backend != new_job.machine.backend,
        "price_per_hour": nodes * new_job.machine.price_per_hour,
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "gpus": new_job.machine.gpus if here else 0,
        "gpu_count": nodes * new_job.machine.gpus,
        "cpus": spec.cpus if here else None,
        "memory_mb": spec.memory_mb if here else None,
        "image": new_job.image,
        "dynamic_ports": count_dynamic_ports(spec),
        **(new_job.array._asdict() if new_job.array else _NOT_IN_ARRAY),
        "cost_set": shared if spec.max_cost or spec.max_gpu_hours else None,
        "state": JobState.QUEUED,
        "reason": "waiting_for_machine",
        "phase": "queued",
    }


def insert_queued(session: Session, new_jobs: Sequence[NewJob]) -> list[Job]:
    """Insert jobs with their first events and outbox messages, to be claimed in this order.

    Only the first may have an Idempotency-Key. If another job has it, nothing is inserted, and the list is empty.
    """
    values = [_initial_values(new_job) for new_job in new_jobs]
    stored = _insert_rows(session, values[:1])
    if not stored:
        return []
    [(*_, user_id)] = stored.values()
    stored |= _insert_rows(session, [row | {"user_id": user_id} for row in values[1:]])
    jobs = [_stored_job(new_job, row, stored[row["id"]]) for new_job, row in zip(new_jobs, values, strict=True)]
    for job in jobs:
        request_ports(session, job)
    params.add_submitted(session, jobs)
    dependencies.add(session, jobs)
    add_submitted_events(session, jobs, new_jobs[0].address)
    enqueue_wakes(session, jobs)
    return jobs


def _insert_rows(session: Session, values: Sequence[dict[str, Any]]) -> dict[str, tuple[int, datetime, str | None]]:
    """Insert the rows of jobs; return what the database gives each that is stored, by its id."""
    if not values:
        return {}
    connection = session.connection()
    dialect = connection.dialect.name
    if len(values) == 1:
        row = values[0] | {"key": values[0]["submitted_by"]}
        rows: Iterable[Sequence[Any]] = _insert_one_job(dialect, tuple(values[0])).rows(session, row)
    else:
        rows = connection.execute(_insert_job(dialect), values)
    return {job_id: (seq, created_at, user_id) for job_id, seq, created_at, user_id in rows}


def _stored_job(new_job: NewJob, values: dict[str, Any], stored: tuple[int, datetime, str | None]) -> Job:
    """Build the object of a row that was just inserted, without reading the row; it belongs to no session."""
    row = _DEFAULTS | values | dict(zip(("seq", "created_at", "user_id"), stored, strict=True))
    job = job_of([row[column.key] for column in JOBS.c])
    job.keep_parsed(new_job.spec)
    return job


def find_repeated(session: Session, new_job: NewJob) -> Job | None:
    """Return the job that was submitted before with the same Idempotency-Key; None if there is none."""
    if new_job.idempotency_key is None:
        return None
    has_key = (Job.submitted_by == new_job.submitted_by, Job.idempotency_key == new_job.idempotency_key)
    if session.connection().scalar(select(JOBS.c.seq).where(*has_key)) is None:
        return None
    return get_repeated(session, new_job)


def get_repeated(session: Session, new_job: NewJob) -> Job:
    has_key = (Job.submitted_by == new_job.submitted_by, Job.idempotency_key == new_job.idempotency_key)
    job = session.scalars(select(Job).where(*has_key)).one()
    if job.request_sha256 != new_job.request_sha256:
        raise IdempotencyMismatch(
            f"This Idempotency-Key was already used for job {job.id}, with a different request. Use a new key for a "
            "new job.",
            field="Idempotency-Key",
        )
    return job


def request_digest(*parts: bytes) -> str:
    """Compute the digest of a request, to distinguish a repeat from a different request with the same key."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
