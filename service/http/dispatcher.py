"""Finds the endpoint of a request.

FastAPI's routers try every route in turn, and each router that has it twice.
"""

from collections.abc import Iterable, Iterator

from fastapi.routing import APIRoute, iter_route_contexts
from starlette._utils import get_route_path
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from service.http.endpoint import Endpoint

_ENDPOINT = "gradient.endpoint"


class Dispatcher(BaseRoute):
    """Serves the API's and the dashboard's routes over HTTP; a wrong path or method is left to the next routes.

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
