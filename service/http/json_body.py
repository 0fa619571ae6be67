"""JSON bodies, read after authentication."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from service.auth.authentication import Caller
from service.deps import AppStateDep
from service.http.body_limit import allow_json
from service.schemas.jobs import RequestModel as Shape
from service.schemas.jobs import parse_request

R = TypeVar("R", bound=Shape)


def json_body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Describe an operation's body, for `openapi_extra`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


def parse_json_body(model: type[R]) -> Callable[[Request, AppStateDep, Caller], Awaitable[R]]:
    """Build a dependency that reads and validates the body."""

    async def read(request: Request, app_state: AppStateDep, _caller: Caller) -> R:
        allow_json(request, app_state.settings.api)
        return parse_request(model, await request.body())

    return read
