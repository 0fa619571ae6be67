"""Parameters of jobs as stored rows: written with the job and by its program, and read for lists."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from core.db.models.job_params import JobParam
from core.db.models.jobs import Job
from core.db.models.metrics import LastMetric
from core.jobs.spec.image_options import quoted
from core.jobs.spec.params import (
    MAX_PARAM_NAME,
    MAX_PARAM_TEXT,
    MAX_PARAMS,
    Value,
    find_fault,
    is_name,
    may_be_secret,
    read_value,
)
from core.jobs.tracking import metrics

_MAX_EXACT = 2**53
_MOST_NAMES = 500
_MOST_NAMED = 20


def add_submitted(session: Session, jobs: Sequence[Job]) -> None:
    rows = [_row(job.id, name, value) for job in jobs for name, value in job.spec.all_params().items()]
    if rows:
        session.execute(insert(JobParam), rows)


def add_logged(session: Session, job: Job, given: Mapping[str, Any]) -> None:
    """Store what a program says its parameters are; those that the job was submitted with stay as they are."""
    stored_names = set(session.scalars(select(JobParam.name).where(JobParam.job_id == job.id)))
    rows = []
    faults: dict[str, list[str]] = {}
    for name, value in given.items():
        if fault := _find_fault(name, value, stored_names):
            faults.setdefault(fault, []).append(quoted(name))
        elif name not in job.spec.params:
            stored_names.add(name)
            rows.append(_row(job.id, name, value, is_text=isinstance(value, str)))
    if faults:
        texts = [f"{_list(names)} ({fault})" for fault, names in faults.items()]
        text = f"Some logged parameters were left out: {'; '.join(texts)}."
        metrics.record_limit(session, job, "params_left_out", text)
    if rows:
        statement = (postgresql if session.get_bind().dialect.name == "postgresql" else sqlite).insert(JobParam)
        changed = {"number": statement.excluded.number, "text": statement.excluded.text}
        session.execute(statement.on_conflict_do_update(index_elements=["job_id", "name"], set_=changed), rows)


def _list(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _find_fault(name: str, value: object, names: Collection[str]) -> str | None:
    """Return in few words why this cannot be a further parameter; None if it can."""
    if not is_name(name):
        return f"a name begins with a letter or _, and has letters, digits and _ . / -, at most {MAX_PARAM_NAME}"
    if may_be_secret(name, value):
        return "it may be a secret"
    if find_fault(name, value) is not None:
        return f"a value is a finite number, true, false, or one line of at most {MAX_PARAM_TEXT} characters"
    return f"a job has at most {MAX_PARAMS}" if name not in names and len(names) >= MAX_PARAMS else None


def _row(job_id: str, name: str, given: Value, *, is_text: bool = False) -> dict[str, Any]:
    value = read_value(given) if isinstance(given, str) and not is_text else given
    text = ("true" if value else "false") if isinstance(value, bool) else value if isinstance(value, str) else None
    return {"job_id": job_id, "name": name, "number": None if text is not None else float(value), "text": text}


def of_jobs(session: Session, jobs: Iterable[Job]) -> dict[str, dict[str, Value]]:
    """Return the parameters of each job by its id, those that it was submitted with in their own types."""
    by_id = {job.id: job for job in jobs}
    columns = (JobParam.job_id, JobParam.name, JobParam.number, JobParam.text)
    params: dict[str, dict[str, Value]] = {job_id: {} for job_id in by_id}
    for job_id, name, number, text in session.execute(select(*columns).where(JobParam.job_id.in_(by_id))):
        params[job_id][name] = (text or "") if number is None else _shortest(number)
    return {job_id: dict(sorted((values | by_id[job_id].spec.params).items())) for job_id, values in params.items()}


def _shortest(number: float) -> Value:
    return int(number) if number.is_integer() and abs(number) < _MAX_EXACT else number


def exists(session: Session, table: type[JobParam | LastMetric], name: str) -> bool:
    return session.scalar(select(table.job_id).where(table.name == name).limit(1)) is not None


def names(session: Session, table: type[JobParam | LastMetric]) -> list[str]:
    """Return the names of any job's parameters or metrics, each by one step in their index."""
    found_names: list[str] = []
    following = ""
    while len(found_names) < _MOST_NAMES:
        name = session.scalar(select(func.min(table.name)).where(table.name > following))
        if name is None:
            break
        found_names.append(following := name)
    return found_names
