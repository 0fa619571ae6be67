"""Tokens that work once, within minutes: tickets that open a browser session, and sign-ins that make an API key."""

import hashlib
import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import ColumnElement, delete, insert, select
from sqlalchemy.orm import Session

from core.db import Database, now
from core.session_models import OneTimeToken

T = TypeVar("T")

SECONDS = 600
_TOKEN_BYTES = 32


class Purpose(StrEnum):
    """What a token is good for."""

    TICKET = "ticket"
    """Opens a browser session for an API key."""
    LOGIN = "login"
    """Makes an API key for a user."""


def issue(session: Session, purpose: Purpose, subject: str) -> str:
    """A token that works once, within 10 minutes.

    Args:
        session: Writes.
        purpose: What it is good for.
        subject: Whom it stands for: id of a key or of a user.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    values = {"sha256": _digest(token), "purpose": purpose, "subject": subject, "expires_at": now(SECONDS)}
    session.execute(insert(OneTimeToken).values(values))
    return token


def redeem(database: Database, purpose: Purpose, token: str, use: Callable[[Session, str], T]) -> T | None:
    """Use a token up, in one transaction with what it is used for: of several at once only one succeeds.

    Args:
        database: Where tokens are stored.
        purpose: What it has to be good for.
        token: As `issue` returned it.
        use: Called with the transaction and the subject; what it raises leaves the token unused.

    Returns:
        What `use` returned; None if the token is unknown, used, or too old.
    """
    good = _good(purpose, token)
    with database.read() as session:  # strangers' guesses must not wait for, or hold, the database's write lock
        if session.scalar(select(OneTimeToken.subject).where(*good)) is None:
            return None
    with database.write() as session:
        used = delete(OneTimeToken).where(*good).returning(OneTimeToken.subject)
        subject = session.scalar(used, execution_options={"synchronize_session": False})
        return None if subject is None else use(session, subject)


def _good(purpose: Purpose, token: str) -> tuple[ColumnElement[bool], ...]:
    return OneTimeToken.sha256 == _digest(token), OneTimeToken.purpose == purpose, OneTimeToken.expires_at > now()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
