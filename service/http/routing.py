"""FastAPI's routes, whose endpoints run in one call of a thread, with their session.

FastAPI would run each part of a request in a thread of its own turn, and so keep a session, and its connection, while
the request waits for the next thread. So dependencies are async and have no session, and the endpoint alone takes a
thread, of the lane that its route declares.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from service.app_state import AppState
from service.auth.authentication import KEY_SECURITY
from service.auth.ownership import OwnerCheck
from service.deps import AppStateDep, ReadSession, WriteSession, state_of
from service.http.errors import RESPONSES
from service.http.lanes import Lane, Lanes
from service.schemas.base import check_encoding, check_texts

ChooseLane = Callable[[Lanes], Lane]
Function = TypeVar("Function", bound=Callable[..., Any])
Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_SAFE_METHODS = {"GET", "HEAD"}
_REQUEST = "bound_request"  # the parameter by which a bound endpoint gets the request, unless it has one
_NO_CONTENT = 204

_lanes_of_endpoints: dict[Callable[..., Any], ChooseLane] = {}


def runs_in(lane: ChooseLane) -> Callable[[Function], Function]:
    """Declare the lane of one endpoint, in place of its router's."""

    def declare(function: Function) -> Function:
        _lanes_of_endpoints[function] = lane
        return function

    return declare


class Route(APIRoute):
    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def check_and_handle(request: Request) -> Response:
            _check_address(request)
            return await handle(request)

        return check_and_handle


class Router(APIRouter):
    """A router of endpoints that run in lanes.

    Args:
        lane: That of all endpoints; None: of those that only read `reads_in`, of the others the lane of changes.
        security: The keys that its endpoints need, for their description: FastAPI would solve a dependency for each.
    """

    def __init__(
        self,
        *,
        lane: ChooseLane | None = None,
        reads_in: ChooseLane = lambda lanes: lanes.reading,
        route_class: type[Route] = Route,
        security: Sequence[dict[str, list[str]]] = (),
        **options: Any,  # noqa: ANN401 - as FastAPI
    ) -> None:
        super().__init__(
            route_class=route_class,
            generate_unique_id_function=lambda route: route.name,
            redirect_slashes=False,
            **options,
        )
        self._reading = lane or reads_in
        self._changing = lane or (lambda lanes: lanes.changing)
        self._described = {"security": security} if security else {}

    def add_api_route(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        methods: Collection[str] | None = None,
        status_code: int | None = None,
        openapi_extra: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - as FastAPI
    ) -> None:
        lane = self._reading if _SAFE_METHODS.issuperset(methods or ()) else self._changing
        bound = _bind(endpoint, _lanes_of_endpoints.get(endpoint, lane), status_code or 200)
        options["openapi_extra"] = self._described | (openapi_extra or {})
        super().add_api_route(path, bound, methods=list(methods or ["GET"]), status_code=status_code, **options)


def api_router(**options: Any) -> Router:  # noqa: ANN401 - as FastAPI
    """Return a router of the API: its endpoints need a key or a session, which `OwnerCheck` requires, too."""
    return Router(dependencies=[OwnerCheck], responses=RESPONSES, security=KEY_SECURITY, **options)


def _bind(function: Callable[..., Any], lane: ChooseLane, status: int) -> Callable[..., Any]:
    """Return an endpoint for FastAPI, which answers with a response, and opens its session in its thread.

    It gives the endpoint the state, which as a dependency would have to be solved for each request.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    session = next((parameter for parameter in parameters if parameter.annotation in {ReadSession, WriteSession}), None)
    writes = session is not None and session.annotation == WriteSession
    draft, state, request = (_name_of(parameters, annotation) for annotation in (Response, AppStateDep, Request))
    is_async = inspect.iscoroutinefunction(function)

    def respond(app_state: AppState, values: dict[str, Any]) -> Response:
        if session is None:
            return _as_response(function(**values), values.get(draft), status)
        with app_state.database.write() if writes else app_state.database.read() as opened:
            return _as_response(function(**values, **{session.name: opened}), values.get(draft), status)

    @functools.wraps(function)
    async def endpoint(**values: Any) -> Response:  # noqa: ANN401 - of its parameters
        app_state = state_of(values[request] if request else values.pop(_REQUEST))
        if state:
            values[state] = app_state
        if is_async:
            return _as_response(await function(**values), values.get(draft), status)
        return await lane(app_state.lanes).run(respond, app_state, values)

    solved = [parameter for parameter in parameters if parameter is not session and parameter.name != state]
    if not request:
        solved.append(inspect.Parameter(_REQUEST, inspect.Parameter.KEYWORD_ONLY, annotation=Request))
    endpoint.__signature__ = signature.replace(parameters=solved)  # type: ignore[attr-defined] # as FastAPI reads it
    return endpoint


def _name_of(parameters: list[inspect.Parameter], annotation: object) -> str:
    return next((parameter.name for parameter in parameters if parameter.annotation == annotation), "")


def _check_address(request: Request) -> None:
    """Refuse in a path or a query what is not UTF-8, and a NUL: SQLite finds what is before it."""
    for name, raw in (("path", request.scope.get("raw_path", b"")), ("query", request.scope["query_string"])):
        check_encoding(raw, f"The {name} of the address")
    if "\0" in request.scope["path"]:
        check_texts(request.path_params)
    if b"%00" in request.scope["query_string"]:
        check_texts(dict(request.query_params.multi_items()))


def _as_response(result: Any, draft: Response | None, status: int) -> Response:  # noqa: ANN401 - what an endpoint returns
    """Return the response to a result; `draft`: the one whose status and headers the endpoint may have set."""
    if isinstance(result, Response):
        return result
    status = (draft and draft.status_code) or status
    if isinstance(result, BaseModel):
        response = Response(result.model_dump_json(by_alias=True), status, media_type="application/json")
    elif status == _NO_CONTENT:
        response = Response(status_code=status)
    else:
        response = JSONResponse(jsonable_encoder(result), status)
    if draft is not None:
        response.raw_headers.extend(draft.raw_headers)
    return response
