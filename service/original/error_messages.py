"""Routes whose errors begin with the original service's messages, which scripts search for."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from core import errors

_MESSAGE_PREFIXES: dict[type[errors.GradientError], str] = {
    errors.Unauthorized: "Invalid API token",
    errors.JobNotFound: "No such job",
    errors.ProjectNotFound: "Project not found",
    errors.MachineTypeUnknown: "Invalid machine type",
}


class OriginalRoute(APIRoute):
    """A route whose errors begin with the original messages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler to prefix its errors."""
        serve = super().get_route_handler()

        async def served(request: Request) -> Response:
            try:
                return await serve(request)
            except errors.GradientError as error:
                words = _MESSAGE_PREFIXES.get(type(error))
                if words is not None and not error.message.startswith(words):
                    error.message = f"{words}. {error.message}"
                raise

        return served
