"""API keys: creation, listing, revocation and authentication. Only their SHA-256 is stored.

A key has the form `gj_<id>_<secret>_<check>`: 8 characters that are not secret, 43 of [A-Za-z0-9] (256 bits of
entropy, so a fast hash is enough), and a checksum that detects typing errors without a query.
"""

import hashlib
import hmac
import secrets
import string
import zlib
from collections.abc import Collection
from datetime import UTC, datetime

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from core.db.database import Database, now
from core.db.models.credentials import ApiKey, BrowserSession
from core.errors import NotFound, SpecInvalid, Unauthorized
from core.security.actor import record_change
from core.security.key_rights import KeyRights
from core.security.row_cache import RowCache
from core.settings.limits import MAX_DAYS
from core.storage.retention import DAY_SECONDS

PREFIX = "gj"
CACHE_SECONDS = 5.0  # longest time for which a key may still be accepted after it was revoked

_ID_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 8
_SECRET_LENGTH = 43
_CHECK_LENGTH = 6
_PARTS = 4
_MAX_NAME = 200
_LAST_USED_SECONDS = 60


def create(
    session: Session, name: str, *, days: float | None = None, rights: KeyRights | None = None
) -> tuple[ApiKey, str]:
    """Create a key.

    `days`: days until it expires; None: never. Returns its row, and the key itself, which is stored nowhere and cannot
    be shown again.
    """
    if days is not None and not 0 < days <= MAX_DAYS:
        raise SpecInvalid(
            f"{days:g} days is out of range: a key is valid for more than 0 and up to {MAX_DAYS:,} days.", field="days"
        )
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise SpecInvalid(f"A key needs a name of 1 to {_MAX_NAME} printable characters.", field="name")
    key_id = _random(_ID_ALPHABET, _ID_LENGTH)
    start = f"{PREFIX}_{key_id}_{_random(_SECRET_ALPHABET, _SECRET_LENGTH)}"
    secret = f"{start}_{checksum(start)}"
    values = {
        "id": key_id,
        "name": name,
        "sha256": digest(secret),
        "created_at": now(),
        "expires_at": None if days is None else now(days * DAY_SECONDS),
        "rights": None if rights is None else rights.stored(),
    }
    record_change(session, "key_created", f"{key_id} ({name}){_describe(rights)}")
    return session.scalars(insert(ApiKey).values(values).returning(ApiKey)).one(), secret


def _describe(rights: KeyRights | None) -> str:
    """Return the rights of a new key that others do not have by themselves."""
    usual = KeyRights().stored()
    stored = {} if rights is None else rights.stored()
    return "".join(f", {name} {value}" for name, value in stored.items() if usual.get(name) != value)


def list_keys(session: Session) -> list[ApiKey]:
    """Return all keys, including revoked ones, oldest first."""
    return list(session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id)))


def others_in_use(session: Session, own_ids: Collection[str], *, unless_unused: Collection[str]) -> bool:
    """Return whether there is a valid key other than these.

    Args:
        own_ids: Ids of the keys that do not count.
        unless_unused: Ids of keys that count only once they were used.
    """
    valid = ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now())
    counts = or_(ApiKey.last_used_at.is_not(None), ApiKey.id.not_in(unless_unused))
    return session.scalar(select(ApiKey.id).where(ApiKey.id.not_in(own_ids), *valid, counts).limit(1)) is not None


def are_several(session: Session) -> bool:
    """Return whether more than one key is valid: then others than one person may use this installation."""
    valid = select(ApiKey.id).where(
        ApiKey.revoked_at.is_(None), (ApiKey.expires_at.is_(None)) | (ApiKey.expires_at > now())
    )
    return len(session.execute(valid.limit(2)).all()) > 1


def are_readable(session: Session) -> bool:
    """Return whether this user of the database may read keys; that of workers may not."""
    if session.get_bind().dialect.name == "sqlite":
        return True
    return bool(session.scalar(select(func.has_table_privilege(ApiKey.__tablename__, "SELECT"))))


def names(session: Session, key_ids: Collection[str]) -> dict[str, str]:
    return {key.id: key.name for key in session.execute(select(ApiKey.id, ApiKey.name).where(ApiKey.id.in_(key_ids)))}


def get(session: Session, key_id: str) -> ApiKey:
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFound(f"No such key: {key_id!r}. `gradient-server keys list` shows them.", field="id")
    return key


