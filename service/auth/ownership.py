"""Owners: only they and administrators change what they created; all keys that see it may read and clone it.

The owner of a job, a comparison, a schedule, a sweep or a receiver of notifications is the key that submitted it, that
of a project the key that made it, each with the other keys of the same user. What belongs to all (secrets and
registries of all projects, workers) is the administrators'. In a project, roles come first: a maintainer changes
everything of it, a viewer nothing, and a closed project itself is changed by its maintainers alone.

The routes' own table decides where the rule applies: to every route below one of these that does not only read, unless
`OPEN_ENDPOINTS` names it. Routes that get ids in a body call the functions themselves.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from fastapi import Depends
from sqlalchemy import null, select
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from core.db.models.comparisons import Comparison
from core.db.models.jobs import Job, Project
from core.db.models.notifications import Receiver
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.errors import OwnerOnly
from core.security import api_keys, members, users
from core.security.credentials import ALL_PROJECTS
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal, is_administrator, reads_only, require_administrator
from service.deps import state_of

OPEN_ENDPOINTS = frozenset({"clone_job"})
"""Functions of routes that change something, but nothing of the job that they name."""
_Table: TypeAlias = type[Job] | type[Comparison] | type[Schedule] | type[Sweep] | type[Receiver]
_OWNED: dict[str, _Table] = {
    "job_id": Job,
    "comparison_id": Comparison,
    "schedule_id": Schedule,
    "sweep_id": Sweep,
    "receiver": Receiver,
}
"""Tables of what has an owner in its row, by the parameter of a path."""
_PROJECT = "project_id"
_OF_ALL = ("/secrets/", "/registries/", "/workers/", "/ui/machines/")  # starts of the paths of what belongs to all


def require_owner(session: Session, app_state: AppState, caller: Principal, owned_id: str, table: _Table = Job) -> None:
    """Refuse everybody but the owner and administrators; what does not exist is left for the endpoint to report."""
    project_id: Any = getattr(table, "project_id", null())  # a receiver is in none
    owned = session.execute(select(table.submitted_by, project_id).where(table.id == owned_id)).one_or_none()
    if owned is not None and not changeable(session, app_state, caller.id, [tuple(owned)]):
        raise _refusal(
            session, caller, f"{table.__name__} {owned_id}", owned[0], "stop, delete, change or enter it", "a clone"
        )


def require_project_owner(session: Session, app_state: AppState, caller: Principal, project_id: str) -> None:
    """Refuse everybody but the owner of a project and administrators; of ALL_PROJECTS everybody but administrators."""
    if project_id == ALL_PROJECTS:
        _require_administrator(session, app_state, caller)
        return
    project = session.get(Project, project_id)
    if project is None:
        return
    owner_id = project.created_by
    if members.roles(session, caller.id).get(project_id) == "maintainer" or is_administrator(app_state, caller.id):
        return
    if project.closed_at is not None:
        raise OwnerOnly(
            f"Only maintainers of project {project.name} and administrators may change it, its secrets, registries and "
            "storage. Ask one of them for the role `maintainer`."
        )
    if owner_id is None:
        _require_administrator(session, app_state, caller)
    elif not changeable(session, app_state, caller.id, [(owner_id, None)]):
        what = "change it, its secrets, registries and storage"
        raise _refusal(session, caller, f"Project {project_id}", owner_id, what, "your own project")


def require_owner_of_all(session: Session, app_state: AppState, caller: Principal, project_id: str) -> None:
    is_maintainer = members.roles(session, caller.id).get(project_id) == "maintainer"
    if is_maintainer or _may_change_all(app_state, caller.id):
        return
    caller_keys = users.keys_of_same_user(session, caller.id)
    of_others = select(Job.submitted_by).where(
        Job.project_id == project_id, Job.deleted_at.is_(None), Job.submitted_by.not_in(caller_keys)
    )
    owner_id = session.scalar(of_others.limit(1))
    if owner_id is not None:
        what = "stop, delete, change or enter it"
        raise _refusal(session, caller, f"A job of project {project_id}", owner_id, what, "a clone")


def changeable(
    session: Session, app_state: AppState, key_id: str, owned: Iterable[tuple[str, str | None]]
) -> Collection[tuple[str, str | None]]:
    """Return those of what is owned, each by a key in a project or in none, that the caller with this key may change.

    A maintainer may change everything of the project; a viewer nothing.
    """
    pairs = set(owned)
    if is_administrator(app_state, key_id):
        return pairs
    roles, keys = members.roles(session, key_id), users.keys_of_same_user(session, key_id)

    def may_change(owner: str, project_id: str | None) -> bool:
        role = roles.get(project_id or "")
        is_owner = owner in keys or app_state.settings.sign_in.shared_jobs
        return role == "maintainer" or (is_owner and role != "viewer")

    return {pair for pair in pairs if may_change(*pair)}


def _may_change_all(app_state: AppState, key_id: str) -> bool:
    return app_state.settings.sign_in.shared_jobs or is_administrator(app_state, key_id)


def _require_administrator(session: Session, app_state: AppState, caller: Principal) -> None:
    if _may_change_all(app_state, caller.id):
        return
    administrators = app_state.settings.sign_in.administrators
    # Where the settings name nobody, the only one is the key of the API's own machine: until that is used, whoever has
    # all other keys is alone here.
    if len(administrators) <= 1 and not api_keys.others_in_use(
        session, users.keys_of_same_user(session, caller.id), unless_unused=administrators
    ):
        return
    require_administrator(app_state, caller)


def _refusal(session: Session, caller: Principal, what: str, owner_id: str, may: str, instead: str) -> OwnerOnly:
    owner = api_keys.names(session, [owner_id]).get(owner_id, "an unknown key")
    return OwnerOnly(
        f"{what} belongs to the API key {owner!r} ({owner_id}); your key is {caller.name!r} ({caller.id}). Only the "
        f"owner and administrators may {may}: ask one of them, or use {instead}."
    )


async def _check_path(connection: HTTPConnection, caller: PageCaller) -> None:
    app_state, scope, named = state_of(connection), connection.scope, connection.path_params
    is_open = reads_only(connection) or scope["endpoint"].__name__ in OPEN_ENDPOINTS
    if not is_open and (named.keys() & {*_OWNED, _PROJECT} or scope["path"].startswith(_OF_ALL)):
        await app_state.lanes.urgent.run(_check, app_state, caller, scope["path"], named)


def _check(app_state: AppState, caller: Principal, path: str, named: Mapping[str, str]) -> None:
    with app_state.database.read() as session:
        for name in named.keys() & _OWNED.keys():
            require_owner(session, app_state, caller, named[name], _OWNED[name])
        if _PROJECT in named or path.startswith(_OF_ALL):
            require_project_owner(session, app_state, caller, named.get(_PROJECT, ALL_PROJECTS))


OwnerCheck = Depends(_check_path)  # the rule, for all routes of a router
