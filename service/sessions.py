"""The cookie of a browser session."""

from fastapi import Response
from starlette.requests import HTTPConnection

from core.retention import DAY_SECONDS
from core.settings import Settings

_NAME = "gradient_session"
COOKIES = (f"__Host-{_NAME}", _NAME)
"""Its names: with https, and without, where a browser takes no `__Host-` cookie."""


def session_token(connection: HTTPConnection, settings: Settings) -> str | None:
    """The token that a browser sent along; None if it has no session."""
    return connection.cookies.get(_name(settings))


def set_session(answer: Response, token: str, settings: Settings) -> None:
    """Have the browser keep a session.

    What users reach the service by says whether it is https: a proxy in front need not tell us how it was reached.
    """
    answer.set_cookie(
        _name(settings),
        token,
        max_age=int(settings.sign_in.session_days * DAY_SECONDS),
        httponly=True,
        samesite="strict",
        secure=_is_secure(settings),
    )


def forget_session(answer: Response, settings: Settings) -> None:
    """Have the browser forget its session."""
    answer.delete_cookie(_name(settings), httponly=True, samesite="strict", secure=_is_secure(settings))


def _is_secure(settings: Settings) -> bool:
    return settings.public_url.lower().startswith("https://")


def _name(settings: Settings) -> str:
    return COOKIES[0] if _is_secure(settings) else COOKIES[1]
