"""JSON bodies, read after authentication."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from pydantic import BaseModel

from service.auth.authentication import Caller
from service.deps import AppStateDep
from service.http.body_limit import allow_json
from service.schemas.base import R, parse_request


def json_body_schema(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Describe an operation's body, for `openapi_extra`."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def parse_json_body(
    model: type[R], *, may_be_empty: bool = False
) -> Callable[[Request, AppStateDep, Caller], Awaitable[R]]:
    """Build a dependency that reads and validates the body; an empty one, if it may be, as an object without fields."""

    async def read(request: Request, app_state: AppStateDep, _caller: Caller) -> R:
        allow_json(request, app_state.settings.api)
        body = await request.body()
        return parse_request(model, b"{}" if may_be_empty and not body else body)

    return read
