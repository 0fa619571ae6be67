"""Tables of credentials: secrets and logins, encrypted (`core.security.encryption`), and hashes of browsers' tokens."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime


class Secret(Base):
    """A named value for jobs; the API never returns it."""

    __tablename__ = "secrets"

    project_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """Project whose jobs may use it; empty: all projects."""
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    sealed: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Registry(Base):
    """Login for a container registry."""

    __tablename__ = "registries"

    project_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """Project whose jobs use it, before that of all projects; empty: all projects."""
    host: Mapped[str] = mapped_column(String(255), primary_key=True)  # includes the port, if it is not the default
    username: Mapped[str] = mapped_column(String(255))
    sealed: Mapped[str] = mapped_column(Text)  # the password
    push: Mapped[bool] = mapped_column(server_default=false())  # true if jobs may also push images with it
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class GitLogin(Base):
    """`user:password` for the git server of a job's workspace; kept until the job is deleted, for its clones."""

    __tablename__ = "git_logins"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    sealed: Mapped[str] = mapped_column(Text)


class JobRegistryPassword(Base):
    """Registry password that was submitted with a job; deleted when the job has ended."""

    __tablename__ = "job_logins"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    sealed: Mapped[str] = mapped_column(Text)


class BrowserSession(Base):
    """A browser session; the row is deleted at logout."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)  # `s` and 13 of [a-z0-9]: not secret
    sha256: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    """Hash of the token in the cookie, which is random enough to need no slow hash."""
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), index=True)
    """The API key that it was opened with; revoking the key ends the session."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)  # absolute expiry, regardless of use


class OneTimeToken(Base):
    """A one-time token; the row is deleted when it is used."""

    __tablename__ = "one_time_tokens"

    sha256: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    purpose: Mapped[str] = mapped_column(String(16))  # as `one_time_tokens.Purpose`
    subject: Mapped[str] = mapped_column(String(16))  # id of the key (ticket) or of the user (login); empty (join)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class WorkerToken(Base):
    """The token with which a worker on another host sends and fetches files."""

    __tablename__ = "worker_tokens"

    worker: Mapped[str] = mapped_column(String(255), primary_key=True)
    """The worker's name; it need not have registered yet."""
    sha256: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    """Hash of the token, which is random enough to need no slow hash."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    login: Mapped[str | None] = mapped_column(String(63))
    """Name of its own database role and broker user; None: it has those of all workers."""
    broker_sha256: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """Hash of its password for Redis; None: it has no user there."""


class User(Base):
    """A user who can sign in with a password to get an API key."""

    __tablename__ = "users"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)  # `u` and 13 of [a-z0-9]
    email: Mapped[str] = mapped_column(String(254), unique=True)  # in lower case
    password: Mapped[str] = mapped_column(String(255))  # slow hash (Argon2id), with salt and cost parameters
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Identity(Base):
    """The account at an OpenID provider with which a user signs in; such a user has no password."""

    __tablename__ = "identities"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    issuer: Mapped[str] = mapped_column(String(500))
    subject: Mapped[str] = mapped_column(String(255))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))  # the key of the user's browser sessions
    sealed: Mapped[str | None] = mapped_column(Text)
    """The provider's tokens, encrypted, with which the service asks again; None: the user has to sign in again."""
    checked_at: Mapped[datetime] = mapped_column(UtcDateTime)

    __table_args__ = (Index("uq_identities_subject", "issuer", "subject", unique=True),)


class UserKey(Base):
    """The user an API key was issued to at login."""

    __tablename__ = "user_keys"

    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(16), index=True)


class ApiKey(Base):
    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)  # the part of the key that is not secret
    name: Mapped[str] = mapped_column(String(200))
    sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    """Hash of the whole key, which is random enough to need no slow hash."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # time of expiry; None: never
    rights: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # as `KeyRights.stored`
    last_address: Mapped[str | None] = mapped_column(String(64))  # of the client that used it last


class SshKey(Base):
    """A public key with which whoever has an API key also signs in by ssh."""

    __tablename__ = "ssh_keys"

    fingerprint: Mapped[str] = mapped_column(String(64), primary_key=True)  # as `ssh-keygen -l` prints it: SHA256:…
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True, index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
