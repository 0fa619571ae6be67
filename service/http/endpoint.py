"""Endpoints: their parameters and dependencies are solved in the event loop, and they run in one call of a thread.

FastAPI describes the routes: their parameters, dependencies and schemas. It would run each part of a request in a
thread of its own turn, and so keep a session, and its connection, while the request waits for the next thread.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from fastapi._compat import ModelField
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from pydantic import BaseModel
from starlette._utils import get_route_path
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from core.errors import GradientError
from service.app_state import AppState
from service.deps import read_session, write_session
from service.http.lanes import Lane, Lanes
from service.schemas.base import check_encoding, check_texts

_SAFE_METHODS = {"GET", "HEAD"}
_URGENT_ENDPOINTS = frozenset({"stop_job", "sign_in", "show_sign_in", "sign_out", "login"})
_FILE_MODULES = frozenset(
    {"artifacts", "artifact_pages", "storage", "workspaces", "s3_read", "signed_links", "logs", "log_page"}
)
"""Modules of endpoints that read files, which may be far away."""
_ENDPOINT = "gradient.endpoint"


@dataclass(slots=True)
class _Call:
    dependant: Dependant
    parts: list[tuple[str | None, int]] = field(default_factory=list)
    """The dependencies whose results it gets: name of the parameter, if it has one, and position."""
    session: str | None = None  # name of the parameter that gets a session
    writes: bool = False
    is_generator: bool = field(init=False)
    fields: list[tuple[list[ModelField], str]] = field(init=False)
    """Its parameters from each part of a request that it reads, and the attribute with that part."""
    request_names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.is_generator = inspect.isasyncgenfunction(self.function)
        wanted = self.dependant
        parts = (
            (wanted.path_params, "path_params"),
            (wanted.query_params, "query_params"),
            (wanted.header_params, "headers"),
            (wanted.cookie_params, "cookies"),
        )
        self.fields = [part for part in parts if part[0]]
        self.request_names = [one for one in (wanted.request_param_name, wanted.http_connection_param_name) if one]

    @property
    def function(self) -> Callable[..., Any]:
        function = self.dependant.call
        assert function is not None  # noqa: S101 - for mypy
        return function

    def require_async(self) -> None:
        """Refuse a dependency that would need a thread or a session: only endpoints have them."""
        function = self.function
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        if self.session is not None or not (self.is_generator or is_async):
            raise TypeError(f"{function}: a dependency has to be async, and has no session; see service.http.lanes")


class Endpoint:
    """Serves one route.

    `context`: the route, as FastAPI describes it, with what its routers add. Raises `TypeError`: the route needs
    something that only FastAPI's own way has.
    """

    def __init__(self, context: RouteContext) -> None:
        self.route = context.original_route
        self.methods: set[str] = context.methods or set()
        self.path_regex, self.convertors = context.path_regex, context.param_convertors
        self.function: Callable[..., Any] = context.endpoint  # type: ignore[assignment] # routes of the API have one
        self._status: int | None = context.status_code
        self._calls: list[_Call] = []
        self._add(context.dependant, {})
        *dependencies, self._own = self._calls
        for call in dependencies:
            call.require_async()
        self._has_generators = any(call.is_generator for call in dependencies)
        self._is_async = inspect.iscoroutinefunction(self.function)
        self._explain: Callable[[GradientError], None] | None = getattr(self.route, "explain_error", None)

    def _add(self, dependant: Dependant, known: dict[object, int]) -> int:
        """Add a call after those that it depends on; return its position."""
        if dependant.body_params:
            raise TypeError(f"{dependant.call}: bodies are read by dependencies, after authentication")
        call = _Call(dependant)
        for part in dependant.dependencies:
            if part.call in {read_session, write_session}:
                call.session, call.writes = part.name, part.call is write_session
            else:
                place = known.get(part.call)
                call.parts.append((part.name, self._add(part, known) if place is None else place))
        self._calls.append(call)
        known[dependant.call] = place = len(self._calls) - 1
        return place

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        if not self._has_generators:
            response = await self._respond(request, None, None)
            await response(scope, receive, send)
            return
        async with AsyncExitStack() as until_sent:
            async with AsyncExitStack() as until_returned:
                response = await self._respond(request, until_returned, until_sent)
            await response(scope, receive, send)

    async def _respond(
        self, request: Request, until_returned: AsyncExitStack | None, until_sent: AsyncExitStack | None
    ) -> Response:
        results: list[Any] = []
        errors: list[Any] = []
        draft = Response()
        del draft.headers["content-length"]
        draft.status_code = self._status or 200
        try:
            _check_address(request)
            for call in self._calls:
                values = _values(call, results, request, draft, errors)
                if errors or call is self._own:
                    results.append(None)
                    continue
                results.append(await _solve(call, values, until_sent, until_returned))
            if errors:
                raise RequestValidationError(errors)
            return await self._run(request, values, draft)
        except GradientError as error:
            if self._explain is not None:
                self._explain(error)
            raise

    async def _run(self, request: Request, values: dict[str, Any], draft: Response) -> Response:
        own = self._own
        if self._is_async:
            return _as_response(await self.function(**values), draft)
        app_state: AppState = request.app.state.app_state

        def run() -> Response:
            if own.session is None:
                return _as_response(self.function(**values), draft)
            database = app_state.database
            with database.write() if own.writes else database.read() as session:
                return _as_response(self.function(**values, **{own.session: session}), draft)

        return await self._lane(app_state.lanes, request.method).run(run)

    def _lane(self, lanes: Lanes, method: str) -> Lane:
        if self.function.__module__ == "service.routes.worker.files":
            return lanes.worker_files
        if self.function.__name__ in _URGENT_ENDPOINTS:
            return lanes.urgent
        if method not in _SAFE_METHODS:
            return lanes.changing
        return lanes.files if self.function.__module__.rpartition(".")[2] in _FILE_MODULES else lanes.reading


def _check_address(request: Request) -> None:
    """Refuse in a path or a query what is not UTF-8, and a NUL: SQLite finds what is before it."""
    for name, raw in (("path", request.scope.get("raw_path", b"")), ("query", request.scope["query_string"])):
        check_encoding(raw, f"The {name} of the address")
    if "\0" in request.scope["path"]:
        check_texts(request.path_params)
    if b"%00" in request.scope["query_string"]:
        check_texts(dict(request.query_params.multi_items()))


def _values(call: _Call, results: list[Any], request: Request, draft: Response, errors: list[Any]) -> dict[str, Any]:
    """Return the values of a call's parameters; add what is wrong with the request's own to `errors`."""
    values = {name: results[place] for name, place in call.parts if name is not None}
    for fields, part in call.fields:
        found, wrong = request_params_to_args(fields, getattr(request, part))
        values.update(found)
        errors += wrong
    for name in call.request_names:
        values[name] = request
    if call.dependant.response_param_name:
        values[call.dependant.response_param_name] = draft
    return values


async def _solve(
    call: _Call, values: dict[str, Any], until_sent: AsyncExitStack | None, until_returned: AsyncExitStack | None
) -> Any:  # noqa: ANN401 - what a dependency returns
    if not call.is_generator:
        return await call.function(**values)
    stack = until_returned if call.dependant.scope == "function" else until_sent
    assert stack is not None  # noqa: S101 - for mypy
    return await stack.enter_async_context(asynccontextmanager(call.function)(**values))


def _as_response(result: Any, draft: Response) -> Response:  # noqa: ANN401 - what an endpoint returns
    if isinstance(result, Response):
        return result
    if isinstance(result, BaseModel):
        response = Response(result.model_dump_json(by_alias=True), draft.status_code, media_type="application/json")
    elif draft.status_code == 204:  # noqa: PLR2004 - no content
        response = Response(status_code=204)
    else:
        response = JSONResponse(jsonable_encoder(result), draft.status_code)
    response.raw_headers.extend(draft.raw_headers)
    return response


class Dispatcher(BaseRoute):
    """Finds and serves the endpoint of a request; a wrong path or method is left to the next routes.

    FastAPI's routers try every route in turn, and each router that has it twice.

    `routes`: the application's routes; examined in their order, when a request needs them.
    """

    path = ""  # matches many; lists of routes ask for one

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._unread = iter(routes)
        self._endpoints: dict[str, list[Endpoint]] = {}  # by the first part of their paths

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        path, method = get_route_path(scope), scope["method"]
        for endpoint in self._candidates(_first_part(path)):
            if method in endpoint.methods and (found := endpoint.path_regex.match(path)):
                convertors = endpoint.convertors
                values = {name: convertors[name].convert(value) for name, value in found.groupdict().items()}
                chosen = {"endpoint": endpoint.function, "path_params": values, "route": endpoint.route}
                return Match.FULL, chosen | {_ENDPOINT: endpoint}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_ENDPOINT].serve(scope, receive, send)

    def _candidates(self, part: str) -> Iterator[Endpoint]:
        yield from self._endpoints.get(part, ())
        for route in self._unread:
            known = len(self._endpoints.get(part, ()))
            for context in iter_route_contexts([route]):
                if isinstance(context.original_route, APIRoute):
                    self._endpoints.setdefault(_first_part(context.path or ""), []).append(Endpoint(context))
            yield from self._endpoints.get(part, [])[known:]


def _first_part(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
