"""What a request's ASGI scope says of it."""

from starlette.types import Scope

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Others are made up."""

_UNMATCHED = "none"


def route_of(scope: Scope) -> str:
    """The pattern of the route that serves a request: there are few of them, and endlessly many paths."""
    return str(getattr(scope.get("route"), "path", _UNMATCHED))