def revoke(session: Session, key_id: str) -> ApiKey:
    """Revoke a key, and end the browser sessions that were opened with it; a repeat does nothing."""
    key = get(session, key_id)
    in_use = update(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
    session.execute(in_use.values(revoked_at=now()), execution_options={"synchronize_session": False})
    record_change(session, "key_revoked", f"{key_id} ({key.name})")
    of_key = delete(BrowserSession).where(BrowserSession.key_id == key_id)
    session.execute(of_key, execution_options={"synchronize_session": False})
    session.refresh(key)
    return key


def authenticate(session: Session, secret: str) -> ApiKey:
    """Return the key that this secret belongs to.

    Raises `Unauthorized`: it is misspelt, unknown, revoked or expired.
    """
    key = session.get(ApiKey, _parse_id(secret))
    # An unknown id is handled like a wrong secret, so that ids cannot be found by trial.
    stored = key.sha256 if key is not None else bytes(hashlib.sha256().digest_size)
    if not hmac.compare_digest(stored, digest(secret)) or key is None:
        raise Unauthorized("This server does not know this API key. `gradient-server keys create` creates one.")
    return _require_valid(key)


class ApiKeyCache:
    """Authenticates keys with a cache in front of the database, and collects which were used.

    `cache_seconds`: lifetime of a cache entry; a revoked key is refused after this time at the latest.
    """

    def __init__(self, database: Database, *, cache_seconds: float = CACHE_SECONDS) -> None:
        self._database = database
        self._cache: RowCache[bytes | str, ApiKey] = RowCache(cache_seconds)
        self._rights: RowCache[str, KeyRights] = RowCache(cache_seconds)
        self._addresses: dict[str, str] = {}  # of the last clients, by key, since the last flush

    def cached(self, secret: str) -> ApiKey | None:
        """Return the key of this secret if it is cached; never queries the database, so never blocks."""
        return self._cache.get(digest(secret))

    def authenticate(self, secret: str) -> ApiKey:
        sha256 = digest(secret)
        key = self._cache.get(sha256)
        if key is None:
            with self._database.read() as session:
                key = authenticate(session, secret)
            self._cache.put(sha256, key.id, key)
        return key

    def get(self, key_id: str) -> ApiKey:
        """Return the key of this id, for credentials derived from it: a browser session, a link."""
        key = self._cache.get(key_id)
        if key is None:
            with self._database.read() as session:
                key = session.get(ApiKey, key_id)
            if key is None:
                raise Unauthorized("The API key that opened this session no longer exists. Sign in again.")
            self._cache.put(key_id, key.id, _require_valid(key))
        return key

    def rights(self, key_id: str) -> KeyRights:
        """Return the rights of a key, whether it is valid or not: jobs of a schedule are submitted with its key."""
        rights = self._rights.get(key_id)
        if rights is None:
            with self._database.read() as session:
                rights = KeyRights.of(session.scalar(select(ApiKey.rights).where(ApiKey.id == key_id)))
            self._rights.put(key_id, key_id, rights)
        return rights

    def used_from(self, key_id: str, address: str | None) -> None:
        if address is not None:
            self._addresses[key_id] = address

    def clear(self) -> None:
        self._cache.clear()

    def flush(self) -> None:
        """Store when keys were last used; called periodically, outside of requests."""
        used = self._cache.take_used()
        if not used:
            return
        old = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < now(-_LAST_USED_SECONDS))
        addresses, self._addresses = self._addresses, {}
        with self._database.write() as session:
            for key_id in used:
                values = {"last_used_at": now(), "last_address": addresses.get(key_id, ApiKey.last_address)}
                session.execute(update(ApiKey).where(ApiKey.id == key_id, old).values(values))


def _require_valid(key: ApiKey) -> ApiKey:
    if key.revoked_at is not None:
        raise Unauthorized(
            f"The API key {key.id} was revoked at {key.revoked_at:%Y-%m-%d %H:%M} UTC. Ask for a new one."
        )
    if state(key) == "expired":
        raise Unauthorized(f"The API key {key.id} expired at {key.expires_at:%Y-%m-%d %H:%M} UTC. Ask for a new one.")
    return key


def state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= datetime.now(UTC) else "valid"


def _parse_id(secret: str) -> str:
    parts = secret.split("_")
    if len(parts) != _PARTS or parts[0] != PREFIX:
        raise Unauthorized(f"This is not an API key of this service. A key has four parts: {PREFIX}_ID_SECRET_CHECK.")
    if not hmac.compare_digest(checksum(secret.rpartition("_")[0]).encode(), parts[-1].encode(errors="replace")):
        raise Unauthorized("This API key is misspelled or incomplete. Copy the whole key again.")
    return parts[1]


def checksum(text: str) -> str:
    number = zlib.crc32(text.encode(errors="replace"))
    digits = ""
    for _ in range(_CHECK_LENGTH):
        number, digit = divmod(number, len(_SECRET_ALPHABET))
        digits += _SECRET_ALPHABET[digit]
    return digits


def _random(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))


def digest(secret: str) -> bytes:
    """Hash a random secret for storage: a fast hash is enough for one."""
    return hashlib.sha256(secret.encode(errors="replace")).digest()
