"""Stamps: signatures that expire, on links and tokens issued to the holder of an API key.

The signing keys are in a file, newest first: the newest signs, all of them verify.
"""

import hashlib
import secrets
import threading
from contextlib import suppress
from pathlib import Path

from itsdangerous import BadSignature, TimestampSigner

from core.errors import SecretUnreadable, Unauthorized
from core.security.api_keys import ApiKeyCache
from core.system.filesystem import write_atomically

SIGNING_KEYS = "session.key"  # name of the file with the signing keys, under GRADIENT_HOME
_KEY_BYTES = 32


class SigningKeys:
    """The signing keys, in a file that only its owner can read; the first is created when needed.

    `path`: the file: keys of 32 bytes each, without separators.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._read_at: tuple[int, int] | None = None
        self._keys: tuple[bytes, ...] = ()

    def all(self) -> tuple[bytes, ...]:
        """Return every key, newest first; reread after another process has replaced the file."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            with suppress(FileExistsError):  # of two processes that start at once, both use the first one's key
                self._write(replace=False)
            status = self._path.stat()
        with self._lock:
            version = (status.st_ino, status.st_mtime_ns)
            if version != self._read_at:
                content = self._path.read_bytes()
                whole = range(0, len(content) - _KEY_BYTES + 1, _KEY_BYTES)
                self._keys = tuple(content[start : start + _KEY_BYTES] for start in whole)
                self._read_at = version
            if not self._keys:
                raise SecretUnreadable(
                    f"{self._path} does not contain a key of {_KEY_BYTES} bytes. Delete the file: a new key is created."
                )
            return self._keys

    def rotate(self, *, forget: bool = False) -> None:
        """Sign with a new key, keeping the previous one for verification.

        `forget`: keep no older key, so that everything signed before is refused at once.
        """
        older = () if forget else self.all()[:1]
        self._write(older)

    def _write(self, older: tuple[bytes, ...] = (), *, replace: bool = True) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._path, [secrets.token_bytes(_KEY_BYTES), *older], replace=replace)


class Signer:
    def __init__(self, signing_keys: SigningKeys, keys: ApiKeyCache) -> None:
        self._signing_keys = signing_keys
        self._keys = keys

    def sign(self, purpose: str, text: str, key_id: str) -> str:
        """Sign a text for the holder of an API key.

        Returns `key.time.signature`, in characters that need no quoting in a URL.
        """
        return self._timestamp_signer(purpose, text).sign(key_id).decode()

    def key_id(self, purpose: str, text: str, stamp: str, seconds: int) -> str | None:
        """Verify a stamp: signature of this text for this purpose, age, and validity of its API key.

        Returns the id of the key that it was issued for; None: it is not valid.
        """
        try:
            key_id = (
                self._timestamp_signer(purpose, text).unsign(stamp.encode(errors="replace"), max_age=seconds).decode()
            )
            return self._keys.get(key_id).id
        except (BadSignature, Unauthorized):
            return None

    def _timestamp_signer(self, purpose: str, text: str) -> TimestampSigner:
        oldest_first = self._signing_keys.all()[::-1]
        salt = f"{purpose}:{text}".encode(errors="replace")
        return TimestampSigner(oldest_first, salt, key_derivation="hmac", digest_method=hashlib.sha256)
