"""Authentication and authorization: access tokens, impersonation, access boundaries, bucket policies.

A request without a token, or with one that the simulator did not issue, is the operator's and may do everything.
"""

import re
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gradient_server.simulator.gcs.objects import Bucket, StorageError

OPERATOR = "operator"
_MANAGED_DOMAIN = "cloud-tpu.iam.gserviceaccount.com"
_READ, _LIST = "storage.objects.get", "storage.objects.list"
_OBJECT_PERMISSIONS = {_READ, _LIST, "storage.objects.create", "storage.objects.delete"}
_ROLES = {
    "roles/storage.objectViewer": {_READ, _LIST},
    "roles/storage.objectCreator": {"storage.objects.create"},
    "roles/storage.objectUser": _OBJECT_PERMISSIONS,
    "roles/storage.objectAdmin": _OBJECT_PERMISSIONS,
    "roles/storage.admin": {*_OBJECT_PERMISSIONS, "storage.buckets.get"},
    "roles/storage.legacyBucketReader": {_LIST, "storage.buckets.get"},
}
_STARTS_WITH = re.compile(r"""resource\.name\.startsWith\(\s*['"]([^'"]*)['"]\s*\)""")
_LIST_PREFIX = re.compile(r"""objectListPrefix['"]\s*,\s*['"]{2}\s*\)\.startsWith\(\s*['"]([^'"]*)['"]\s*\)""")


@dataclass(frozen=True)
class Caller:
    account: str = OPERATOR  # e-mail address of the service account, or `operator`
    # the access boundary rules of a downscoped token; None: not downscoped
    boundary: tuple[Mapping[str, Any], ...] | None = None
    expires_at: float = float("inf")  # expiry of the token, as Unix time


@dataclass(frozen=True)
class Access:
    permission: str  # the permission needed, such as `storage.objects.get`
    name: str = ""  # the object's name; for a listing, its prefix


class Tokens:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._issued: dict[str, Caller] = {}
        self.required = False  # true: a request without a token that was issued here is refused

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller that an `Authorization` header identifies."""
        token = (authorization or "").removeprefix("Bearer ")
        with self._lock:
            caller = self._issued.get(token, None if self.required else Caller())
        if caller is None or caller.expires_at <= time.time():
            raise StorageError(401, "authError", "Invalid Credentials: the access token is unknown or has expired.")
        return caller

    def impersonate(self, asking: Caller, account: str, lifetime: float) -> dict[str, Any]:
        """Issue a token for another account, like iamcredentials' generateAccessToken."""
        if asking.account != OPERATOR or account.endswith(_MANAGED_DOMAIN):
            raise StorageError(
                403, "forbidden", f"Permission 'iam.serviceAccounts.getAccessToken' denied on resource {account}."
            )
        token = self.issue(Caller(account, None, time.time() + lifetime))
        until = datetime.now(UTC) + timedelta(seconds=lifetime)
        return {"accessToken": token, "expireTime": until.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def downscope(self, subject: str, rules: list[Mapping[str, Any]], lifetime: float = 3600.0) -> dict[str, Any]:
        """Exchange a token for one with an access boundary, like Google's token service."""
        caller = self.caller(subject)
        until = min(caller.expires_at, time.time() + lifetime)
        token = self.issue(Caller(caller.account, tuple(rules), until))
        return {
            "access_token": token,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": int(until - time.time()),
        }

    def issue(self, caller: Caller) -> str:
        token = f"ya29.{secrets.token_urlsafe(24)}"
        with self._lock:
            self._issued[token] = caller
        return token


def check_access(caller: Caller, bucket: Bucket, access: Access) -> None:
    if not has_access(caller, bucket, access):
        raise StorageError(
            403,
            "forbidden",
            f"{caller.account} does not have {access.permission} access to the Google Cloud Storage object.",
        )


def has_access(caller: Caller, bucket: Bucket, access: Access) -> bool:
    allowed = caller.account == OPERATOR or _policy_allows(caller.account, bucket, access)
    if caller.boundary is not None:
        allowed = allowed and any(_rule_allows(rule, bucket.name, access) for rule in caller.boundary)
    return allowed


def _policy_allows(account: str, bucket: Bucket, access: Access) -> bool:
    return any(
        access.permission in _ROLES.get(binding["role"], ())
        and f"serviceAccount:{account}" in binding["members"]
        and _evaluate_condition(binding.get("condition"), bucket.name, access)
        for binding in bucket.policy.get("bindings", ())
    )


def _rule_allows(rule: Mapping[str, Any], bucket: str, access: Access) -> bool:
    if rule["availableResource"] != f"//storage.googleapis.com/projects/_/buckets/{bucket}":
        return False
    roles = [permission.removeprefix("inRole:") for permission in rule["availablePermissions"]]
    granted = any(access.permission in _ROLES.get(role, ()) for role in roles)
    return granted and _evaluate_condition(rule.get("availabilityCondition"), bucket, access)


def _evaluate_condition(condition: Mapping[str, Any] | None, bucket: str, access: Access) -> bool:
    """Return whether a condition holds. Only startsWith is understood; any other condition does not hold."""
    if condition is None:
        return True
    expression = condition["expression"]
    resource = f"projects/_/buckets/{bucket}"
    if access.permission != _LIST:
        resource += f"/objects/{access.name}"
    elif any(access.name.startswith(prefix) for prefix in _LIST_PREFIX.findall(expression)):
        return True
    return any(resource.startswith(prefix) for prefix in _STARTS_WITH.findall(expression))
