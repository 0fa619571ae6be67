"""Values of jobs that are computed from several columns, and the orders of lists."""

import difflib
from typing import Any

from sqlalchemy import ColumnElement, SQLColumnExpression, case, func, select
from sqlalchemy.orm import Session, aliased

from core.db.models.job_params import JobParam
from core.db.models.jobs import Job, Project
from core.db.models.metrics import LastMetric
from core.errors import SpecInvalid
from core.jobs.costs.amounts import cost, duration
from core.jobs.spec.image_options import quoted
from core.jobs.states import JobState
from core.jobs.tracking import params
from core.search.ordering import Ordering

METRIC_PREFIX = "metric."  # marks the name of a metric that is also a name of the language, as in `metric.cost>1`
PARAM_PREFIX = "params."  # marks the name of a parameter, as in `params.lr<1e-3`
_STATE_ORDER = {state: index for index, state in enumerate(JobState)}
_MOST_NAMED = 20


def parse_order(session: Session, text: str, *, folded: bool = False) -> Ordering | None:
    """Return the order that `sort` names: a column or a metric, with `-` before it in descending order.

    `folded`: the first member of an array stands for all.
    """
    name = text.removeprefix("-")
    descending = text.startswith("-")
    if name == "created":
        return None if descending else Ordering(Job.seq, descending=False)
    if not name:
        raise SpecInvalid("Name a column to sort by, such as sort=-cost, or a metric.", field="sort")
    dialect = session.get_bind().dialect.name
    columns = _columns(dialect) | (_columns_of_arrays(dialect) if folded else {})
    if name in columns:
        return Ordering(columns[name], descending=descending)
    metric, param = name.removeprefix(METRIC_PREFIX), name.removeprefix(PARAM_PREFIX)
    if metric != name or (param == name and params.exists(session, LastMetric, name)):
        return Ordering(_metric(metric), descending=descending)
    if params.exists(session, JobParam, param):
        return Ordering(_param(session, param), descending=descending)
    columns_known = ["created", *columns, *(f"{PARAM_PREFIX}{name}" for name in params.names(session, JobParam))]
    near = difflib.get_close_matches(name, columns_known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Columns: {', '.join(columns_known[:_MOST_NAMED])}."
    raise SpecInvalid(f"{quoted(name)} is neither a column nor a metric or parameter of any job. {hint}", field="sort")


def _columns(dialect: str) -> dict[str, SQLColumnExpression[Any]]:
    project = select(Project.name).where(Project.id == Job.project_id).scalar_subquery()
    return {
        "name": func.lower(Job.name),
        "state": case(_STATE_ORDER, value=Job.state),
        "machine": Job.machine_type,
        "project": project,
        "duration": duration(dialect),
        "cost": cost(dialect),
        "finished": Job.finished_at,
    }


def _columns_of_arrays(dialect: str) -> dict[str, ColumnElement[Any]]:
    member = aliased(Job)
    of_members: dict[str, ColumnElement[Any]] = {
        "duration": func.sum(duration(dialect, member)),
        "cost": func.sum(cost(dialect, member)),
        "finished": func.max(member.finished_at),
    }
    columns = _columns(dialect)
    members = member.array_id == Job.array_id, member.deleted_at.is_(None)
    return {
        name: case((Job.array_id.is_(None), columns[name]), else_=select(total).where(*members).scalar_subquery())
        for name, total in of_members.items()
    }


def _metric(name: str) -> ColumnElement[float]:
    measured = select(LastMetric.value).where(LastMetric.job_id == Job.id, LastMetric.name == name)
    return measured.scalar_subquery()


def _param(session: Session, name: str) -> ColumnElement[Any]:
    """Return a parameter's number, or its text if no job has a number of this name."""
    numbers = select(JobParam.job_id).where(JobParam.name == name, JobParam.number.is_not(None))
    column: SQLColumnExpression[Any] = JobParam.number if session.scalar(numbers.limit(1)) else JobParam.text
    return select(column).where(JobParam.job_id == Job.id, JobParam.name == name).scalar_subquery()
