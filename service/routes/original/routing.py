"""Routes that say what went wrong in the words the original service had for it, which scripts look for."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from core import errors

_WORDS: dict[type[errors.GradientError], str] = {
    errors.Unauthorized: "Invalid API token",
    errors.JobNotFound: "No such job",
    errors.ProjectNotFound: "Project not found",
    errors.MachineTypeUnknown: "Invalid machine type",
}


class OriginalRoute(APIRoute):
    """A route whose errors begin with the original words."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that FastAPI made, with its errors put into words."""
        serve = super().get_route_handler()

        async def served(request: Request) -> Response:
            try:
                return await serve(request)
            except errors.GradientError as error:
                words = _WORDS.get(type(error))
                if words is not None and not error.message.startswith(words):
                    error.message = f"{words}. {error.message}"
                raise

        return served
