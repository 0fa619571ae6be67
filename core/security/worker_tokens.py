"""Tokens of workers on other hosts, for the service's data routes. Only their SHA-256 is stored."""

import re
import secrets

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from core.db.database import Database, now
from core.db.models.credentials import WorkerToken
from core.db.models.jobs import Worker
from core.errors import NotFound, SpecInvalid, Unauthorized
from core.security import one_time_tokens, worker_logins
from core.security.actor import record_change
from core.security.api_keys import CACHE_SECONDS, digest
from core.security.one_time_tokens import Purpose
from core.security.row_cache import RowCache
from core.settings import Settings

INVITATION_SECONDS = 3600
_PREFIX = "gw_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""It is part of the name of a socket, which may not be longer."""
_TOKEN_BYTES = 32


def create(session: Session, worker: str) -> str:
    """Create the token of a worker's name, which replaces an earlier one; it cannot be shown again."""
    if not _NAME.fullmatch(worker):
        raise SpecInvalid(
            f"{worker[:100]!r} cannot be the name of a worker with a token: letters, digits, `.`, `_` and `-`, at most "
            "80. Choose one with --name.",
            field="name",
        )
    token = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    values = {"sha256": digest(token), "created_at": now()}
    query = update(WorkerToken).where(WorkerToken.worker == worker).values(values).returning(WorkerToken.worker)
    if session.scalar(query) is None:
        session.execute(insert(WorkerToken).values(worker=worker, **values))
    record_change(session, "worker_token_created", worker)
    return token


def invite(session: Session) -> str:
    """Return a token with which one worker may join, within an hour."""
    record_change(session, "worker_invited", "")
    return one_time_tokens.issue(session, Purpose.JOIN, "", seconds=INVITATION_SECONDS)


def join(database: Database, settings: Settings, invitation: str, worker: str) -> dict[str, str]:
    """Redeem an invitation: return the `token` of the worker, which must be a new one, and its settings."""

    def use(session: Session, _subject: str) -> dict[str, str]:
        query = select(WorkerToken.worker).where(WorkerToken.worker == worker)
        if session.scalar(query) or session.scalar(select(Worker.name).where(Worker.name == worker)):
            raise SpecInvalid(
                f"A worker named {worker!r} already exists. Join under another --name, or stop that worker and run "
                f"`gradient-server workers remove {worker}` on the service's host.",
                field="name",
            )
        return {"token": create(session, worker)} | worker_logins.create(session, settings, worker)

    given = one_time_tokens.redeem(database, Purpose.JOIN, invitation, use)
    if given is None:
        raise Unauthorized(
            "The invitation is unknown, already used or older than an hour. Run `gradient-server workers invite` "
            "on the service's host for another one."
        )
    return given


def revoke(session: Session, worker: str) -> WorkerToken:
    """Revoke a worker's token; return it, for `worker_logins.end`. Raises `NotFound`: it has none."""
    token = session.get(WorkerToken, worker, with_for_update=True)
    if token is None:
        raise NotFound(f"The worker {worker!r} has no token.", field="name")
    session.delete(token)
    record_change(session, "worker_token_revoked", worker)
    return token


class WorkerTokenCache:
    """Authenticates tokens; a revoked one is refused after `CACHE_SECONDS` at the latest."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cache: RowCache[bytes, str] = RowCache(CACHE_SECONDS)

    def authenticate(self, token: str, *, cached: bool = True) -> str:
        """Return the name of the worker whose token this is; not `cached`: as the database has it now."""
        sha256 = digest(token)
        worker = self._cache.get(sha256) if cached else None
        if worker is None:
            with self._database.read() as session:
                worker = session.scalar(select(WorkerToken.worker).where(WorkerToken.sha256 == sha256))
            if worker is None:
                raise Unauthorized(
                    "This worker token is unknown or revoked. Run `gradient-server workers token NAME` on the "
                    "service's host for a new one."
                )
            self._cache.put(sha256, worker, worker)
        return worker
