"""People who sign in with e-mail and password. Of the password only a slow hash is stored (scrypt).

Signing in gives an API key of one's own; removing somebody revokes the keys they got.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core import keys
from core.db import now
from core.errors import NotFound, SpecInvalid, Unauthorized
from core.ids import new_id
from core.jobs.models import ApiKey, User, UserKey

MIN_PASSWORD = 10
MAX_PASSWORD = 1024
_MAX_EMAIL = 254
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\Z")
# N, r and p: 16 MiB and a tenth of a second or more, one of the settings that OWASP's cheat sheet lists for scrypt.
_COST = (2**14, 8, 5)
_SALT_BYTES = 16
_FIELDS = 6


def create(session: Session, email: str, password: str) -> User:
    """Make somebody who may sign in.

    Raises:
        SpecInvalid: The address is none or taken, or the password is too short or too long.
    """
    address = _address(email)
    if not (_EMAIL.match(address) and address.isprintable() and len(address) <= _MAX_EMAIL):
        raise SpecInvalid("Not an e-mail address; one looks like name@host.", field="email")
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise SpecInvalid(
            f"The password has {len(password)} characters; {MIN_PASSWORD} to {MAX_PASSWORD} are taken.",
            field="password",
        )
    values = {"id": new_id("u"), "email": address, "password": _hash(password), "created_at": now()}
    try:
        return session.scalars(insert(User).values(values).returning(User)).one()
    except IntegrityError as error:
        raise SpecInvalid(f"{address} is there already. Remove it first to give it a new password.") from error


def list_users(session: Session) -> list[User]:
    """Everybody, by address."""
    return list(session.scalars(select(User).order_by(User.email)))


def remove(session: Session, email: str) -> Sequence[ApiKey]:
    """Take somebody out, and with them the keys that they got by signing in.

    Returns:
        The keys that are revoked now.

    Raises:
        NotFound: There is nobody of this address.
    """
    user = session.scalar(select(User).where(User.email == _address(email)))
    if user is None:
        raise NotFound(f"No such user: {email!r}. `gradient-server users list` shows them.", field="email")
    ids = session.scalars(select(UserKey.key_id).where(UserKey.user_id == user.id)).all()
    revoked = [keys.revoke(session, key_id) for key_id in ids]
    session.execute(delete(User).where(User.id == user.id))
    return revoked


def sign_in(session: Session, email: str, password: str) -> User:
    """Who has this address and this password.

    Raises:
        Unauthorized: Nobody has.
    """
    user = session.scalar(select(User).where(User.email == _address(email)))
    # Somebody who is not there takes as long, so that addresses cannot be found by trying.
    stored = user.password if user is not None else _NOBODY
    if not _matches(password, stored) or user is None:
        raise Unauthorized("The e-mail address or the password is wrong.")
    return user


def give_key(session: Session, user_id: str, name: str, *, days: float | None = None) -> tuple[ApiKey, str]:
    """Make an API key for somebody who has signed in.

    Args:
        session: Writes.
        user_id: Who has signed in.
        name: What the key is for.
        days: How long it works; None: until it is revoked.

    Returns:
        Its row, and the key itself, which cannot be shown again.

    Raises:
        Unauthorized: They were taken out meanwhile.
        SpecInvalid: The name cannot be one.
    """
    user = session.get(User, user_id)
    if user is None:
        raise Unauthorized("This user is no longer there.")
    key, secret = keys.create(session, name, days=days)
    session.execute(insert(UserKey).values(key_id=key.id, user_id=user.id))
    return key, secret


def _address(email: str) -> str:
    return email.strip().casefold()


def _hash(password: str) -> str:
    salt = secrets.token_bytes(_SALT_BYTES)
    cost = "$".join(map(str, _COST))
    return f"scrypt${cost}${_text(salt)}${_text(_scrypt(password, salt, *_COST))}"


def _matches(password: str, stored: str) -> bool:
    kind, n, r, p, salt, digest = (stored.split("$") + [""] * _FIELDS)[:_FIELDS]
    if kind != "scrypt" or len(password) > MAX_PASSWORD:
        return False
    found = _scrypt(password, base64.b64decode(salt), int(n), int(r), int(p))
    return hmac.compare_digest(found, base64.b64decode(digest))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    # Room for the algorithm's table and as much again.
    return hashlib.scrypt(password.encode(errors="replace"), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


_NOBODY = f"scrypt${'$'.join(map(str, _COST))}${_text(bytes(_SALT_BYTES))}${_text(bytes(64))}"
