"""Users who sign in with e-mail and password. Only a slow hash of the password (scrypt) is stored.

Login issues an API key; removing a user revokes the keys issued to them.
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
# N, r and p: 16 MiB and at least 0.1 s; one of the parameter sets for scrypt in OWASP's cheat sheet.
_COST = (2**14, 8, 5)
_SALT_BYTES = 16
_FIELDS = 6


def create(session: Session, email: str, password: str) -> User:
    """Create a user.

    Raises:
        SpecInvalid: The address is not valid or taken, or the password is too short or too long.
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
    """Return all users, ordered by address."""
    return list(session.scalars(select(User).order_by(User.email)))


def remove(session: Session, email: str) -> Sequence[ApiKey]:
    """Delete a user and revoke the keys issued to them at login.

    Returns:
        The revoked keys.

    Raises:
        NotFound: There is no user with this address.
    """
    user = session.scalar(select(User).where(User.email == _address(email)))
    if user is None:
        raise NotFound(f"No such user: {email!r}. `gradient-server users list` shows them.", field="email")
    ids = session.scalars(select(UserKey.key_id).where(UserKey.user_id == user.id)).all()
    revoked = [keys.revoke(session, key_id) for key_id in ids]
    session.execute(delete(User).where(User.id == user.id))
    return revoked


def sign_in(session: Session, email: str, password: str) -> User:
    """Authenticate a user by address and password.

    Raises:
        Unauthorized: The address or the password is wrong.
    """
    user = session.scalar(select(User).where(User.email == _address(email)))
    # An unknown address takes as long to check, so that addresses cannot be found by timing.
    stored = user.password if user is not None else _NOBODY
    if not _matches(password, stored) or user is None:
        raise Unauthorized("The e-mail address or the password is wrong.")
    return user


def give_key(session: Session, user_id: str, name: str, *, days: float | None = None) -> tuple[ApiKey, str]:
    """Create an API key for a user who has signed in.

    Args:
        session: Writes.
        user_id: Id of the user.
        name: Name of the key.
        days: Days until it expires; None: never.

    Returns:
        Its row, and the key itself, which cannot be shown again.

    Raises:
        Unauthorized: The user was deleted meanwhile.
        SpecInvalid: The name or the days are not valid.
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
    # Twice the size of the algorithm's table.
    return hashlib.scrypt(password.encode(errors="replace"), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


_NOBODY = f"scrypt${'$'.join(map(str, _COST))}${_text(bytes(_SALT_BYTES))}${_text(bytes(64))}"
