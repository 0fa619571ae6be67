from urllib.parse import urlsplit

from fastapi import Response
from starlette.requests import HTTPConnection

from core.settings import Settings
from core.storage.retention import DAY_SECONDS


def session_token(connection: HTTPConnection, settings: Settings) -> str | None:
    return connection.cookies.get(cookie_name(settings))


def set_session_cookie(answer: Response, token: str, settings: Settings) -> None:
    """Set the session cookie.

    The public URL decides whether it is an https cookie: a proxy need not forward the scheme of the request.
    """
    answer.set_cookie(
        cookie_name(settings),
        token,
        max_age=int(settings.sign_in.session_days * DAY_SECONDS),
        httponly=True,
        samesite="strict",
        secure=_is_secure(settings),
    )


def clear_session_cookie(answer: Response, settings: Settings) -> None:
    answer.delete_cookie(cookie_name(settings), httponly=True, samesite="strict", secure=_is_secure(settings))


def cookie_name(settings: Settings) -> str:
    """Return the cookie's name, with the port: services at other ports of this host name have other sessions.

    Browsers reject a `__Host-` cookie without https.
    """
    parts = urlsplit(settings.public_url)
    name = f"gradient_session_{parts.port or (443 if _is_secure(settings) else 80)}"
    return f"__Host-{name}" if _is_secure(settings) else name


def _is_secure(settings: Settings) -> bool:
    return settings.public_url.lower().startswith("https://")
