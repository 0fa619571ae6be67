"""Routes whose errors begin with the original service's messages, which scripts search for."""

from fastapi import Request, Response

from core import errors
from service.http.routing import Handler, Route

_MESSAGE_PREFIXES: dict[type[errors.GradientError], str] = {
    errors.Unauthorized: "Invalid API token",
    errors.JobNotFound: "No such job",
    errors.ProjectNotFound: "Project not found",
    errors.MachineTypeUnknown: "Invalid machine type",
}


class OriginalRoute(Route):
    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_and_explain(request: Request) -> Response:
            try:
                return await handle(request)
            except errors.GradientError as error:
                prefix = _MESSAGE_PREFIXES.get(type(error))
                if prefix is not None and not error.message.startswith(prefix):
                    error.message = f"{prefix}. {error.message}"
                raise

        return handle_and_explain
