"""API keys: made, listed, revoked and recognised. Only their SHA-256 is stored.

A key reads `gj_<id>_<secret>_<check>`: 8 characters that may be shown, 43 of [A-Za-z0-9] (256 bits of chance,
which is why a fast hash is enough), and a checksum that tells a typing error from a foreign key without a query.
"""

import hashlib
import hmac
import secrets
import string
import zlib
from datetime import UTC, datetime

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.orm import Session

from core.db import Database, now
from core.errors import NotFound, SpecInvalid, Unauthorized
from core.jobs.models import ApiKey
from core.recent import Recent
from core.retention import DAY_SECONDS
from core.session_models import BrowserSession
from core.settings.retention import MAX_DAYS

PREFIX = "gj"
TRUSTED_SECONDS = 5.0
"""How long a key may still be accepted after it was revoked."""

_ID_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 8
_SECRET_LENGTH = 43
_CHECK_LENGTH = 6
_PARTS = 4
_MAX_NAME = 200
_USED_SECONDS = 60


def create(session: Session, name: str, *, days: float | None = None) -> tuple[ApiKey, str]:
    """Make a key.

    Args:
        session: Writes.
        name: Whose or what it is for.
        days: How long it works; None: until it is revoked.

    Returns:
        Its row, and the key itself, which is stored nowhere and cannot be shown again.

    Raises:
        SpecInvalid: The name is empty or too long, or the days are none.
    """
    if days is not None and not 0 < days <= MAX_DAYS:
        raise SpecInvalid(f"{days:g} days: a key works for more than 0 and up to {MAX_DAYS:,} days.", field="days")
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise SpecInvalid(f"A key needs a name of 1 to {_MAX_NAME} printable characters.", field="name")
    key_id = _random(_ID_ALPHABET, _ID_LENGTH)
    start = f"{PREFIX}_{key_id}_{_random(_SECRET_ALPHABET, _SECRET_LENGTH)}"
    secret = f"{start}_{_check(start)}"
    values = {
        "id": key_id,
        "name": name,
        "sha256": _digest(secret),
        "created_at": now(),
        "expires_at": None if days is None else now(days * DAY_SECONDS),
    }
    return session.scalars(insert(ApiKey).values(values).returning(ApiKey)).one(), secret


def list_keys(session: Session) -> list[ApiKey]:
    """Every key, also the revoked ones, oldest first."""
    return list(session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id)))


def revoke(session: Session, key_id: str) -> ApiKey:
    """Take a key out of use, and end the browser sessions that it opened; a repeat does nothing.

    Raises:
        NotFound: There is no key of this id.
    """
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFound(f"No such key: {key_id!r}. `gradient-server keys list` shows them.", field="id")
    in_use = update(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
    session.execute(in_use.values(revoked_at=now()), execution_options={"synchronize_session": False})
    of_key = delete(BrowserSession).where(BrowserSession.key_id == key_id)
    session.execute(of_key, execution_options={"synchronize_session": False})
    session.refresh(key)
    return key


def authenticate(session: Session, secret: str) -> ApiKey:
    """The key whose text this is.

    Raises:
        Unauthorized: It is misspelt, unknown, revoked or expired.
    """
    key = session.get(ApiKey, _id_in(secret))
    # An unknown id takes the same way as a wrong secret, so that ids cannot be found by trying.
    stored = key.sha256 if key is not None else bytes(hashlib.sha256().digest_size)
    if not hmac.compare_digest(stored, _digest(secret)) or key is None:
        raise Unauthorized("This API key is not known here. `gradient-server keys create` makes one.")
    return _in_use(key)


class KeyRing:
    """Recognises keys without a query for each request, and remembers which were used.

    Args:
        database: Where keys are stored.
        trusted_seconds: How long an answer is kept; a revoked key is refused after this time at the latest.
    """

    def __init__(self, database: Database, *, trusted_seconds: float = TRUSTED_SECONDS) -> None:
        self._database = database
        self._known: Recent[bytes | str, ApiKey] = Recent(trusted_seconds)

    def known(self, secret: str) -> ApiKey | None:
        """The key whose text this is, if it was recognised a moment ago; asks no database, so never waits."""
        return self._known.get(_digest(secret))

    def authenticate(self, secret: str) -> ApiKey:
        """The key whose text this is.

        Raises:
            Unauthorized: It is misspelt, unknown, revoked or expired.
        """
        digest = _digest(secret)
        key = self._known.get(digest)
        if key is None:
            with self._database.read() as session:
                key = authenticate(session, secret)
            self._known.put(digest, key.id, key)
        return key

    def get(self, key_id: str) -> ApiKey:
        """The key of this id, for what was given out to its holder: a browser session, a link.

        Raises:
            Unauthorized: There is none, or it was revoked, or it expired.
        """
        key = self._known.get(key_id)
        if key is None:
            with self._database.read() as session:
                key = session.get(ApiKey, key_id)
            if key is None:
                raise Unauthorized("The API key that this was opened with is gone. Sign in again.")
            self._known.put(key_id, key.id, _in_use(key))
        return key

    def forget(self) -> None:
        """Ask the database again from now on."""
        self._known.clear()

    def flush(self) -> None:
        """Write down when keys were used; called now and then, apart from any request."""
        used = self._known.take_used()
        if not used:
            return
        old = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < now(-_USED_SECONDS))
        with self._database.write() as session:
            session.execute(update(ApiKey).where(ApiKey.id.in_(used), old).values(last_used_at=now()))


def _in_use(key: ApiKey) -> ApiKey:
    if key.revoked_at is not None:
        raise Unauthorized(
            f"The API key {key.id} was revoked at {key.revoked_at:%Y-%m-%d %H:%M} UTC. Ask for a new one."
        )
    if state(key) == "expired":
        raise Unauthorized(f"The API key {key.id} expired at {key.expires_at:%Y-%m-%d %H:%M} UTC. Ask for a new one.")
    return key


def state(key: ApiKey) -> str:
    """`valid`, `revoked` or `expired`."""
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= datetime.now(UTC) else "valid"


def _id_in(secret: str) -> str:
    parts = secret.split("_")
    if len(parts) != _PARTS or parts[0] != PREFIX:
        raise Unauthorized(f"This is not an API key of this service; one begins with {PREFIX}_.")
    if not hmac.compare_digest(_check(secret.rpartition("_")[0]).encode(), parts[-1].encode(errors="replace")):
        raise Unauthorized("This API key is misspelt or cut off. Copy it again, whole.")
    return parts[1]


def _check(text: str) -> str:
    number = zlib.crc32(text.encode(errors="replace"))
    digits = ""
    for _ in range(_CHECK_LENGTH):
        number, digit = divmod(number, len(_SECRET_ALPHABET))
        digits += _SECRET_ALPHABET[digit]
    return digits


def _random(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
