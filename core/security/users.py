"""Users. Of a password only a slow hash (Argon2id) is stored; who signs in elsewhere has none.

Login issues an API key; removing a user revokes the keys issued to them.
"""

import re
from collections.abc import Sequence

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.credentials import ApiKey, Identity, User, UserKey
from core.db.models.project_members import ProjectMember
from core.errors import NotFound, SpecInvalid, Unauthorized
from core.ids import new_id
from core.security import api_keys
from core.security.actor import record_change
from core.security.key_rights import KeyRights

MIN_PASSWORD = 10
MAX_PASSWORD = 1024
_MAX_EMAIL = 254
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\Z")
# 16 MiB and about 0.1 s of one CPU, more work than OWASP's cheat sheet requires.
_hasher = PasswordHasher(time_cost=8, memory_cost=16 * 1024, parallelism=1)
_NO_PASSWORD = f"$argon2id$v=19$m=16384,t=8,p=1${'A' * 22}${'A' * 43}"  # a hash of the same cost that no password has


def create(session: Session, email: str, password: str | None) -> User:
    """Create a user; `password`: None if the user signs in elsewhere."""
    address = normalize_email(email)
    if not (_EMAIL.match(address) and address.isprintable() and len(address) <= _MAX_EMAIL):
        raise SpecInvalid("Not an e-mail address; one looks like name@host.", field="email")
    if password is not None and not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise SpecInvalid(
            f"The password has {len(password)} characters; {MIN_PASSWORD} to {MAX_PASSWORD} are allowed.",
            field="password",
        )
    values = {
        "id": new_id("u"),
        "email": address,
        "password": _NO_PASSWORD if password is None else _hasher.hash(password.encode(errors="replace")),
        "created_at": now(),
    }
    record_change(session, "user_created", address)
    try:
        return session.scalars(insert(User).values(values).returning(User)).one()
    except IntegrityError as error:
        raise SpecInvalid(f"The user {address} already exists. Delete the user first to set a new password.") from error


def list_users(session: Session) -> list[User]:
    return list(session.scalars(select(User).order_by(User.email)))


def get(session: Session, email: str) -> User:
    user = session.scalar(select(User).where(User.email == normalize_email(email)))
    if user is None:
        raise NotFound(f"No such user: {email!r}. `gradient-server users list` shows them.", field="email")
    return user


def remove(session: Session, email: str) -> Sequence[ApiKey]:
    """Delete a user and revoke the keys issued to them at login.

    Returns the revoked keys. Raises `NotFound`: there is no user with this address.
    """
    user = get(session, email)
    ids = session.scalars(select(UserKey.key_id).where(UserKey.user_id == user.id)).all()
    revoked = [api_keys.revoke(session, key_id) for key_id in ids]
    session.execute(delete(ProjectMember).where(ProjectMember.member == user.id))
    session.execute(delete(Identity).where(Identity.user_id == user.id))
    session.execute(delete(User).where(User.id == user.id))
    record_change(session, "user_deleted", user.email)
    return revoked


def sign_in(session: Session, email: str, password: str) -> User:
    """Authenticate a user by address and password. Raises `Unauthorized`: the address or the password is wrong."""
    user = session.scalar(select(User).where(User.email == normalize_email(email)))
    # An unknown address takes as long to check, so that addresses cannot be found by timing.
    stored = user.password if user is not None else _NO_PASSWORD
    if not _verify_password(password, stored) or user is None:
        raise Unauthorized("The e-mail address or the password is wrong.")
    return user


def keys_of_same_user(session: Session, key_id: str) -> set[str]:
    """Return the ids of the keys issued to the user of this key; of a key without a user, its own."""
    user_id = select(UserKey.user_id).where(UserKey.key_id == key_id).scalar_subquery()
    return {key_id, *session.scalars(select(UserKey.key_id).where(UserKey.user_id == user_id))}


def identity_of(session: Session, key_id: str) -> str:
    """Return the id of the user of a key; of a key without a user, its own."""
    return session.scalar(select(UserKey.user_id).where(UserKey.key_id == key_id)) or key_id


def create_key_for(session: Session, user_id: str, name: str, *, days: float | None = None) -> tuple[ApiKey, str]:
    """Create an API key for a user who has signed in.

    `days`: days until it expires; None: never. Returns its row, and the key itself, which cannot be shown again. Raises
    `Unauthorized`: the user was deleted meanwhile.
    """
    user = session.get(User, user_id)
    if user is None:
        raise Unauthorized("This user no longer exists.")
    of_groups = select(ApiKey.rights).join(Identity, Identity.key_id == ApiKey.id).where(Identity.user_id == user_id)
    key, secret = api_keys.create(session, name, days=days, rights=KeyRights.of(session.scalar(of_groups)))
    session.execute(insert(UserKey).values(key_id=key.id, user_id=user.id))
    return key, secret


def normalize_email(email: str) -> str:
    return email.strip().casefold()


def _verify_password(password: str, stored: str) -> bool:
    if len(password) > MAX_PASSWORD:
        return False
    try:
        return _hasher.verify(stored, password.encode(errors="replace"))
    except (VerificationError, InvalidHashError):
        return False
