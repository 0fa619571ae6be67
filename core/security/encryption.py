"""Encryption at rest of secrets: Fernet (AES-128-CBC and HMAC-SHA256), with keys outside the database.

An encrypted value names its key and is bound to its purpose: it cannot be decrypted if copied to another row.
"""

import base64
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from core.errors import SecretUnreadable
from core.settings import Settings
from core.system.filesystem import write_atomically

KEY_FILE = "secrets.key"
_ACCESS_BY_OTHERS = 0o007
_KEY_BYTES = 32
_MAX_OLD_KEYS = 2  # after a rotation, processes that read the file just before may still encrypt with the previous key


class Vault:
    """Encrypts and decrypts texts. Keys are read at each use, so that a rotation needs no restart.

    What needs a key or a value that cannot be read raises SecretUnreadable. `settings`: contain the keys, or the folder
    of the key file: one key per line, the first for new values.
    """

    def __init__(self, settings: Settings) -> None:
        self._given = [key.get_secret_value() for key in settings.secrets.encryption_keys]
        self._path = settings.root / KEY_FILE

    @property
    def key_location(self) -> str:
        return "GRADIENT_SECRETS__ENCRYPTION_KEYS" if self._given else str(self._path)

    @property
    def keys_from_settings(self) -> bool:
        return bool(self._given)

    def encrypt(self, purpose: str, text: str) -> str:
        """Encrypt a text; creates the first key if there is none."""
        key = (self.keys() or self._first())[0]
        token: bytes = _fernet().Fernet(key).encrypt(_bind_purpose(purpose, text))
        return f"{key_id(key)}:{token.decode()}"

    def decrypt(self, purpose: str, sealed: str) -> str:
        wanted, _, token = sealed.partition(":")
        keys = {key_id(key): key for key in self.keys()}
        if wanted not in keys:
            here = f"holds {', '.join(keys)}" if keys else "holds no key"
            raise SecretUnreadable(
                f"The value was encrypted with key {wanted[:8]!r}, but {self.key_location} {here}. Restore that "
                "key, or set the value again."
            )
        fernet = _fernet()
        try:
            bound: bytes = fernet.Fernet(keys[wanted]).decrypt(token)
        except fernet.InvalidToken:
            bound = b""
        start = _bind_purpose(purpose, "")
        if not bound.startswith(start):
            raise SecretUnreadable(
                "The stored value was tampered with or belongs to another entry. Set the value again."
            )
        return bound[len(start) :].decode()

    def reencrypt(self, purpose: str, sealed: str) -> str:
        """Re-encrypt a value with the first key."""
        return self.encrypt(purpose, self.decrypt(purpose, sealed))

    @contextmanager
    def lock_keys(self) -> Iterator[None]:
        """Keep other rotations from changing the key file meanwhile; waits for one that does."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Not the key file itself, which is replaced.
        with self._path.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def add_key(self) -> None:
        """Add a new key at the start of the file, under `lock_keys`."""
        self._write([_new_key(), *self.keys()])

    def drop_old_keys(self) -> None:
        """Keep only the file's first two keys, under `lock_keys`; no value may be encrypted with another."""
        self._write(self.keys()[:_MAX_OLD_KEYS])

    def keys(self) -> list[str]:
        if self._given:
            return self._checked(self._given)
        try:
            if self._path.stat().st_mode & _ACCESS_BY_OTHERS:
                raise SecretUnreadable(f"Other users can access {self._path}: run chmod 600 on it.")
            keys = self._path.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise SecretUnreadable(f"The keys in {self._path} cannot be read: {error}") from error
        return self._checked(keys)

    def _checked(self, keys: list[str]) -> list[str]:
        # An empty file is an error: a new first key could not decrypt existing values.
        if not keys or not all(_is_key(key) for key in keys):
            raise SecretUnreadable(
                f"{self.key_location} is empty or holds a value that is not a key (32 bytes in URL-safe Base64)."
            )
        return keys

    def _first(self) -> list[str]:
        with suppress(FileExistsError):  # another process was first; its key is used
            self._write([_new_key()], replace=False)
        return self.keys()

    def _write(self, keys: list[str], *, replace: bool = True) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._path, "".join(f"{key}\n" for key in keys).encode("ascii"), replace=replace)


def key_id(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:8]


def _new_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode()


def _fernet() -> Any:  # noqa: ANN401 - a module
    return import_module("cryptography.fernet")  # it takes 7 MiB, and most servers have no secrets


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, altchars="-_", validate=True)) == _KEY_BYTES
    except ValueError:
        return False


def _bind_purpose(purpose: str, text: str) -> bytes:
    return f"{purpose}\0{text}".encode()
