"""Tables for login: browser sessions and one-time tokens."""

from datetime import datetime

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, UtcDateTime


class BrowserSession(Base):
    """A browser session; the row is deleted at logout."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`s` and 13 of [a-z0-9]: not secret."""
    sha256: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    """Hash of the token in the cookie, which is random enough to need no slow hash."""
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), index=True)
    """The API key that it was opened with; revoking the key ends the session."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    """Absolute expiry, regardless of use."""


class OneTimeToken(Base):
    """A one-time token; the row is deleted when it is used."""

    __tablename__ = "one_time_tokens"

    sha256: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    purpose: Mapped[str] = mapped_column(String(16))
    """ticket: opens a browser session; login: creates an API key."""
    subject: Mapped[str] = mapped_column(String(16))
    """Id of the key (ticket) or of the user (login)."""
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
