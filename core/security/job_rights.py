"""The rights of a job's owner when an attempt begins, which may have been taken away since the job was submitted."""

import json
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import ColumnElement, String, and_, bindparam, delete, insert, or_, select
from sqlalchemy.orm import Session

from core.db.database import Base, now
from core.db.models.credentials import ApiKey, UserKey
from core.db.models.jobs import Job, Project
from core.db.prepared import Prepared
from core.jobs.cloud_resources import InstallationValue
from core.jobs.spec.dependencies import parse_dependencies
from core.security.key_rights import KeyRights
from core.security.visibility import ROLES_OF_KEY, Viewer, hidden_projects, seeing_as

_ADMINISTRATORS = "administrators"
_NOT_VALID = "the API key that submitted it was revoked or has expired"
_NO_PROJECT = "its owner may no longer submit to its project"
_NO_JOB = "its owner may no longer see a job that it names in --input or --after"

_keys, _users, _values, _projects = (
    Base.metadata.tables[row.__tablename__] for row in (ApiKey, UserKey, InstallationValue, Project)
)
_key = bindparam("key", type_=String)
_user = select(_users.c.user_id).where(_users.c.key_id == _key).scalar_subquery()
_is_valid = and_(_keys.c.revoked_at.is_(None), or_(_keys.c.expires_at.is_(None), _keys.c.expires_at > now()))
_KEYS_OF_OWNER = Prepared(
    select(
        *(_keys.c.id, _keys.c.rights, _is_valid),
        select(_values.c.value).where(_values.c.name == _ADMINISTRATORS).scalar_subquery(),
    ).where(or_(_keys.c.id == _key, _keys.c.id.in_(select(_users.c.key_id).where(_users.c.user_id == _user))))
)
_CLOSED_AT = Prepared(select(_projects.c.closed_at).where(_projects.c.id == bindparam("project")))


class LostRight(NamedTuple):
    text: str
    jobs: ColumnElement[bool]  # the waiting jobs that it ends


def find_lost(session: Session, job: Job) -> LostRight | None:
    """Return what the owner of a job needs for it to start and no longer has; in open projects nothing is needed."""
    viewer = _viewer_of_owner(session, job.submitted_by)
    lost_project = _lost_project(session, viewer, job.project_id)
    if lost_project is not None:
        same = Job.project_id == job.project_id, Job.submitted_by == job.submitted_by
        return LostRight(lost_project, and_(*same))
    named = parse_dependencies(job.spec.after, job.spec.inputs) if job.spec.after or job.spec.inputs else ()
    if named and _names_hidden(session, viewer, named):
        return LostRight(_NO_JOB, Job.id == job.id if job.array_id is None else Job.array_id == job.array_id)
    return None


def _viewer_of_owner(session: Session, key_id: str) -> Viewer:
    """Return what the owner sees by this key: nothing closed unless it, or another key of its user, is valid."""
    keys = _KEYS_OF_OWNER.rows(session, {"key": key_id})
    rights = next((KeyRights.of(stored) for same_id, stored, *_ in keys if same_id == key_id), KeyRights())
    if not any(is_valid for _, _, is_valid, _ in keys):
        return Viewer("", rights.projects)
    administrators = keys[0][3]
    # Unknown until a service has started.
    is_administrator = administrators is None or key_id in json.loads(administrators) or rights.allows("admin")
    return Viewer(key_id, rights.projects, is_administrator)


def _lost_project(session: Session, viewer: Viewer, project_id: str) -> str | None:
    if viewer.projects is not None and project_id not in viewer.projects:
        return _NO_PROJECT
    rows = _CLOSED_AT.rows(session, {"project": project_id})
    if viewer.sees_closed or not rows or rows[0][0] is None:
        return None
    if not viewer.key_id:
        return _NOT_VALID
    roles = ROLES_OF_KEY.rows(session, {"key": viewer.key_id})
    may_submit = any(of_project == project_id and role != "viewer" for of_project, role, _ in roles)
    return None if may_submit else _NO_PROJECT


def _names_hidden(session: Session, viewer: Viewer, ids: Collection[str]) -> bool:
    with seeing_as(viewer):
        hidden = hidden_projects(session)
    named = or_(Job.id.in_(ids), Job.array_id.in_(ids)), Job.project_id.in_(hidden)
    return bool(hidden) and session.scalar(select(Job.id).where(*named).limit(1)) is not None


def record_administrators(session: Session, key_ids: Collection[str]) -> None:
    """Store whose keys the service's settings make administrators: those of workers need not say so."""
    value, is_row = json.dumps(sorted(key_ids)), InstallationValue.name == _ADMINISTRATORS
    if session.scalar(select(InstallationValue.value).where(is_row)) != value:
        session.execute(delete(InstallationValue).where(is_row))
        session.execute(insert(InstallationValue).values(name=_ADMINISTRATORS, value=value))
