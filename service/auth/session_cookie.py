"""The cookie of a browser session."""

from fastapi import Response
from starlette.requests import HTTPConnection

from core.settings import Settings
from core.storage.retention import DAY_SECONDS

_NAME = "gradient_session"
COOKIES = (f"__Host-{_NAME}", _NAME)
"""The cookie's names: with https, and without it, where browsers reject a `__Host-` cookie."""


def session_token(connection: HTTPConnection, settings: Settings) -> str | None:
    """Return the browser's session token; None if it has no session."""
    return connection.cookies.get(_cookie_name(settings))


def set_session_cookie(answer: Response, token: str, settings: Settings) -> None:
    """Set the session cookie.

    The public URL decides whether it is an https cookie: a proxy need not forward the scheme of the request.
    """
    answer.set_cookie(
        _cookie_name(settings),
        token,
        max_age=int(settings.sign_in.session_days * DAY_SECONDS),
        httponly=True,
        samesite="strict",
        secure=_is_secure(settings),
    )


def clear_session_cookie(answer: Response, settings: Settings) -> None:
    """Delete the session cookie."""
    answer.delete_cookie(_cookie_name(settings), httponly=True, samesite="strict", secure=_is_secure(settings))


def _is_secure(settings: Settings) -> bool:
    return settings.public_url.lower().startswith("https://")


def _cookie_name(settings: Settings) -> str:
    return COOKIES[0] if _is_secure(settings) else COOKIES[1]
