"""Dependencies of endpoints, as `Annotated` aliases."""

from typing import Annotated, cast

from fastapi import Depends
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from service.app_state import AppState


def state_of(connection: HTTPConnection) -> AppState:
    return cast("AppState", connection.app.state.app_state)


async def _app_state(connection: HTTPConnection) -> AppState:
    return state_of(connection)


AppStateDep = Annotated[AppState, Depends(_app_state)]


async def _request_id(connection: HTTPConnection) -> str:
    return cast("str", connection.state.request_id)


RequestId = Annotated[str, Depends(_request_id)]
"""The request's id, set by `service.http.middleware` or by an authenticated client."""


# `service.http.routing` opens a session for an endpoint alone, in its thread; FastAPI refuses one in a dependency.
ReadSession = Annotated[Session, "reads"]
WriteSession = Annotated[Session, "writes"]  # its changes are committed before the response is sent
