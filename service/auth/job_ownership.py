"""Owners: only they and administrators change a job or a comparison; all keys may read and clone.

The owner is the key that submitted it, with the other keys of the same user.

The routes' own table decides where the rule applies: to every route below a job or a comparison that does not only
read, unless `OPEN_ENDPOINTS` names it. Routes that get ids in a body call `require_owner` themselves.
"""

from collections.abc import Collection, Iterable, Mapping

from fastapi import Depends
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from core.db.models.comparisons import Comparison
from core.db.models.jobs import Job
from core.errors import OwnerOnly
from core.security import api_keys, users
from service.auth.authentication import PageCaller, Principal, is_administrator
from service.deps import AppState, AppStateDep

OPEN_ENDPOINTS = frozenset({"clone_job", "read_contents"})
"""Functions of routes that send a body, but change nothing of the job that they name."""
_READING = frozenset({"GET", "HEAD"})
_OWNED: dict[str, type[Job] | type[Comparison]] = {"job_id": Job, "comparison_id": Comparison}
"""Tables of what has an owner, by the parameter of a path."""


def require_owner(
    session: Session, app_state: AppState, caller: Principal, owned_id: str, table: type[Job] | type[Comparison] = Job
) -> None:
    """Refuse everybody but the owner and administrators; what does not exist is left for the endpoint to report.

    Raises:
        OwnerOnly: The caller may not change it.
    """
    owner_id = session.scalar(select(table.submitted_by).where(table.id == owned_id))
    if owner_id is not None and not changeable_owners(session, app_state, caller, [owner_id]):
        raise _refusal(session, caller, f"{table.__name__} {owned_id}", owner_id)


def require_owner_of_all(session: Session, app_state: AppState, caller: Principal, project_id: str) -> None:
    """Refuse to delete a project with jobs of others.

    Raises:
        OwnerOnly: The caller may not change one of the project's jobs.
    """
    if _may_change_all(app_state, caller):
        return
    own = users.keys_of_same_user(session, caller.id)
    of_others = select(Job.submitted_by).where(
        Job.project_id == project_id, Job.deleted_at.is_(None), Job.submitted_by.not_in(own)
    )
    owner_id = session.scalar(of_others.limit(1))
    if owner_id is not None:
        raise _refusal(session, caller, f"A job of project {project_id}", owner_id)


def changeable_owners(
    session: Session, app_state: AppState, caller: Principal, owner_ids: Iterable[str]
) -> Collection[str]:
    """Return those of the owners whose jobs and comparisons the caller may change."""
    owners = set(owner_ids)
    if owners <= {caller.id} or _may_change_all(app_state, caller):
        return owners
    return owners & users.keys_of_same_user(session, caller.id)


def _may_change_all(app_state: AppState, caller: Principal) -> bool:
    return app_state.settings.sign_in.shared_jobs or is_administrator(app_state, caller)


def _refusal(session: Session, caller: Principal, what: str, owner_id: str) -> OwnerOnly:
    owner = api_keys.names(session, [owner_id]).get(owner_id, "an unknown key")
    return OwnerOnly(
        f"{what} belongs to the API key {owner!r} ({owner_id}), and yours is {caller.name!r} ({caller.id}). Only its "
        "owner and administrators may stop, delete, change or enter it: ask one of them, or work with a clone."
    )


async def _check_path(connection: HTTPConnection, app_state: AppStateDep, caller: PageCaller) -> None:
    named = connection.path_params.keys() & _OWNED.keys()
    reads = connection.scope.get("method") in _READING or connection.scope["endpoint"].__name__ in OPEN_ENDPOINTS
    if named and not reads:
        await app_state.lanes.urgent.run(
            _check, app_state, caller, {name: connection.path_params[name] for name in named}
        )


def _check(app_state: AppState, caller: Principal, named: Mapping[str, str]) -> None:
    with app_state.database.read() as session:
        for name, owned_id in named.items():
            require_owner(session, app_state, caller, owned_id, _OWNED[name])


OwnerCheck = Depends(_check_path)
"""The rule, for all routes of a router."""
