"""Opens the bucket that GRADIENT_STORE__URL names: in S3 or what speaks its protocol, Google's or Azure's storage.

Credentials, region and endpoint are those of the environment, under the names that the clouds' own clients read.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store, from_url

from core.errors import StoreUnavailable
from core.settings import Settings

Bucket = S3Store | GCSStore | AzureStore
FAILURES = (BaseError, OSError)  # what obstore raises; a missing object is a FileNotFoundError
REPLACED = (AlreadyExistsError, PreconditionError)  # the object is not the one that was to be written or read

# One part of a file over a slow line, not only an answer.
_CLIENT: Any = {"allow_http": True, "connect_timeout": "5s", "timeout": "300s", "pool_idle_timeout": "15s"}
# Longer outages are waited for by the callers.
_RETRY: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
_QUERY = re.compile(r"\?[^\s\"]*")  # it may hold a signature
_CERTIFICATE = re.compile(r"InvalidCertificate\((?:\s*\w+\()*\s*(\w+)")
_QUOTED = re.compile(r'"([^"]+)"')
_MESSAGE_CHARACTERS = 600


def open_bucket(settings: Settings) -> tuple[Bucket, str]:
    """Open the bucket, and return the prefix of its objects, too; it is empty or ends with a slash.

    Raises `StoreUnavailable`: the credentials cannot be read.
    """
    scheme, _, path = (settings.store.url or "").partition("://")
    name, _, prefix = path.partition("/")
    prefix = prefix.strip("/")
    config: Any = {}
    if scheme == "gs" and settings.gcs.endpoint is not None:
        config["service_account_key"] = _simulated_key(settings.gcs.endpoint)
    with translate_errors("opening"):
        opened: Bucket = from_url(f"{scheme}://{name}", config=config, client_options=_CLIENT, retry_config=_RETRY)  # type: ignore[assignment]  # of these schemes
    return opened, f"{prefix}/" if prefix else ""


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Convert errors of a bucket, but those of `REPLACED`, into StoreUnavailable: what was tried, and why it failed."""
    try:
        yield
    except REPLACED:
        raise
    except FAILURES as error:
        # Of the dump of the client's own objects that follows the message only the cause.
        message, _, dump = str(error).partition("\n\nDebug source")
        why = ": ".join(filter(None, (" ".join(_QUERY.sub("", message).split()), _cause(dump))))
        raise StoreUnavailable(f"The bucket: {what} failed: {why[:_MESSAGE_CHARACTERS]}") from error


def _cause(dump: str) -> str:
    """Return why a connection failed, which the client's message lacks; empty if it did not."""
    _, _, inner = dump.partition("legacy::Error(")
    if certificate := _CERTIFICATE.search(inner):
        return f"invalid certificate ({certificate[1]})"
    return ": ".join(_QUOTED.findall(inner))


def _simulated_key(endpoint: str) -> str:
    """Return the key of an account at the simulator of Cloud Storage, which lets everybody in."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"client_email": "operator@simulated.iam.gserviceaccount.com", "private_key_id": "1"}
    return json.dumps(account | {"private_key": key.decode(), "gcs_base_url": endpoint})
