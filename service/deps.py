"""Dependencies of endpoints, as `Annotated` aliases."""

from typing import Annotated, cast

from fastapi import Depends
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from service.app_state import AppState


async def _app_state(connection: HTTPConnection) -> AppState:
    return cast("AppState", connection.app.state.app_state)


AppStateDep = Annotated[AppState, Depends(_app_state)]


async def _request_id(connection: HTTPConnection) -> str:
    return cast("str", connection.state.request_id)


RequestId = Annotated[str, Depends(_request_id)]
"""The request's id, set by `service.http.middleware` or by an authenticated client."""


async def read_session() -> Session:
    """Stand for a session that only reads; `service.http.endpoint` opens it in the endpoint's own thread."""
    raise RuntimeError("A session is opened by service.http.endpoint alone, in the thread of its endpoint.")


async def write_session() -> Session:
    """Stand for a session whose changes are committed before the response is sent."""
    raise RuntimeError("A session is opened by service.http.endpoint alone, in the thread of its endpoint.")


ReadSession = Annotated[Session, Depends(read_session)]
WriteSession = Annotated[Session, Depends(write_session)]
