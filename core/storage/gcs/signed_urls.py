"""Signed URLs, with which anyone can fetch one object for a limited time."""

from datetime import timedelta

import google.auth.credentials
import google.auth.transport.requests
from google.cloud import storage

from core.storage.gcs.client import translate_errors


def signed_url(blob: storage.Blob, seconds: float, headers: dict[str, str] | None = None) -> str | None:
    """Sign a URL of an object, which then needs no credentials.

    Args:
        headers: `Content-Type` and `Content-Disposition` of the answer; default: the object's own.

    Returns:
        The URL; None if the credentials cannot sign.
    """
    credentials = blob.client._credentials  # noqa: SLF001 - the client has no public way to get them
    signer: dict[str, str] = {}
    if not isinstance(credentials, google.auth.credentials.Signing):
        account = getattr(credentials, "service_account_email", None)
        if account is None:
            return None
        # A machine's own account has no private key here: Google signs for it.
        if not credentials.valid:
            with translate_errors("a token to sign with"):
                credentials.refresh(google.auth.transport.requests.Request())
        signer = {"service_account_email": account, "access_token": credentials.token}
    with translate_errors("signing an address"):
        url: str = blob.generate_signed_url(
            version="v4",
            expiration=timedelta(seconds=seconds),
            response_type=headers["Content-Type"] if headers else None,
            response_disposition=headers["Content-Disposition"] if headers else None,
            **signer,
        )
    return url
