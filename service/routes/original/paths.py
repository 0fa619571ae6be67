"""Who means which protocol: the original clients' paths lie beside the main API's, and a few are the same."""

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/original"
CLIENT_NAME = "ps_client_name"
"""The header by which the original clients say who they are; FastAPI's `Header` would look for hyphens."""


class OriginalPaths:
    """Leads requests of the original clients to where they are served, with or without a slash at the end.

    A path that both protocols have is the original one's if the client says its name, or writes it as only those
    clients do: with a slash at its end.

    Args:
        app: Serves the requests.
        own: The original protocol's routes, without the prefix.
        beside: The main API's routes.
    """

    def __init__(self, app: ASGIApp, own: Iterable[BaseRoute], beside: Iterable[BaseRoute]) -> None:
        self._app = app
        self._own = [route for route in own if isinstance(route, Route)]
        self._shared = {route.path for route in self._own} & {r.path for r in beside if isinstance(r, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            path: str = scope["path"]
            bare = path.rstrip("/")
            if path.startswith(f"{PREFIX}/"):
                # A file's own name may end so in the link to it: no such file can be, so nothing is lost.
                scope["path"] = bare
            elif self._meant(scope, path, bare):
                scope["path"] = PREFIX + bare
        await self._app(scope, receive, send)

    def _meant(self, scope: Scope, path: str, bare: str) -> bool:
        taken = [route.path for route in self._own if route.matches({**scope, "path": bare})[0] is not Match.NONE]
        if not taken:
            return False
        # `/jobs/getJob` has the shape of `/jobs/{job_id}`, but no job has such an id: only equal patterns are shared.
        return path != bare or CLIENT_NAME in Headers(scope=scope) or self._shared.isdisjoint(taken)
