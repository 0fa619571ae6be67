"""The service's own Google credentials, which follow a key that is rotated while the service runs."""

import os
from contextlib import suppress
from pathlib import Path

import google.auth
import google.auth.credentials
import google.auth.transport
from google.oauth2 import service_account

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


class _KeyFile(google.auth.credentials.Signing, google.auth.credentials.Credentials):
    """A service account's key, read again whenever its file has changed; a file that is half written is left for later.

    Google's own class reads the file once.
    """

    def __init__(self, path: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # google-auth leaves constructors without types
        self._path = path
        self._version = self._file_version()
        self._key = self._issuer = self._read()

    @property
    def valid(self) -> bool:
        return bool(super().valid) and self._current() is self._issuer

    def refresh(self, request: google.auth.transport.Request) -> None:
        key = self._current()
        key.refresh(request)  # type: ignore[no-untyped-call]  # untyped
        self.token, self.expiry, self._issuer = key.token, key.expiry, key

    @property
    def signer(self) -> object:
        return self._current().signer

    @property
    def signer_email(self) -> str:
        return str(self._current().signer_email)

    def sign_bytes(self, message: bytes) -> bytes:
        return bytes(self._current().sign_bytes(message))

    def _current(self) -> service_account.Credentials:
        with suppress(OSError, ValueError):
            version = self._file_version()
            if version != self._version:
                self._key, self._version = self._read(), version
        return self._key

    def _file_version(self) -> tuple[int, ...]:
        status = Path(self._path).stat()
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _read(self) -> service_account.Credentials:
        key: service_account.Credentials = service_account.Credentials.from_service_account_file(  # type: ignore[no-untyped-call]  # untyped
            self._path, scopes=SCOPES
        )
        return key


def find_credentials() -> tuple[google.auth.credentials.Credentials, str | None]:
    """Return the credentials of the environment and their project. Raises `GoogleAuthError`: there are none."""
    credentials, project = google.auth.default(scopes=SCOPES)
    path = os.environ.get(_KEY_VARIABLE)
    return _KeyFile(path) if path and isinstance(credentials, service_account.Credentials) else credentials, project
