"""Signed URLs, with which anyone can fetch one object for a limited time."""

from base64 import b64decode, b64encode
from datetime import timedelta

import google.auth.credentials
from google.api_core.exceptions import from_http_response
from google.auth.transport.requests import Request
from google.cloud import storage
from requests import Session

_SIGN = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{account}:signBlob"


class _GoogleSigner(google.auth.credentials.Signing, google.auth.credentials.Credentials):
    """Has Google sign for an account without a private key here; Google's library does not tell a refusal apart.

    `session`: authorized as an account that may sign.
    """

    def __init__(self, account: str, session: Session) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # google-auth leaves constructors without types
        self._account = account
        self._session = session

    @property
    def signer(self) -> None:
        """None: Google has the key."""

    @property
    def signer_email(self) -> str:
        return self._account

    def sign_bytes(self, message: bytes) -> bytes:
        answer = self._session.post(
            _SIGN.format(account=self._account), json={"payload": b64encode(message).decode()}, timeout=60
        )
        if not answer.ok:
            raise from_http_response(answer)  # type: ignore[no-untyped-call]  # untyped
        return b64decode(answer.json()["signedBlob"])

    def refresh(self, request: object) -> None:
        """Do nothing: it only signs."""


def signed_url(blob: storage.Blob, seconds: float) -> str | None:
    """Sign a URL of an object, which then needs no credentials.

    Returns the URL; None if the credentials cannot sign. Raises `GoogleAPICallError, GoogleAuthError,
    RequestException`: Google does not sign for a machine's own account.
    """
    credentials = blob.client._credentials  # noqa: SLF001 - the client has no public way to get them
    if not isinstance(credentials, google.auth.credentials.Signing):
        if not hasattr(credentials, "service_account_email"):
            return None
        if not credentials.valid:  # the account's name is known with the first token
            credentials.refresh(Request())
        credentials = _GoogleSigner(credentials.service_account_email, blob.client._http)  # noqa: SLF001 - likewise
    url: str = blob.generate_signed_url(version="v4", expiration=timedelta(seconds=seconds), credentials=credentials)
    return url
