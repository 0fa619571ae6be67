"""One-time tokens: tickets that open a browser session, logins that create an API key, invitations of workers."""

import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import ColumnElement, delete, insert, select
from sqlalchemy.orm import Session

from core.db.database import Database, now
from core.db.models.credentials import OneTimeToken
from core.security.api_keys import digest

T = TypeVar("T")

TTL_SECONDS = 600
_TOKEN_BYTES = 32


class Purpose(StrEnum):
    TICKET = "ticket"  # opens a browser session for an API key
    LOGIN = "login"  # creates an API key for a user
    JOIN = "join"  # creates the token of a worker


def issue(session: Session, purpose: Purpose, subject: str, *, seconds: float = TTL_SECONDS) -> str:
    """Issue a token that works once, within some time."""
    token = secrets.token_hex(_TOKEN_BYTES)  # never begins with a dash, as an option does
    values = {"sha256": digest(token), "purpose": purpose, "subject": subject, "expires_at": now(seconds)}
    session.execute(insert(OneTimeToken).values(values))
    return token


def subject(database: Database, purpose: Purpose, token: str) -> str | None:
    """Return the id of the key or of the user of a token, which stays valid; None if it is unknown, used or expired."""
    with database.read() as session:
        return session.scalar(select(OneTimeToken.subject).where(*_is_valid(purpose, token)))


def redeem(database: Database, purpose: Purpose, token: str, use: Callable[[Session, str], T]) -> T | None:
    """Redeem a token, in one transaction with its use: of several concurrent calls only one succeeds.

    Returns what `use` returned; None if the token is unknown, used or expired.
    """
    if subject(database, purpose, token) is None:  # guesses must not take the database's write lock
        return None
    with database.write() as session:
        used = delete(OneTimeToken).where(*_is_valid(purpose, token)).returning(OneTimeToken.subject)
        owner_id = session.scalar(used, execution_options={"synchronize_session": False})
        return None if owner_id is None else use(session, owner_id)


def _is_valid(purpose: Purpose, token: str) -> tuple[ColumnElement[bool], ...]:
    return OneTimeToken.sha256 == digest(token), OneTimeToken.purpose == purpose, OneTimeToken.expires_at > now()
