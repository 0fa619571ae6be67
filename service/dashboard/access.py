"""Signing in with an API key, and proof that a form was sent from one of our own pages."""

import re
import threading
import time
from collections import OrderedDict, deque
from functools import partial
from typing import Annotated, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from core import once
from core.errors import Unauthorized
from core.once import Purpose
from core.sessions import open_session
from service.dashboard.rendering import page
from service.deps import OpenStores, Stores
from service.sessions import forget_session, session_token, set_session

FORM_FIELDS = 8
"""The most fields of a form; none has files."""

router = APIRouter(form_limits={"max_files": 0, "max_fields": FORM_FIELDS})

HOME = "/ui/jobs"

_OWN_PAGE = re.compile(r"/ui(?:/[^/\\\x00-\x20][^\\\x00-\x20]*)?\Z")
_MAX_FAILURES = 10
_FAILURE_SECONDS = 60.0
_MAX_ADDRESSES = 4096
_MAX_KEY = 500


class SignInAttempts:
    """Counts wrong keys by address, so that guessing costs more time than it costs us.

    Args:
        most: Wrong keys that are looked at within `seconds`.
        seconds: How long a wrong key counts.
    """

    def __init__(self, most: int = _MAX_FAILURES, seconds: float = _FAILURE_SECONDS) -> None:
        self._most = most
        self._seconds = seconds
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_seconds(self, address: str) -> float:
        """How long this address has to wait until its next key is looked at; 0: not at all."""
        current = time.monotonic()
        with self._lock:
            times = self._failures.get(address)
            while times and times[0] <= current - self._seconds:
                times.popleft()
            return times[0] + self._seconds - current if times and len(times) >= self._most else 0.0

    def failed(self, address: str) -> None:
        """Note a wrong key from this address."""
        with self._lock:
            self._failures.setdefault(address, deque(maxlen=self._most)).append(time.monotonic())
            self._failures.move_to_end(address)
            if len(self._failures) > _MAX_ADDRESSES:
                self._failures.popitem(last=False)


def require_own_form(request: Request, stores: Stores) -> None:
    """Let a form through only if one of our own pages sent it.

    A browser says so in Sec-Fetch-Site, or in Origin where it does not trust the connection. A request that says
    neither carries no proof, so a cookie alone is not enough for it.

    Raises:
        HTTPException: 403: it came from elsewhere, or does not say where from.
    """
    site = request.headers.get("sec-fetch-site")
    if site is None:
        ours = {request.headers.get("host", ""), urlsplit(stores.settings.public_url).netloc}
        own = urlsplit(request.headers.get("origin", "")).netloc in ours - {""}
    else:
        own = site == "same-origin"
    if not own:
        raise HTTPException(403, "This form was not sent from a page of this service, so nothing was changed.")


OwnForm = Depends(require_own_form)


def own_page(wanted: str | None) -> str:
    """Where to go after signing in: the page that was asked for, if it is one of ours."""
    return wanted if wanted and _OWN_PAGE.match(wanted) else HOME


@router.get("/")
@router.get("/ui")
def enter() -> Response:
    """Lead to the list of jobs."""
    return RedirectResponse(HOME, 303)


@router.get("/ui/login", response_model=None)
def show_sign_in(
    stores: Stores,
    wanted: Annotated[str | None, Query(alias="next")] = None,
    ticket: str | None = None,
    ended: str | None = None,
) -> Response:
    """Ask for a key, or take a one-time ticket instead."""
    target = own_page(wanted)
    if ticket is None:
        problem = "Your session has ended. Sign in again." if ended else None
        return page("login.html", target=target, problem=problem)
    token = once.redeem(stores.database, Purpose.TICKET, ticket, partial(_opened, stores))
    if token is None:
        problem = "This link was used already, or is older than ten minutes. Sign in with an API key."
        return page("login.html", 401, target=target, problem=problem)
    # Not a redirect: a browser that came from another site's page would not send the cookie along with it.
    answer = page("continue.html", target=target)
    set_session(answer, token, stores.settings)
    return answer


def _opened(stores: OpenStores, session: Session, key_id: str) -> str:
    return open_session(session, stores.keys.get(key_id).id, stores.settings.sign_in)


@router.post("/ui/login", response_model=None, dependencies=[OwnForm])
def sign_in(
    request: Request,
    stores: Stores,
    key: Annotated[str, Form(max_length=_MAX_KEY)] = "",
    wanted: Annotated[str, Form(alias="next")] = HOME,
) -> Response:
    """Open a session with an API key."""
    target = own_page(wanted)
    attempts = cast("SignInAttempts", request.app.state.sign_in_attempts)
    address = request.client.host if request.client else ""
    if wait := attempts.wait_seconds(address):
        problem = f"Too many wrong keys. Try again in {wait:.0f} seconds."
        answer: Response = page("login.html", 429, target=target, problem=problem)
        answer.headers["Retry-After"] = f"{wait:.0f}"
        return answer
    try:
        known = stores.keys.authenticate(key.strip())
    except Unauthorized as error:
        attempts.failed(address)
        return page("login.html", 401, target=target, problem=error.message)
    answer = RedirectResponse(target, 303)
    set_session(answer, stores.sessions.open(known.id), stores.settings)
    return answer


@router.post("/ui/logout", dependencies=[OwnForm])
def sign_out(request: Request, stores: Stores) -> Response:
    """End the session of this browser."""
    token = session_token(request, stores.settings)
    if token:
        stores.sessions.end(token)
    answer = RedirectResponse("/ui/login", 303)
    forget_session(answer, stores.settings)
    return answer
