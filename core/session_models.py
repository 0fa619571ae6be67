"""The tables of signing in: browser sessions, and tokens that work once."""

from datetime import datetime

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, UtcDateTime


class BrowserSession(Base):
    """A browser that is signed in; the row goes when it signs out."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`s` and 13 of [a-z0-9]: may be shown, opens nothing."""
    sha256: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    """Of the token in the cookie; it is random enough to need no slow hash."""
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), index=True)
    """The API key that it was opened with, and ends with."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    """However much it is used."""


class OneTimeToken(Base):
    """A token that works once; the row goes when it is used."""

    __tablename__ = "one_time_tokens"

    sha256: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    purpose: Mapped[str] = mapped_column(String(16))
    """ticket: opens a browser session; login: makes an API key."""
    subject: Mapped[str] = mapped_column(String(16))
    """Id of the key (ticket) or of the user (login)."""
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
