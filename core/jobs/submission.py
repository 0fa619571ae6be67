"""Insertion of new jobs, each with its first event and its outbox message, in the caller's transaction."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.catalogue.machine_types import MachineType
from core.db.models.jobs import Job, Project
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
    project: Project
    submitted_by: str
    parent_id: str | None = None
    schedule_id: str | None = None
    idempotency_key: str | None = None
    request_sha256: str | None = None
    request_id: str | None = None
    trace_parent: str | None = None
    image: str | None = None
    array: ArrayMember | None = None


_DEFAULTS = {column.key: getattr(column.default, "arg", None) for column in JOBS.c}
"""Each column of a new row that has no other value."""
_NOT_IN_ARRAY = dict.fromkeys(ArrayMember._fields)


class _Stored(NamedTuple):
    """Values that the database gives a new row."""

    id: str
    seq: int
    created_at: datetime


_STORED = tuple(JOBS.c[name] for name in _Stored._fields)


@cache
def _insert_returning(dialect: str) -> Any:  # noqa: ANN401 - the two dialects share no class
    return insert_ignore(dialect, JOBS).values(created_at=NOW).returning(*_STORED)


@cache
def _insert_job(dialect: str, names: tuple[str, ...]) -> Prepared:
    constants = {name: value for name, value in _DEFAULTS.items() if value is not None and name not in names}
    return Prepared(insert_ignore(dialect, JOBS).values(constants), names)


def _initial_values(new_job: NewJob) -> dict[str, Any]:
    spec = new_job.spec
    return {
        "id": new_id("j"),
        "project_id": new_job.project.id,
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
        "price_per_hour": new_job.machine.price_per_hour,
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "gpus": new_job.machine.gpus,
        "cpus": spec.cpus,
        "memory_mb": spec.memory_mb,
        "image": new_job.image,
        "dynamic_ports": count_dynamic_ports(spec),
        **(new_job.array._asdict() if new_job.array else _NOT_IN_ARRAY),
        "state": JobState.QUEUED,
        "reason": "waiting_for_machine",
        "phase": "queued",
    }


def _stored_job(new_job: NewJob, values: dict[str, Any], stored: _Stored) -> Job:
    """Build the object of a row that was just inserted, without reading the row; it belongs to no session."""
    row = _DEFAULTS | values | {"seq": stored.seq, "created_at": stored.created_at}
    job = job_of([row[column.key] for column in JOBS.c])
    job.keep_parsed(new_job.spec)
    return job


def insert_queued(session: Session, new_jobs: Sequence[NewJob]) -> list[Job | None]:
    """Insert jobs with their first events and outbox messages, to be claimed in this order.

    Returns the jobs; None for one whose Idempotency-Key another job has, which inserts nothing.
    """
    values = [_initial_values(each) for each in new_jobs]
    stored = _insert_rows(session, values)
    jobs = [
        _stored_job(new_job, row, stored[row["id"]]) if row["id"] in stored else None
        for new_job, row in zip(new_jobs, values, strict=True)
    ]
    created = [job for job in jobs if job is not None]
    if created:
        for job in created:
            request_ports(session, job)
        params.add_submitted(session, created)
        dependencies.add(session, created)
        add_submitted_events(session, created)
        enqueue_wakes(session, created)
    return jobs


def _insert_rows(session: Session, values: Sequence[dict[str, Any]]) -> dict[str, _Stored]:
    """Insert the rows of jobs; return those that are stored, by id."""
    connection = session.connection()
    dialect = connection.dialect.name
    if dialect != "sqlite":
        parameters = values if len(values) > 1 else values[0]  # a bulk insert of one row costs more than a plain one
        found = connection.execute(_insert_returning(dialect), parameters)
        return {row.id: _Stored(*row) for row in found}
    # SQLite takes three times as long with RETURNING. Its clock is this process's, and has milliseconds.
    now = datetime.now(UTC)
    at = {"created_at": now.replace(microsecond=now.microsecond // 1000 * 1000)}
    statement = _insert_job(dialect, (*values[0], *at))
    seqs = [(row["id"], statement.insert(session, row | at)) for row in values]
    return {job_id: _Stored(job_id, seq, at["created_at"]) for job_id, seq in seqs if seq is not None}


def idempotency_of(new_job: NewJob) -> tuple[str, str] | None:
    """Return what may name only one job: the key that submits, and its Idempotency-Key; None if it has none."""
    return None if new_job.idempotency_key is None else (new_job.submitted_by, new_job.idempotency_key)


def find_submitted(session: Session, new_jobs: Sequence[NewJob]) -> dict[tuple[str, str] | None, Job]:
    wanted: dict[str, set[str]] = {}
    for each in new_jobs:
        if each.idempotency_key is not None:
            wanted.setdefault(each.submitted_by, set()).add(each.idempotency_key)
    found: dict[tuple[str, str] | None, Job] = {}
    for owner, given in wanted.items():
        of_owner = (Job.submitted_by == owner, Job.idempotency_key.in_(given))
        if session.connection().scalar(select(JOBS.c.seq).where(*of_owner).limit(1)) is not None:
            query = select(Job).where(*of_owner)
            found |= {(owner, job.idempotency_key): job for job in session.scalars(query) if job.idempotency_key}
    return found


def check_same_request(job: Job, new_job: NewJob) -> Job:
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
