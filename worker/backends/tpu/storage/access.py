"""Access to the bucket for jobs and TPUs.

A job's container gets a short-lived token for its own prefix, the TPU's account the jobs' part of the bucket. Before
anything costs money, its use of the bucket is tried as that account.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import google.auth.credentials
from google.api_core import retry
from google.api_core.exceptions import PreconditionFailed
from google.auth import downscoped, impersonated_credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.cloud import storage
from requests import Session

from core.storage.gcs.credentials import SCOPES
from worker.backends.tpu.storage.errors import BucketRefused, translate_bucket_errors

JOBS = "jobs/"
_OBJECT_ROLE, _LIST_ROLE = "roles/storage.objectUser", "roles/storage.legacyBucketReader"
_POLICY_VERSION = 3  # the first with conditions
_RETRY = retry.Retry(retry.if_exception_type(PreconditionFailed), initial=0.5, maximum=5.0, timeout=60.0)
"""For a policy that another process changes at the same time."""
_LIFETIME_SECONDS = 300
_CONTENT = b"gradient-jobs"
_PERMISSIONS = [f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list")]


@dataclass(frozen=True)
class Token:
    """A short-lived access token that is limited to one prefix."""

    text: str
    expires_at: float  # Unix time


def create_limited_token(
    credentials: google.auth.credentials.Credentials, session: Session, bucket: str, prefix: str
) -> Token:
    """Create a token that reads, writes and lists below one prefix of one bucket, and nothing else.

    Raises `BucketRefused`: Google creates no such token from our credentials.
    """
    resource = f"projects/_/buckets/{bucket}/objects/{prefix}"
    # A listing's resource is the bucket: its prefix is an attribute of the request.
    within = (
        f"resource.name.startsWith('{resource}') || "
        f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('{prefix}')"
    )
    rule = downscoped.AccessBoundaryRule(
        available_resource=f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        available_permissions=[f"inRole:{_OBJECT_ROLE}"],
        availability_condition=downscoped.AvailabilityCondition(within),
    )
    limited = downscoped.Credentials(
        source_credentials=credentials, credential_access_boundary=downscoped.CredentialAccessBoundary([rule])
    )
    try:
        limited.refresh(Request(session))
    except GoogleAuthError as error:
        raise BucketRefused(
            "bucket_refused", f"Google did not limit the worker's token to gs://{bucket}/{prefix}: {error}"
        ) from error
    return Token(str(limited.token), limited.expiry.timestamp() if limited.expiry else 0.0)


def grant_access(bucket: storage.Bucket, account: str) -> None:
    """Grant a service account what it needs for the jobs' part of the bucket, and no more.

    Raises `BucketRefused`: the worker may not read or change the bucket's policy.
    """
    member = f"serviceAccount:{account}"
    resource = f"projects/_/buckets/{bucket.name}/objects/{JOBS}"
    condition = {"title": "gradient-jobs", "expression": f'resource.name.startsWith("{resource}")'}
    wanted = [
        {"role": _OBJECT_ROLE, "members": {member}, "condition": condition},
        {"role": _LIST_ROLE, "members": {member}},
    ]
    with translate_bucket_errors(
        bucket.name, f"giving {account} access ({_OBJECT_ROLE} below {JOBS}, and {_LIST_ROLE})"
    ):
        _RETRY(_add_bindings)(bucket, wanted, member)


def _add_bindings(bucket: storage.Bucket, wanted: Iterable[Mapping[str, Any]], member: str) -> None:
    policy = bucket.get_iam_policy(requested_policy_version=_POLICY_VERSION)
    missing = [binding for binding in wanted if not _has_binding(policy.bindings, binding, member)]
    if missing:
        policy.version = _POLICY_VERSION
        policy.bindings += missing
        bucket.set_iam_policy(policy)


def _has_binding(bindings: Iterable[Mapping[str, Any]], wanted: Mapping[str, Any], member: str) -> bool:
    return any(
        binding["role"] == wanted["role"]
        and member in binding["members"]
        and _expression(binding) == _expression(wanted)
        for binding in bindings
    )


def _expression(binding: Mapping[str, Any]) -> object:
    return (binding.get("condition") or {}).get("expression")


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
    with translate_bucket_errors(bucket.name, "checking its permissions"):
        granted = bucket.test_iam_permissions(_PERMISSIONS)
    return ", ".join(sorted(set(_PERMISSIONS) - set(granted)))


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
            raise BucketRefused(
                "bucket_refused", f"gs://{blob.bucket.name} returned different bytes than were written."
            )
    return ProbeResult(proved=True, statement=f"{account} wrote, read and removed an object in gs://{bucket.name}.")
