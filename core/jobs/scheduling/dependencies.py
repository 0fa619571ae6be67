"""Jobs that wait for others: each may start when its last dependency has been met, and ends if one cannot be met."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, bindparam, delete, insert, or_, select
from sqlalchemy.orm import Session

from core.db.database import Base
from core.db.models.job_dependencies import JobDependency
from core.db.models.jobs import Job
from core.db.prepared import Prepared
from core.errors import SpecInvalid
from core.jobs.reasons import reason_message
from core.jobs.spec.arrays import is_array_id
from core.jobs.spec.dependencies import parse_dependencies, parse_inputs
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import TERMINAL, JobState

IS_WAITING = select(JobDependency.after_id).where(JobDependency.job_id == Job.id).exists()
"""True for a job that waits for another one."""
_ROWS = Base.metadata.tables[JobDependency.__tablename__]
_TAKE = Prepared(
    delete(_ROWS)
    .where(
        _ROWS.c.after_id == bindparam("ended"), or_(bindparam("last"), and_(bindparam("failed"), _ROWS.c.must_succeed))
    )
    .returning(_ROWS.c.job_id, _ROWS.c.must_succeed)
)
_LOCK = Prepared(
    select(_ROWS.c.job_id).where(_ROWS.c.after_id == bindparam("ended")).order_by(_ROWS.c.job_id).with_for_update()
)


class _Predecessor(NamedTuple):
    job_id: str
    state: JobState
    deleted: bool
    without_artifacts: bool


def check(session: Session, spec: JobSpec, *, lock: bool = True) -> None:
    """Refuse a job that waits for what cannot be; `lock` those that it waits for until the transaction ends.

    A predecessor that ends meanwhile either is seen here, or sees the dependency that `add` writes.
    """
    wanted = parse_dependencies(spec.after, spec.inputs)
    by_id = _predecessors(session, wanted, lock=lock) if wanted else {}
    for waited_for, must_succeed in wanted.items():
        predecessors = by_id.get(waited_for, [])
        if all(job.deleted and job.state not in TERMINAL for job in predecessors):
            what = "array" if is_array_id(waited_for) else "job"
            raise SpecInvalid(f"There is no {what} {waited_for} to wait for. Check its id.", field="after")
        for job in predecessors if must_succeed else ():
            if job.state in TERMINAL and job.state is not JobState.SUCCEEDED:
                raise SpecInvalid(
                    f"Job {job.job_id} has {job.state}, so it can no longer succeed. Wait for another job, or write "
                    f"{waited_for}:ended to start this one anyway.",
                    field="after",
                )
    for wanted_input in parse_inputs(spec.inputs):
        if by_id[wanted_input.job_id][0].without_artifacts:
            raise SpecInvalid(
                f"The artifacts of job {wanted_input.job_id} have been deleted. Run it again, and use the new job's "
                "artifacts.",
                field="inputs",
            )


def _predecessors(session: Session, ids: Collection[str], *, lock: bool) -> dict[str, list[_Predecessor]]:
    """Return the jobs with these ids, and the members of arrays with these ids."""
    columns = select(Job.id, Job.state, Job.deleted_at, Job.artifacts_removed_at, Job.array_id)
    # In the order in which jobs wait for each other, as when one ends: no two transactions lock in different orders.
    jobs = columns.where(_is_one_of(ids)).order_by(Job.seq)
    predecessors: dict[str, list[_Predecessor]] = {}
    for job_id, state, deleted, removed, array_id in session.execute(jobs.with_for_update(read=True) if lock else jobs):
        for known_as in set(ids) & {job_id, array_id}:
            predecessors.setdefault(known_as, []).append(
                _Predecessor(job_id, state, deleted is not None, removed is not None)
            )
    return predecessors


def _is_one_of(ids: Collection[str]) -> ColumnElement[bool]:
    arrays = [job_id for job_id in ids if is_array_id(job_id)]
    return or_(Job.id.in_(ids), Job.array_id.in_(arrays)) if arrays else Job.id.in_(ids)


def add(session: Session, jobs: Sequence[Job]) -> None:
    """Store for which unended jobs these have to wait; `check` has locked them."""
    wanted = {job.id: parse_dependencies(job.spec.after, job.spec.inputs) for job in jobs if _has_any(job.spec)}
    if not wanted:
        return
    ids = {after_id for of_job in wanted.values() for after_id in of_job}
    still = session.execute(select(Job.id, Job.array_id).where(_is_one_of(ids), Job.state.not_in(TERMINAL)))
    unended = {known_as for row in still for known_as in row}
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
    """Remove the dependencies on a job that has ended, and on its array if all members have, or this one has failed.

    Returns the ids of the jobs that waited, True if for ever.
    """
    failed = ended.state is not JobState.SUCCEEDED
    last = {ended.id: True}
    # Locked: of two members that end at once, the second sees the end of the first.
    if ended.array_id is not None and _LOCK.rows(session, {"ended": ended.array_id}):
        unended = select(Job.id).where(Job.array_id == ended.array_id, Job.state.not_in(TERMINAL)).limit(1)
        last[ended.array_id] = session.scalar(unended) is None
    return [
        (job_id, must_succeed and failed)
        for after_id, is_last in last.items()
        for job_id, must_succeed in _TAKE.rows(session, {"ended": after_id, "last": is_last, "failed": failed})
    ]


def describe_end(ended: Job) -> str:
    """Return what had to happen to a job, and why it never will."""
    if ended.deleted_at is not None:
        why = "it was deleted"
    elif ended.reason in {None, "dependency_failed"}:
        why = "it never started"
    else:
        sentence, _, _ = reason_message(ended.reason, ended.reason_detail).partition(". ")
        why = f"it did not: {sentence.rstrip('.')}"
    return f"{ended.id} to succeed, but {why}"


def describe(session: Session, ids: Collection[str]) -> dict[str, str]:
    """Return for each of these jobs that waits for others, by its id, what has to happen."""
    conditions: dict[str, list[str]] = {}
    rows = select(JobDependency).where(JobDependency.job_id.in_(ids)).order_by(JobDependency.after_id)
    for row in session.scalars(rows) if ids else ():
        done = "succeeded" if row.must_succeed else "ended"
        awaited = f"all members of {row.after_id} have" if is_array_id(row.after_id) else f"{row.after_id} has"
        conditions.setdefault(row.job_id, []).append(f"{awaited} {done}")
    return {job_id: " and ".join(texts) for job_id, texts in conditions.items()}
