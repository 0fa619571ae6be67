"""Routes whose errors begin with the original service's messages, which scripts search for."""

from fastapi.routing import APIRoute

from core import errors

_MESSAGE_PREFIXES: dict[type[errors.GradientError], str] = {
    errors.Unauthorized: "Invalid API token",
    errors.JobNotFound: "No such job",
    errors.ProjectNotFound: "Project not found",
    errors.MachineTypeUnknown: "Invalid machine type",
}


class OriginalRoute(APIRoute):
    def explain_error(self, error: errors.GradientError) -> None:
        words = _MESSAGE_PREFIXES.get(type(error))
        if words is not None and not error.message.startswith(words):
            error.message = f"{words}. {error.message}"
