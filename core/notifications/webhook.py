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
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import InvalidHeader

from core.notifications.deliveries import Answer
from core.notifications.public_address import resolve
from core.release import release_version

SECRET_PREFIX = "whsec_"  # noqa: S105 - what Standard Webhooks puts before one
_TIMEOUT = urllib3.Timeout(connect=5.0, read=15.0)
_MOST_READ = 2048  # bytes of an answer


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def send(url: str, secret: str, message_id: str, message: dict[str, Any], allowed: Sequence[str]) -> Answer:
    """Make one try. It takes at most as long as connecting and each read may."""
    parts, body, timestamp = urlsplit(url), json.dumps(message, ensure_ascii=False).encode(), int(time.time())
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    headers = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "User-Agent": f"gradient-jobs/{release_version()}",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, message_id, timestamp, body),
    }
    # To the address that was checked: the name may resolve to another one the next time.
    address, tls = resolve(host, port, allowed), {"server_hostname": host, "assert_hostname": host}
    origin = f"{parts.scheme}://{f'[{address}]' if ':' in address else address}:{port}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with urllib3.connection_from_url(origin, timeout=_TIMEOUT, **(tls if parts.scheme == "https" else {})) as pool:
        answer = pool.urlopen(
            "POST", path, body, headers, retries=False, redirect=False, preload_content=False, assert_same_host=False
        )
        text = answer.read(_MOST_READ).decode(errors="replace").strip()
        answer.close()
    retry_after = None
    with suppress(InvalidHeader, ValueError):
        retry_after = urllib3.Retry().get_retry_after(answer)
    delivered = 200 <= answer.status < 300  # noqa: PLR2004 - of HTTP
    return Answer(text, delivered=delivered, status=answer.status, retry_after=retry_after)
