"""Routes requests to the original protocol or the main API, which share a few paths."""

import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

PREFIX = "/original"
CLIENT_NAME_HEADER = "ps_client_name"
"""The header with the name of an original client. Read without FastAPI's `Header`, which would expect hyphens."""
_GROUP_NAME = re.compile(r"\(\?P<\w+>")


class PathRewriter:
    """Rewrites the paths of the original clients' requests, with or without a trailing slash.

    A path of both protocols belongs to the original one if the client sends its name, or a trailing slash, as only
    those clients do. `routes`: the original protocol's routes, without the prefix.
    """

    def __init__(self, routes: Iterable[BaseRoute], main_routes: Iterable[BaseRoute]) -> None:
        original = {route.path: route for route in routes if isinstance(route, Route)}
        shared = original.keys() & {route.path for route in main_routes if isinstance(route, Route)}
        self._original = _any_path(original.values())
        self._shared = _any_path(original[path] for path in shared)

    def __call__(self, scope: Scope) -> None:
        path: str = scope["path"]
        bare = path.rstrip("/")
        if path.startswith(f"{PREFIX}/"):
            scope["path"] = bare  # also in links to files: no file's name ends with a slash
        elif self._is_original(scope, path, bare):
            scope["path"] = PREFIX + bare

    def _is_original(self, scope: Scope, path: str, bare: str) -> bool:
        if not self._original.match(bare):
            return False
        # `/jobs/getJob` matches `/jobs/{job_id}`, but no job has such an id: only equal patterns are shared.
        return path != bare or CLIENT_NAME_HEADER in Headers(scope=scope) or not self._shared.match(bare)


def _any_path(routes: Iterable[Route]) -> re.Pattern[str]:
    """Return one expression for the paths of all these routes: trying each takes longer than a whole submission."""
    patterns = [_GROUP_NAME.sub("(?:", route.path_regex.pattern) for route in routes]
    return re.compile("|".join(patterns) or r"(?!)")
