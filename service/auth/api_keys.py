"""Authentication: an API key in a header, or a browser session opened with one."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import Depends, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from core.errors import Unauthorized
from service.auth.sessions import session_token
from service.deps import OpenStores, Stores

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")

_HEADER = APIKeyHeader(name="x-api-key", scheme_name="ApiKey", auto_error=False, description="An API key")
_BEARER = HTTPBearer(scheme_name="Bearer", auto_error=False, description="An API key")

_HeaderKey = Annotated[str | None, Security(_HEADER)]
_BearerKey = Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The authenticated caller: the id and the name of the API key."""

    id: str
    name: str


async def require_key(connection: HTTPConnection, stores: Stores, header: _HeaderKey, bearer: _BearerKey) -> KeyHolder:
    """Authenticate the API key, and take over the client's request id.

    Raises:
        Unauthorized: The key is missing or not valid.
        LimitReached: The key sent too many requests.
    """
    secret = (header or (bearer.credentials if bearer else "")).strip()
    if not secret:
        raise Unauthorized("No API key came with the request. Send it as `x-api-key` or `Authorization: Bearer`.")
    key = stores.keys.cached(secret)
    if key is None:
        key = await run_in_threadpool(stores.keys.authenticate, secret)
    _take_request_id(connection)
    return _counted(connection, stores, KeyHolder(key.id, key.name))


def _counted(connection: HTTPConnection, stores: OpenStores, holder: KeyHolder) -> KeyHolder:
    """Count a request against its key's limit, once even if several dependencies ask for the key."""
    if not getattr(connection.state, "counted", False):
        connection.state.counted = True
        stores.limits.requests.take(holder.id)
    return holder


async def require_key_or_session(
    connection: HTTPConnection, stores: Stores, header: _HeaderKey, bearer: _BearerKey
) -> KeyHolder:
    """Authenticate the API key, or else the browser session.

    Raises:
        Unauthorized: Both are missing, or the one given is not valid.
        LimitReached: The key sent too many requests.
    """
    token = session_token(connection, stores.settings)
    if header or bearer or not token:
        return await require_key(connection, stores, header, bearer)
    key = await run_in_threadpool(stores.sessions.key, token)
    return _counted(connection, stores, KeyHolder(key.id, key.name))


def _take_request_id(connection: HTTPConnection) -> None:
    # Only after authentication: logs are searched by these ids.
    given = connection.headers.get("x-request-id", "")
    if _REQUEST_ID.match(given):
        connection.state.request_id = given
        structlog.contextvars.bind_contextvars(request_id=given)


Caller = Annotated[KeyHolder, Depends(require_key)]
"""A key in a header, required by every API endpoint that changes something."""

PageCaller = Annotated[KeyHolder, Depends(require_key_or_session)]
"""A key in a header, or a browser's session cookie: enough to read, and for the dashboard's own forms."""


async def _searching(stores: Stores, caller: PageCaller) -> AsyncIterator[None]:
    async with stores.limits.searches.taken(caller.id):
        yield


Searching = Depends(_searching, scope="function")
"""Holds one of the key's slots for requests that read many rows."""
