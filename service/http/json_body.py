from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.app_state import AppState
from service.auth.authentication import Caller
from service.deps import AppStateDep
from service.http.body_limit import allow_json
from service.http.lanes import Lane
from service.schemas.base import LARGE_BYTES, R, parse_request

T = TypeVar("T")

_SCHEMAS = "#/components/schemas/{model}"

_body_models: set[type[BaseModel]] = set()


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Refer to the schema of a body in the OpenAPI document, where `describe_bodies` puts it."""
    _body_models.add(model)
    return {"$ref": _SCHEMAS.format(model=model.__name__)}


def json_body_schema(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Describe an operation's body, for `openapi_extra`."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": body_schema(model)}}}}


def describe_bodies(app: FastAPI) -> None:
    """Add the schemas of all bodies to the application's OpenAPI document, built only when a client requests it."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = describe()["components"]["schemas"]
            _, built = models_json_schema([(model, "validation") for model in _body_models], ref_template=_SCHEMAS)
            schemas.update(sorted(built["$defs"].items()))
        return describe()

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's own way to extend the document


def parse_json_body(
    model: type[R], *, may_be_empty: bool = False
) -> Callable[[Request, AppStateDep, Caller], Awaitable[R]]:
    """Build a dependency that reads and validates the body; an empty one, if it may be, as an object without fields."""

    async def read(request: Request, app_state: AppStateDep, caller: Caller) -> R:
        allow_json(request)
        body = await request.body()
        if len(body) <= LARGE_BYTES:
            return parse_request(model, b"{}" if may_be_empty and not body else body)
        return await run_with_json(app_state, caller.id, body, partial(parse_request, model, body))

    return read


async def run_with_json(
    app_state: AppState, key: str, body: bytes, action: Callable[[], T], lane: Lane | None = None
) -> T:
    """Run `action`, which parses a body of JSON text, in a thread of a lane, by default that of changes.

    A large body needs a slot of the key: by Python's lock, threads that parse delay all others.
    """
    lane = lane or app_state.lanes.changing
    if len(body) <= LARGE_BYTES:
        return await lane.run(action)
    async with app_state.limits.uploads.slot(key):
        return await lane.run(action)
