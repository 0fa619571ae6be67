"""Checks as the TPU's own account that it can use the bucket, before anything costs money."""

import secrets
from dataclasses import dataclass

import google.auth.credentials
from google.auth import impersonated_credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.cloud import storage
from requests import Session

from core.storage.gcs.credentials import SCOPES
from worker.backends.tpu.storage.access import JOBS
from worker.backends.tpu.storage.errors import BucketRefused, translate_bucket_errors

_LIFETIME_SECONDS = 300
_CONTENT = b"gradient-jobs"
_PERMISSIONS = [f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list")]


@dataclass(frozen=True)
class ProbeResult:
    proved: bool
    statement: str


def impersonate(
    credentials: google.auth.credentials.Credentials, session: Session, account: str
) -> google.auth.credentials.Credentials | None:
    """Return credentials of another account; None if the worker may not act as it."""
    other = impersonated_credentials.Credentials(
        source_credentials=credentials, target_principal=account, target_scopes=SCOPES, lifetime=_LIFETIME_SECONDS
    )
    try:
        other.refresh(Request(session))
    except GoogleAuthError:
        return None
    return other


def find_lacking_permissions(bucket: storage.Bucket) -> str:
    """Name the permissions on a bucket's objects that the caller lacks; empty: it lacks none."""
    with translate_bucket_errors(bucket.name, "looking at its permissions"):
        found = bucket.test_iam_permissions(_PERMISSIONS)
    return ", ".join(sorted(set(_PERMISSIONS) - set(found)))


def probe_bucket(bucket: storage.Bucket, account: str) -> ProbeResult:
    """Write, read and remove an object as the account.

    `bucket`: opened by a client that acts as the account. Raises `BucketRefused`: the account may not use the bucket.
    """
    blob = bucket.blob(f"{JOBS}.probe-{secrets.token_hex(8)}")
    with translate_bucket_errors(bucket.name, f"a write, read and removal as {account}"):
        blob.upload_from_string(_CONTENT, checksum="crc32c")
        try:
            read = blob.download_as_bytes()
        finally:
            blob.delete()
        if read != _CONTENT:
            raise BucketRefused("bucket_refused", f"gs://{blob.bucket.name} gave back other bytes than were written.")
    return ProbeResult(proved=True, statement=f"{account} wrote, read and removed an object in gs://{bucket.name}.")
