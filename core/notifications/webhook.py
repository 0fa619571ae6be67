"""Webhooks as Standard Webhooks describes them: signed, without redirects, to public addresses.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import urllib3
from urllib3.exceptions import InvalidHeader

from core.notifications.deliveries import Answer
from core.release import release_version
from core.system.public_requests import open_public

SECRET_PREFIX = "whsec_"  # noqa: S105 - what Standard Webhooks puts before one
ALLOWED_BY = "GRADIENT_NOTIFICATIONS__ALLOWED"
_TIMEOUT = urllib3.Timeout(connect=5.0, read=15.0)
_MOST_READ = 2048  # bytes of an answer


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def send(url: str, secret: str, message_id: str, message: dict[str, Any], allowed: Sequence[str]) -> Answer:
    """Make one try. It takes at most as long as connecting and each read may."""
    body, timestamp = json.dumps(message, ensure_ascii=False).encode(), int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"gradient-jobs/{release_version()}",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, message_id, timestamp, body),
    }
    how: dict[str, Any] = {"allowed": allowed, "setting": ALLOWED_BY, "timeout": _TIMEOUT}
    with open_public("POST", url, headers, body, **how) as answer:
        text = answer.read(_MOST_READ).decode(errors="replace").strip()
    retry_after = None
    with suppress(InvalidHeader, ValueError):
        retry_after = urllib3.Retry().get_retry_after(answer)
    delivered = 200 <= answer.status < 300  # noqa: PLR2004 - of HTTP
    return Answer(text, delivered=delivered, status=answer.status, retry_after=retry_after)
