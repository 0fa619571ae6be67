"""The projects that the caller of a request sees: one condition narrows every query of its sessions.

A closed project is seen by its members and administrators alone. Work in the background has no viewer, and sees all.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple

from sqlalchemy import String, bindparam, event, or_, select
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql import util as sql_util

from core.db.database import Base
from core.db.models.budgets import Budget
from core.db.models.comparisons import Comparison, ComparisonJob
from core.db.models.credentials import Registry, Secret, UserKey
from core.db.models.job_params import JobParam
from core.db.models.jobs import Attempt, Event, GpuAllocation, Job, PortAllocation, Project
from core.db.models.metrics import LastMetric
from core.db.models.notifications import NotificationRule
from core.db.models.project_members import ProjectMember
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.db.models.uploads import UploadedFile
from core.db.prepared import Prepared
from core.jobs.cloud_resources import CloudResource

_OF_PROJECT = (Job, Comparison, Schedule, Sweep, Secret, Registry, UploadedFile, ProjectMember)
_OF_JOB = (Attempt, Event, JobParam, LastMetric, ComparisonJob, GpuAllocation, PortAllocation, CloudResource)
_OF_SUBJECT = (Budget, NotificationRule)
_NARROWED = {Base.metadata.tables[row.__tablename__] for row in (Project, *_OF_PROJECT, *_OF_JOB, *_OF_SUBJECT)}

_projects, _members, _keys, _jobs = (
    Base.metadata.tables[row.__tablename__] for row in (Project, ProjectMember, UserKey, Job)
)
_key = bindparam("key", type_=String)
_is_member = or_(
    _members.c.member == _key, _members.c.member.in_(select(_keys.c.user_id).where(_keys.c.key_id == _key))
)
_has_role = select(_members.c.role).where(_members.c.project_id == _projects.c.id, _is_member).exists()
ROLES_OF_KEY = Prepared(
    select(_members.c.project_id, _members.c.role, _projects.c.closed_at)
    .join(_projects, _projects.c.id == _members.c.project_id)
    .where(_is_member)
)
_CLOSED = Prepared(select(_projects.c.id).where(_projects.c.closed_at.is_not(None), ~_has_role))
_ALL = Prepared(select(_projects.c.id))


class Viewer(NamedTuple):
    """A key with which somebody reads."""

    key_id: str
    projects: tuple[str, ...] | None = None  # the only ones that the key is for; None: all
    sees_closed: bool = False  # of an administrator


_viewer: ContextVar[Viewer | None] = ContextVar("viewer", default=None)


def see_as(viewer: Viewer | None) -> None:
    """Let this thread or task see from now on what this viewer sees; None: everything."""
    _viewer.set(viewer)


@contextmanager
def seeing_as(viewer: Viewer | None) -> Iterator[None]:
    token = _viewer.set(viewer)
    try:
        yield
    finally:
        _viewer.reset(token)


seeing_everything = partial(seeing_as, None)
"""See everything during a block or a function, to count and to schedule; its result must name nothing of others."""


def hidden_projects(session: Session) -> Collection[str]:
    """Return the ids of the projects that are hidden from the viewer, as of the session's first question."""
    viewer = _viewer.get()
    if viewer is None or (viewer.sees_closed and viewer.projects is None):
        return ()
    hidden: tuple[str, ...] | None = session.info.get(viewer)
    if hidden is None:
        rows = [] if viewer.sees_closed else _CLOSED.rows(session, {"key": viewer.key_id})
        if viewer.projects is not None:
            rows += [row for row in _ALL.rows(session, {}) if row[0] not in viewer.projects]
        hidden = session.info[viewer] = tuple(sorted({row[0] for row in rows}))
    return hidden


@event.listens_for(Session, "do_orm_execute")
def _narrow(state: ORMExecuteState) -> None:
    if not state.is_select or state.is_column_load or state.is_relationship_load:
        return
    if hidden := hidden_projects(state.session):
        statement: Any = state.statement
        if not state.is_orm_statement and not _NARROWED.isdisjoint(sql_util.find_tables(statement)):
            raise RuntimeError("A select of the columns of a table is not narrowed: select those of its class.")
        state.statement = statement.options(*_criteria(tuple(hidden)))


@lru_cache(100)
def _criteria(hidden: tuple[str, ...]) -> list[Any]:
    jobs = _jobs.alias()
    of_job = select(jobs.c.id).where(jobs.c.project_id.in_(hidden))
    columns: list[Any] = [Project.id, *(row.project_id for row in _OF_PROJECT), *(row.subject for row in _OF_SUBJECT)]
    conditions = [(column.class_, column.not_in(hidden)) for column in columns]
    conditions += [(row, ~of_job.where(jobs.c.id == row.job_id).exists()) for row in _OF_JOB]
    return [with_loader_criteria(row, condition, include_aliases=True) for row, condition in conditions]
