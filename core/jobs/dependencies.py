"""Jobs that wait for others: each may start when its last dependency has been met, and ends if one cannot be met."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.orm import Session

from core.db.database import Base
from core.db.models.job_dependencies import JobDependency
from core.db.models.jobs import Job
from core.db.prepared import Prepared
from core.errors import SpecInvalid
from core.jobs.spec.dependencies import parse_dependencies, parse_inputs
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import TERMINAL, JobState

IS_WAITING = select(JobDependency.after_id).where(JobDependency.job_id == Job.id).exists()
"""True for a job that waits for another one."""
_ROWS = Base.metadata.tables[JobDependency.__tablename__]
_TAKE = Prepared(
    delete(_ROWS).where(_ROWS.c.after_id == bindparam("ended")).returning(_ROWS.c.job_id, _ROWS.c.must_succeed)
)


class _Predecessor(NamedTuple):
    state: JobState
    deleted: bool
    without_artifacts: bool


def check(session: Session, spec: JobSpec, *, lock: bool = True) -> None:
    """Refuse a job that waits for what cannot be; `lock` those that it waits for until the transaction ends.

    A predecessor that ends meanwhile either is seen here, or sees the dependency that `add` writes.
    """
    wanted = parse_dependencies(spec.after, spec.inputs)
    known = _predecessors(session, wanted, lock=lock) if wanted else {}
    for job_id, must_succeed in wanted.items():
        found = known.get(job_id)
        if found is None or (found.deleted and found.state not in TERMINAL):
            raise SpecInvalid(f"There is no job {job_id} to wait for. Check its id.", field="after")
        if must_succeed and found.state in TERMINAL and found.state is not JobState.SUCCEEDED:
            raise SpecInvalid(
                f"Job {job_id} has {found.state} and cannot succeed any more. Wait for another job, or write "
                f"{job_id}:ended in after.",
                field="after",
            )
    for one in parse_inputs(spec.inputs):
        if known[one.job_id].without_artifacts:
            raise SpecInvalid(
                f"The artifacts of job {one.job_id} have been deleted. Run it again, and use those.", field="inputs"
            )


def _predecessors(session: Session, ids: Collection[str], *, lock: bool) -> dict[str, _Predecessor]:
    columns = select(Job.id, Job.state, Job.deleted_at, Job.artifacts_removed_at)
    # In the order in which jobs wait for each other, as when one ends: no two transactions lock in different orders.
    found = columns.where(Job.id.in_(ids)).order_by(Job.seq)
    return {
        job_id: _Predecessor(state, deleted is not None, removed is not None)
        for job_id, state, deleted, removed in session.execute(found.with_for_update(read=True) if lock else found)
    }


def add(session: Session, jobs: Sequence[Job]) -> None:
    """Store for which unended jobs these have to wait; `check` has locked them."""
    wanted = {job.id: parse_dependencies(job.spec.after, job.spec.inputs) for job in jobs if _has_any(job.spec)}
    if not wanted:
        return
    ids = {after_id for of_job in wanted.values() for after_id in of_job}
    unended = set(session.scalars(select(Job.id).where(Job.id.in_(ids), Job.state.not_in(TERMINAL))))
    rows = [
        {"job_id": job_id, "after_id": after_id, "must_succeed": must_succeed}
        for job_id, of_job in wanted.items()
        for after_id, must_succeed in of_job.items()
        if after_id in unended
    ]
    if rows:
        session.execute(insert(JobDependency), rows)


def _has_any(spec: JobSpec) -> bool:
    return bool(spec.after or spec.inputs)


def take(session: Session, ended: Job) -> list[tuple[str, bool]]:
    """Remove the dependencies on a job that has ended; return the ids of those that waited, True if for ever."""
    failed = ended.state is not JobState.SUCCEEDED
    return [(job_id, must_succeed and failed) for job_id, must_succeed in _TAKE.rows(session, {"ended": ended.id})]


def describe(session: Session, ids: Collection[str]) -> dict[str, str]:
    """Return for each of these jobs that waits for others, by its id, what has to happen."""
    found: dict[str, list[str]] = {}
    rows = select(JobDependency).where(JobDependency.job_id.in_(ids)).order_by(JobDependency.after_id)
    for row in session.scalars(rows) if ids else ():
        found.setdefault(row.job_id, []).append(f"{row.after_id} has {'succeeded' if row.must_succeed else 'ended'}")
    return {job_id: " and ".join(each) for job_id, each in found.items()}
