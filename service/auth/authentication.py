"""Authentication: an API key in a header, or a browser session opened with one."""

import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request

from core.db.models.credentials import ApiKey
from core.errors import AdministratorOnly, KeyNeeded, KeyRefused, Unauthorized
from core.jobs import queries
from core.monitoring.logging import bind
from core.security.actor import Actor, act_as
from core.security.key_rights import KeyRights
from core.security.visibility import Viewer, hidden_projects, see_as, seeing_as
from service.app_state import AppState
from service.auth.session_cookie import session_token
from service.deps import AppStateDep, state_of

_UNINDEXED_FILTERS = frozenset({"tag", "query", "since", "q", "sort", "ids", "charts"})
READING_ENDPOINTS = frozenset({"read_contents", "get_public_job", "open_tensorboard", "sign_out", "call_tools"})
"""Functions of routes that send a body, but change nothing that a key with the scope `read` may not change."""
_READING = frozenset({"GET", "HEAD"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")

# A route's key, for its description. The functions below read it, since FastAPI solves what is below a dependency anew
# wherever that is used.
KEY_SCHEMES = [
    Security(APIKeyHeader(name="x-api-key", scheme_name="ApiKey", auto_error=False, description="An API key")),
    Security(HTTPBearer(scheme_name="Bearer", auto_error=False, description="An API key")),
]

KEY_SECURITY: list[dict[str, list[str]]] = [{"ApiKey": []}, {"Bearer": []}]  # the same in an operation's words


@dataclass(frozen=True, slots=True)
class Principal:
    id: str
    name: str
    # token of the browser session that authenticated the caller; None: the key itself did
    session_token: str | None = field(default=None, repr=False)


def sent_key(headers: Headers) -> str:
    """Return the API key of a request; empty: it has none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return (headers.get("x-api-key") or (token if scheme.lower() == "bearer" else "")).strip()


async def require_key(connection: HTTPConnection) -> Principal:
    """Authenticate the API key, and use the client's request id."""
    app_state, secret = state_of(connection), sent_key(connection.headers)
    if not secret:
        raise Unauthorized("The request has no API key. Send one as `x-api-key` or `Authorization: Bearer`.")
    key = app_state.keys.cached(secret)
    if key is None:
        key = await app_state.lanes.urgent.run(app_state.keys.authenticate, secret)
    _use_client_request_id(connection)
    return _count_request(connection, app_state, key, Principal(key.id, key.name))


def _count_request(connection: HTTPConnection, app_state: AppState, key: ApiKey, principal: Principal) -> Principal:
    """Check the scope of a request's key and count the request, once even if several dependencies need the key."""
    if not hasattr(connection.state, "caller"):
        connection.state.caller = principal
        _check_scope(connection, key)
        address = connection.client.host if connection.client else None
        app_state.keys.used_from(key.id, address)
        act_as(Actor(principal.id, address, app_state.record.reads))
        see_as(viewer_of(app_state, key.id, KeyRights.of(key.rights)))
        bind(request_id=getattr(connection.state, "request_id", None), key_id=principal.id)
        app_state.limits.requests.acquire(principal.id)
    return principal


def viewer_of(app_state: AppState, key_id: str, rights: KeyRights | None = None) -> Viewer:
    rights = rights or app_state.keys.rights(key_id)
    sees_closed = key_id in app_state.settings.sign_in.administrators or rights.allows("admin")
    return Viewer(key_id, rights.projects, sees_closed)


def sees_projects(app_state: AppState, session: Session, key_id: str, ids: Collection[str]) -> bool:
    """Return whether none of these ids is that of a project which is hidden from a key."""
    with seeing_as(viewer_of(app_state, key_id)):
        return set(ids).isdisjoint(hidden_projects(session))


async def require_key_or_session(connection: HTTPConnection) -> Principal:
    """Authenticate the API key, or else the browser session."""
    app_state = state_of(connection)
    token = session_token(connection, app_state.settings)
    if not token or sent_key(connection.headers):
        return await require_key(connection)
    key = await app_state.lanes.urgent.run(app_state.sessions.key, token)
    return _count_request(connection, app_state, key, Principal(key.id, key.name, token))


def reads_only(connection: HTTPConnection) -> bool:
    return connection.scope.get("method") in _READING or connection.scope["endpoint"].__name__ in READING_ENDPOINTS


def _check_scope(connection: HTTPConnection, key: ApiKey) -> None:
    if not KeyRights.of(key.rights).allows("submit") and not reads_only(connection):
        raise KeyRefused(
            f"Your API key {key.id} ({key.name}) may only read. Ask an administrator for a key with the scope `submit`."
        )


def authorization(app_state: AppState, caller: Principal, job_ids: Collection[str]) -> Callable[[], None]:
    """Return a function, to call in a thread: it raises an error once the caller may no longer read these jobs."""

    def check() -> None:
        if caller.session_token is not None:
            app_state.sessions.key(caller.session_token)
        else:
            app_state.keys.get(caller.id)
        with seeing_as(viewer_of(app_state, caller.id)), app_state.database.read() as session:
            for job_id in job_ids:
                queries.get(session, job_id)

    return check


def _use_client_request_id(connection: HTTPConnection) -> None:
    # Only after authentication: logs are searched by these ids.
    given = connection.headers.get("x-request-id", "")
    if _REQUEST_ID.match(given):
        connection.state.request_id = given


Caller = Annotated[Principal, Depends(require_key)]
"""A key in a header, required by every API endpoint that changes something."""

PageCaller = Annotated[Principal, Depends(require_key_or_session)]
"""A key in a header, or a browser's session cookie: enough to read, and for the dashboard's own forms."""


async def _acquire_search_slot(app_state: AppStateDep, caller: PageCaller) -> AsyncIterator[None]:
    async with app_state.limits.searches.slot(caller.id):
        yield


SearchSlot = Depends(_acquire_search_slot, scope="function")
"""Holds one of the key's slots for requests that read many rows."""


async def _acquire_list_slot(request: Request, caller: PageCaller) -> AsyncIterator[None]:
    """Hold a slot of the key for a list with filters that have no index."""
    if request.query_params.keys().isdisjoint(_UNINDEXED_FILTERS):
        yield
        return
    async with state_of(request).limits.searches.slot(caller.id):
        yield


ListSlot = Depends(_acquire_list_slot, scope="function")


def is_administrator(app_state: AppState, key_id: str) -> bool:
    return key_id in app_state.settings.sign_in.administrators or app_state.keys.rights(key_id).allows("admin")


def require_key_again(app_state: AppState, caller: Principal, form: Mapping[str, str]) -> None:
    """Require a form to have the key of its session, too, for what would outlive it: the session may be a copy."""
    if caller.session_token is None or app_state.sessions.recent_user(caller.session_token):
        return
    with suppress(Unauthorized):
        if app_state.keys.authenticate(form.get("own_key", "").strip()).id == caller.id:
            return
    provider = app_state.provider.name
    instead = "" if provider is None else f" If you signed in with {provider}, sign out and in, then repeat this."
    raise KeyNeeded(
        f"Enter the API key {caller.id} ({caller.name}) that you are signed in with: nothing was changed.{instead}"
    )


def require_administrator(app_state: AppState, caller: Principal) -> None:
    if not is_administrator(app_state, caller.id):
        raise AdministratorOnly(
            f"Only administrators may do this, and your key {caller.id} ({caller.name}) is not an administrator's "
            "key. Ask an administrator for one with the scope `admin`, or have the key's id added to "
            "GRADIENT_SIGN_IN__ADMINISTRATORS."
        )
