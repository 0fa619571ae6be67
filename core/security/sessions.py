"""Browser sessions: opened with an API key; ended by logout, by expiry, with their key, or by many newer ones.

The cookie holds a random token, the database its SHA-256.
"""

import secrets

from sqlalchemy import ColumnElement, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from core.db.database import Database, now
from core.db.models.credentials import ApiKey, BrowserSession, Identity, OneTimeToken
from core.errors import NotFound, Unauthorized
from core.ids import new_id
from core.security.api_keys import CACHE_SECONDS, ApiKeyCache, digest
from core.security.one_time_tokens import TTL_SECONDS
from core.security.row_cache import RowCache
from core.settings.api import SignInSettings
from core.storage.retention import DAY_SECONDS

MAX_PER_KEY = 50  # most sessions of one key; one more ends the one that was unused for longest
IDLE_SECONDS = 7 * DAY_SECONDS  # without a request after which a session ends
_TOKEN_BYTES = 32
_LAST_USED_SECONDS = 60


def open_session(session: Session, key_id: str, settings: SignInSettings) -> str:
    """Open a session for a valid key; returns the token for its cookie.

    If the key has `MAX_PER_KEY` sessions, the one that was unused for longest ends.
    """
    by_use = (BrowserSession.last_used_at.desc(), BrowserSession.created_at.desc(), BrowserSession.id)
    of_key = select(BrowserSession.id).where(BrowserSession.key_id == key_id).order_by(*by_use)
    _delete(session, BrowserSession.id.in_(of_key.offset(MAX_PER_KEY - 1)))
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    values = {
        "id": new_id("s"),
        "sha256": digest(token),
        "key_id": key_id,
        "created_at": now(),
        "last_used_at": now(),
        "expires_at": now(settings.session_days * DAY_SECONDS),
    }
    session.execute(insert(BrowserSession).values(values))
    return token


def list_sessions(session: Session) -> list[tuple[BrowserSession, ApiKey]]:
    """Return the open sessions, oldest first, each with its key."""
    query = select(BrowserSession, ApiKey).join(ApiKey, ApiKey.id == BrowserSession.key_id)
    rows = session.execute(query.where(*_is_open()).order_by(BrowserSession.created_at, BrowserSession.id))
    return [(row[0], row[1]) for row in rows]


def end_session(session: Session, session_id: str) -> None:
    """End one session, by the id shown in lists. Raises `NotFound`: there is no such session."""
    if not _delete(session, BrowserSession.id == session_id):
        raise NotFound(f"No such session: {session_id!r}. `gradient-server sessions list` shows them.", field="id")


def end_all(session: Session) -> int:
    return _delete(session, BrowserSession.id.is_not(None))


def remove_expired(session: Session) -> None:
    idle = BrowserSession.last_used_at <= now(-IDLE_SECONDS)
    _delete(session, or_(BrowserSession.expires_at <= now(), idle))
    session.execute(
        delete(OneTimeToken).where(OneTimeToken.expires_at <= now()), execution_options={"synchronize_session": False}
    )


class Sessions:
    """Authenticates sessions with a cache in front of the database, and collects which were used.

    `cache_seconds`: a session that another process ended is refused after this time at the latest.
    """

    def __init__(
        self, database: Database, keys: ApiKeyCache, settings: SignInSettings, *, cache_seconds: float = CACHE_SECONDS
    ) -> None:
        self._database = database
        self._keys = keys
        self._settings = settings
        self._known: RowCache[bytes, str] = RowCache(cache_seconds)

    def open(self, key_id: str) -> str:
        """Open a session for a valid key; returns the token for its cookie."""
        with self._database.write() as session:
            return open_session(session, key_id, self._settings)

    def key(self, token: str) -> ApiKey:
        sha256 = digest(token)
        key_id = self._known.get(sha256)
        if key_id is None:
            with self._database.read() as session:
                session_row = session.scalar(select(BrowserSession).where(BrowserSession.sha256 == sha256, *_is_open()))
            if session_row is None:
                raise Unauthorized("This browser session has ended. Sign in again.")
            key_id = session_row.key_id
            self._known.put(sha256, session_row.id, key_id)
        return self._keys.get(key_id)

    def end(self, token: str) -> None:
        """End a session: here at once, in other processes within `cache_seconds`."""
        sha256 = digest(token)
        with self._database.write() as session:
            _delete(session, BrowserSession.sha256 == sha256)
        self._known.drop(sha256)

    def clear(self) -> None:
        self._known.clear()

    def recent_user(self, token: str) -> str | None:
        """Return the user who opened a session at the OpenID provider in the last ten minutes; None: nobody did."""
        recent = BrowserSession.sha256 == digest(token), BrowserSession.created_at > now(-TTL_SECONDS)
        query = select(Identity.user_id).join(BrowserSession, Identity.key_id == BrowserSession.key_id)
        with self._database.read() as session:
            return session.scalar(query.where(*recent))

    def flush(self) -> None:
        """Store when sessions were last used; called periodically, outside of requests."""
        used = self._known.take_used()
        if not used:
            return
        old = BrowserSession.last_used_at < now(-_LAST_USED_SECONDS)
        with self._database.write() as session:
            session.execute(
                update(BrowserSession).where(BrowserSession.id.in_(used), old).values(last_used_at=now()),
                execution_options={"synchronize_session": False},
            )


def _is_open() -> tuple[ColumnElement[bool], ...]:
    unused_since = now(-IDLE_SECONDS)
    return BrowserSession.expires_at > now(), BrowserSession.last_used_at > unused_since


def _delete(session: Session, where: ColumnElement[bool]) -> int:
    gone = delete(BrowserSession).where(where).returning(BrowserSession.id)
    return len(session.execute(gone, execution_options={"synchronize_session": False}).all())
