"""`/mcp`: the tools of `gradient-cli mcp` over HTTP, each request by itself, so that any API process answers it.

The tools send requests to this application with the caller's key. So none can do or see more than that key by the API.
"""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, partial
from importlib import import_module
from typing import Annotated, Any

import anyio
from fastapi import Query, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from core.errors import ExtraMissing, KeyRefused
from service.auth.authentication import Caller, sent_key
from service.deps import AppStateDep, state_of
from service.http.body_limit import allow_json
from service.http.routing import Router
from service.schemas.base import QueryModel

router = Router()

_SECONDS = 120.0  # that a call may take: above the 50 s for which a tool waits
_MAX_ANSWER = 8 * 1024**2  # bytes of an answer of the API, of which a model reads a fraction
_caller: ContextVar[Any] = ContextVar("caller")


class ToolsQuery(QueryModel):
    write: bool = False


@router.post("/mcp", include_in_schema=False)
async def call_tools(
    request: Request, app_state: AppStateDep, caller: Caller, query: Annotated[ToolsQuery, Query()]
) -> Response:
    """Answer one message of the Model Context Protocol; `?write=true` adds the tools that submit and stop jobs."""
    if query.write and not (await app_state.lanes.urgent.run(app_state.keys.rights, caller.id)).allows("submit"):
        raise KeyRefused(f"Your API key {caller.id} ({caller.name}) may only read. Leave write=true out.")
    allow_json(request)
    body = await request.body()
    return _Answer(await asyncio.to_thread(_load, query.write), caller.id, body)


@cache
def _load(write: bool) -> Callable[[], Any]:  # noqa: FBT001 - the key of a cache
    """Return what makes a manager of one request, for the tools of a server; the library is loaded by the first."""
    try:
        tools = import_module("gradient_jobs.agent_tools")
        http = import_module("mcp.server.streamable_http_manager")
    except ModuleNotFoundError as error:
        raise ExtraMissing("/mcp needs", error, "mcp") from error
    for name in ("mcp", "httpx2"):  # which log each request with its query
        logging.getLogger(name).setLevel(logging.WARNING)
    server = tools.build_server(_caller.get, write=write)
    return partial(http.StreamableHTTPSessionManager, server._lowlevel_server, json_response=True, stateless=True)  # noqa: SLF001 - MCPServer has no manager for a request


class _Answer(Response):
    """The response that the library sends to one message; `manage` makes its manager of a request."""

    def __init__(self, manage: Callable[[], Any], key_id: str, message: bytes) -> None:
        super().__init__()
        self._manage, self._key_id, self._message = manage, key_id, message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        app_state, secret = state_of(request), sent_key(request.headers)
        tools, loop = import_module("gradient_jobs.agent_tools"), asyncio.get_running_loop()

        def exchange(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
            return asyncio.run_coroutine_threadsafe(_exchange(request, method, target, headers, body), loop).result()

        async def receive_again() -> Message:
            return {"type": "http.request", "body": unread.pop()} if unread else await receive()

        unread, url = [self._message], app_state.settings.public_url
        _caller.set(tools.Caller(url, secret, partial(tools.InProcess, url, secret, exchange), is_here=False))
        async with app_state.limits.tool_calls.slot(self._key_id):
            with anyio.move_on_after(_SECONDS) as timer:
                manager = self._manage()
                async with manager.run():
                    await manager.handle_request(scope, receive_again, send)
        if timer.cancelled_caught:
            raise HTTPException(503, "The call took too long. Try again, or ask for less.")


async def _exchange(request: Request, method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
    """Send a request to the application, and return the bytes of its response."""
    httpx = import_module("httpx2")  # which the tools' library brings
    transport = httpx.ASGITransport(request.app, client=tuple(request.client or ("", 0)))
    passed_on = {"Accept-Encoding": "identity", "X-Request-Id": request.state.request_id}
    async with httpx.AsyncClient(transport=transport, base_url=str(request.base_url), timeout=None) as client:
        answer = await client.request(method, target, headers=headers | passed_on, content=body)
    if len(answer.content) > _MAX_ANSWER:
        return b'HTTP/1.1 413 Too Large\r\n\r\n{"error": {"message": "The answer is too large. Ask for less."}}'
    lines = [b"HTTP/1.1 %d %b" % (answer.status_code, answer.reason_phrase.encode())]
    lines += [b"%b: %b" % header for header in answer.headers.raw if header[0].lower() != b"content-length"]
    return b"\r\n".join([*lines, b"", answer.content])
