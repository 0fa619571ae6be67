"""Members of projects, and what their roles allow. In an open project everybody may at least submit."""

from collections.abc import Sequence

from sqlalchemy import Row, delete, func, select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.credentials import ApiKey, User
from core.db.models.jobs import Project
from core.db.models.project_members import ProjectMember
from core.errors import KeyRefused, NotFound, SpecInvalid
from core.security import api_keys, users
from core.security.actor import record_change
from core.security.visibility import ROLES_OF_KEY

ROLES = ("viewer", "submitter", "maintainer")
"""Each includes those before it. submitter: submit, use secrets, change its own jobs; maintainer: all."""


def roles(session: Session, key_id: str) -> dict[str, str]:
    """Return the roles of a key by project, its own and those of its user; others may submit to an open project."""
    by_project: dict[str, str] = {}
    for project_id, role, closed_at in ROLES_OF_KEY.rows(session, {"key": key_id}):
        least = "viewer" if closed_at else "submitter"
        by_project[project_id] = max(role, least, by_project.get(project_id, least), key=ROLES.index)
    return by_project


def check_may_submit(session: Session, key_id: str, project: Project, *, is_administrator: bool) -> None:
    if project.closed_at and not is_administrator and roles(session, key_id).get(project.id, "viewer") == "viewer":
        raise KeyRefused(
            f"Your API key may only read project {project.name}. Ask a maintainer of the project for the role "
            "`submitter`.",
            field="project",
        )


def members_of(session: Session, project_id: str) -> Sequence[Row[str, str, str]]:
    """Return id (of the user or the key), name (address of the user or name of the key) and role of the members."""
    name = func.coalesce(User.email, ApiKey.name, ProjectMember.member).label("name")
    rows = (
        select(ProjectMember.member.label("id"), name, ProjectMember.role)
        .outerjoin(User, User.id == ProjectMember.member)
        .outerjoin(ApiKey, ApiKey.id == ProjectMember.member)
        .where(ProjectMember.project_id == project_id)
    )
    return session.execute(rows.order_by(name, ProjectMember.member)).all()


def put(session: Session, project: Project, named: str, role: str) -> Row[str, str, str]:
    """Give a user, by address, or a key, by id, a role in a project."""
    member = _find(session, named)
    session.merge(ProjectMember(project_id=project.id, member=member, role=role))
    record_change(session, "member_set", f"{project.name}: {named} {role}")
    return next(row for row in _with_maintainer(session, project) if row.id == member)


def remove(session: Session, project: Project, named: str) -> None:
    rows = ProjectMember.project_id == project.id, ProjectMember.member.in_({named, _find(session, named)})
    if not session.scalars(delete(ProjectMember).where(*rows).returning(ProjectMember.member)).all():
        raise NotFound(f"{named[:80]!r} is no member of {project.name}.", field="member")
    record_change(session, "member_removed", f"{project.name}: {named}")
    _with_maintainer(session, project)


def _with_maintainer(session: Session, project: Project) -> Sequence[Row[str, str, str]]:
    """Return the members of a project, which has a maintainer if it is closed."""
    session.flush()
    members = members_of(session, project.id)
    if project.closed_at is not None and all(member.role != ROLES[-1] for member in members):
        raise SpecInvalid(f"{project.name} is closed and needs a maintainer. Name another one first.", field="role")
    return members


def _find(session: Session, named: str) -> str:
    """Return the id of a user by its address, or of the user of a key by its id; of a key without a user, its own."""
    if "@" in named:
        return users.get(session, named).id
    if session.get(User, named) is not None:
        return named
    return users.identity_of(session, api_keys.get(session, named[:100]).id)


def set_role(session: Session, project: Project, user: User, role: str | None) -> None:
    """Give a user the role that its groups have in a project; None: none."""
    member = session.get(ProjectMember, (project.id, user.id))
    if role is None and member is not None:
        session.delete(member)
        record_change(session, "member_removed", f"{project.name}: {user.email}, by its groups")
    elif role is not None and (member is None or member.role != role):
        session.merge(ProjectMember(project_id=project.id, member=user.id, role=role))
        record_change(session, "member_set", f"{project.name}: {user.email} {role}, by its groups")


def set_closed(session: Session, project: Project, key_id: str, *, closed: bool) -> None:
    """Close or open a project; who closes it becomes a maintainer, and its owner unless it has one."""
    if closed == (project.closed_at is not None):
        return
    project.closed_at = session.scalars(select(now())).one() if closed else None
    has_maintainer = ROLES[-1] in {member.role for member in members_of(session, project.id)}
    owner = key_id if has_maintainer else project.created_by or key_id
    for named in {users.identity_of(session, key): key for key in (owner, key_id)}.values() if closed else ():
        put(session, project, named, ROLES[-1])
    session.flush()
    record_change(session, "project_closed" if closed else "project_opened", project.name)
