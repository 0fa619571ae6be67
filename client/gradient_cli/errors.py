"""Errors of the client, each with its exit code."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
REFUSED = 4
TIMED_OUT = 124  # as of timeout(1)
INTERRUPTED = 130
BROKEN_PIPE = 141

_AUTH_STATUSES = (401, 403)
_TRANSIENT_STATUSES = (502, 503, 504)
TOO_MANY_REQUESTS = 429


class ClientError(Exception):
    """An expected failure: shown as one sentence, what to do next, and an exit code. Never a traceback."""

    def __init__(self, message: str, *, hint: str = "", code: int = FAILED, transient: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.__notes__ = [hint] if hint else []  # where it is not caught, Python prints it below the message
        self.code = code
        self.transient = transient

    def as_json(self) -> dict[str, object]:
        """Return the error as programs read it: with `--json`, the value of `error`."""
        return {
            "name": type(self).__name__,
            "status": None,
            "field": None,
            "message": str(self),
            "hint": self.hint or None,
            "exitCode": self.code,
        }


class UsageError(ClientError):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, code=USAGE)


class TimedOut(ClientError):
    """A job has not ended in time; it goes on."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, code=TIMED_OUT)


class ConnectionFailed(ClientError):
    """The server could not be reached, or the connection broke."""

    def __init__(self, message: str, *, hint: str = "", transient: bool = True) -> None:
        super().__init__(message, hint=hint, code=UNREACHABLE, transient=transient)


class ServerError(ClientError):
    def __init__(
        self, message: str, *, status: int, name: str = "", field: str = "", hint: str = "", retry_after: float = 0.0
    ) -> None:
        code = UNREACHABLE if status in _AUTH_STATUSES or status >= 500 else REFUSED  # noqa: PLR2004  the server's own failures start at 500
        super().__init__(_prefix_field(field, message), hint=hint, code=code, transient=status in _TRANSIENT_STATUSES)
        self.status = status
        self.name = name
        self.field = field  # the field of the request it is about, or empty
        self.retry_after = retry_after  # seconds to wait before the next request, as set by the server; 0: not set

    def as_json(self) -> dict[str, object]:
        sent = {"name": self.name or type(self).__name__, "status": self.status, "field": self.field or None}
        return {**super().as_json(), **sent}


def _prefix_field(field: str, message: str) -> str:
    """Prefix a message with its field, unless it has the prefix already or users do not type that field's name."""
    return message if field in {"", "jobId"} or message.startswith(f"{field}:") else f"{field}: {message}"
