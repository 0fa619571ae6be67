"""Authentication and authorization: access tokens, impersonation, access boundaries, bucket policies.

A request without a token, or with one that the simulator did not issue, is the operator's and may do everything.
"""

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradient_server.simulator.gcs.objects import Bucket, StorageError

OPERATOR = "operator"
LIST = "storage.objects.list"
_MANAGED_DOMAIN = "cloud-tpu.iam.gserviceaccount.com"
_OBJECT_PERMISSIONS = {LIST, "storage.objects.get", "storage.objects.create", "storage.objects.delete"}
_ROLES = {
    "roles/storage.objectViewer": {LIST, "storage.objects.get"},
    "roles/storage.objectCreator": {"storage.objects.create"},
    "roles/storage.objectUser": _OBJECT_PERMISSIONS,
    "roles/storage.objectAdmin": _OBJECT_PERMISSIONS,
    "roles/storage.admin": {*_OBJECT_PERMISSIONS, "storage.buckets.get"},
    "roles/storage.legacyBucketReader": {LIST, "storage.buckets.get"},
}
_STARTS_WITH = re.compile(r"""resource\.name\.startsWith\(\s*['"]([^'"]*)['"]\s*\)""")
_LIST_PREFIX = re.compile(r"""objectListPrefix['"]\s*,\s*['"]{2}\s*\)\.startsWith\(\s*['"]([^'"]*)['"]\s*\)""")


@dataclass(frozen=True)
class Caller:
    account: str = OPERATOR  # e-mail address of the service account, or `operator`
    boundary: Sequence[Mapping[str, Any]] | None = None  # access boundary rules; None: the token is not downscoped
    expires_at: float = float("inf")  # expiry of the token, as Unix time


class Tokens:
    def __init__(self) -> None:
        self._issued: dict[str, Caller] = {}
        self.required = False  # true: a request without a token that was issued here is refused

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller that an `Authorization` header identifies."""
        token = (authorization or "").removeprefix("Bearer ")
        caller = self._issued.get(token, None if self.required else Caller())
        if caller is None or caller.expires_at <= time.time():
            raise StorageError(401, "Invalid Credentials: the access token is unknown or has expired.")
        return caller

    def impersonate(self, asking: Caller, account: str, lifetime: float) -> dict[str, Any]:
        """Issue a token for another account, like iamcredentials' generateAccessToken."""
        if asking.account != OPERATOR or account.endswith(_MANAGED_DOMAIN):
            raise StorageError(403, f"Permission 'iam.serviceAccounts.getAccessToken' denied on resource {account}.")
        until = time.time() + lifetime
        shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until))
        return {"accessToken": self.issue(Caller(account, None, until)), "expireTime": shown}

    def downscope(self, subject: str, rules: Sequence[Mapping[str, Any]], lifetime: float = 3600.0) -> dict[str, Any]:
        """Exchange a token for one with an access boundary, like Google's token service."""
        caller = self.caller(subject)
        until = min(caller.expires_at, time.time() + lifetime)
        return {
            "access_token": self.issue(replace(caller, boundary=rules, expires_at=until)),
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": int(until - time.time()),
        }

    def issue(self, caller: Caller) -> str:
        token = f"ya29.{secrets.token_urlsafe(24)}"
        self._issued[token] = caller
        return token


def has_access(caller: Caller, bucket: Bucket, permission: str, name: str = "") -> bool:
    """Return whether policy and boundary give a permission. `name`: of the object; of a listing, its prefix."""
    member = f"serviceAccount:{caller.account}"
    allowed = caller.account == OPERATOR or any(
        member in binding["members"]
        and permission in _ROLES.get(binding["role"], ())
        and _is_met(binding.get("condition"), bucket, permission, name)
        for binding in bucket.policy.get("bindings", ())
    )
    resource = f"//storage.googleapis.com/projects/_/buckets/{bucket.name}"
    return allowed and (
        caller.boundary is None
        or any(
            rule["availableResource"] == resource
            and any(permission in _ROLES.get(role.removeprefix("inRole:"), ()) for role in rule["availablePermissions"])
            and _is_met(rule.get("availabilityCondition"), bucket, permission, name)
            for rule in caller.boundary
        )
    )


def _is_met(condition: Mapping[str, Any] | None, bucket: Bucket, permission: str, name: str) -> bool:
    """Return whether a condition holds. Only startsWith is understood; any other condition does not hold."""
    if condition is None:
        return True
    resource = f"projects/_/buckets/{bucket.name}"
    if permission == LIST:
        if any(name.startswith(prefix) for prefix in _LIST_PREFIX.findall(condition["expression"])):
            return True
    else:
        resource += f"/objects/{name}"
    return any(resource.startswith(prefix) for prefix in _STARTS_WITH.findall(condition["expression"]))
