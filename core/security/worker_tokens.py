"""Tokens of workers on other hosts, for the service's data routes. Only their SHA-256 is stored."""

import secrets

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from core.db.database import Database, now
from core.db.models.credentials import WorkerToken
from core.errors import NotFound, Unauthorized
from core.security.actor import record_change
from core.security.api_keys import CACHE_SECONDS, digest
from core.security.row_cache import RowCache

_PREFIX = "gw_"
_TOKEN_BYTES = 32


def create(session: Session, worker: str) -> str:
    """Create the token of a worker's name, which replaces an earlier one; it cannot be shown again."""
    token = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    session.execute(delete(WorkerToken).where(WorkerToken.worker == worker))
    session.execute(insert(WorkerToken).values(worker=worker, sha256=digest(token), created_at=now()))
    record_change(session, "worker_token_created", worker)
    return token


def revoke(session: Session, worker: str) -> None:
    """Revoke a worker's token. Raises `NotFound`: it has none."""
    gone = delete(WorkerToken).where(WorkerToken.worker == worker).returning(WorkerToken.worker)
    if session.scalar(gone) is None:
        raise NotFound(f"The worker {worker!r} has no token.", field="name")
    record_change(session, "worker_token_revoked", worker)


class WorkerTokenCache:
    """Authenticates tokens; a revoked one is refused after `CACHE_SECONDS` at the latest."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cache: RowCache[bytes, str] = RowCache(CACHE_SECONDS)

    def authenticate(self, token: str) -> str:
        """Return the name of the worker whose token this is."""
        sha256 = digest(token)
        worker = self._cache.get(sha256)
        if worker is None:
            with self._database.read() as session:
                worker = session.scalar(select(WorkerToken.worker).where(WorkerToken.sha256 == sha256))
            if worker is None:
                raise Unauthorized(
                    "This token of a worker is unknown or revoked. `gradient-server workers token NAME` on the "
                    "service's host makes one."
                )
            self._cache.put(sha256, worker, worker)
        return worker
