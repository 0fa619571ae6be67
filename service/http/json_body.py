"""JSON bodies, read after authentication."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from service.auth.api_keys import Caller
from service.deps import Stores
from service.http.body_limit import allow_json
from service.schemas.jobs import Request as Shape
from service.schemas.jobs import parse

R = TypeVar("R", bound=Shape)


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe an operation's body, for `openapi_extra`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


def posted(model: type[R]) -> Callable[[Request, Stores, Caller], Awaitable[R]]:
    """Build a dependency that reads and validates the body."""

    async def read(request: Request, stores: Stores, _caller: Caller) -> R:
        allow_json(request, stores.settings.api)
        return parse(model, await request.body())

    return read
