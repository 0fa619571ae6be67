"""Webhooks as Standard Webhooks describes them: signed, without redirects, to public addresses.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import urllib3

from core.errors import SpecInvalid
from core.notifications.deliveries import Answer
from core.notifications.public_address import resolve
from core.notifications.receivers import SECRET_PREFIX
from core.release import release_version

_CONNECT_SECONDS, _READ_SECONDS = 5.0, 15.0
_MOST_READ = 2048  # bytes of an answer
_GONE = 410


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def post(url: str, secret: str, message_id: str, message: dict[str, Any], allowed: list[str]) -> Answer:
    """Make one try. It takes at most as long as connecting and each read may; never raises."""
    start = time.monotonic()
    try:
        return _post(url, secret, message_id, json.dumps(message, ensure_ascii=False).encode(), allowed)
    except (SpecInvalid, urllib3.exceptions.HTTPError, OSError, UnicodeError, ValueError) as error:
        text = error.message if isinstance(error, SpecInvalid) else _describe(error)
        return Answer(delivered=False, status=None, text=text, seconds=time.monotonic() - start)


def _post(url: str, secret: str, message_id: str, body: bytes, allowed: list[str]) -> Answer:
    start, timestamp, parts = time.monotonic(), int(time.time()), urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    headers = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "User-Agent": f"gradient-jobs/{release_version()}",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, message_id, timestamp, body),
    }
    # To the address that was checked: the name may resolve to another one the next time.
    address, timeout = resolve(host, port, allowed), urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
    pool: urllib3.HTTPConnectionPool
    if parts.scheme == "https":
        pool = urllib3.HTTPSConnectionPool(address, port, timeout=timeout, server_hostname=host, assert_hostname=host)
    else:
        pool = urllib3.HTTPConnectionPool(address, port, timeout=timeout)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with pool:
        answer = pool.urlopen(
            "POST", path, body, headers, retries=False, redirect=False, preload_content=False, assert_same_host=False
        )
        text = answer.read(_MOST_READ).decode(errors="replace").strip()
        answer.close()
    return Answer(
        delivered=200 <= answer.status < 300,  # noqa: PLR2004 - of HTTP
        status=answer.status,
        text=text,
        seconds=time.monotonic() - start,
        retry_after=_parse_retry_after(answer.headers.get("Retry-After", "")),
        gone=answer.status == _GONE,
    )


def _parse_retry_after(text: str) -> float | None:
    """Return the seconds of `Retry-After`, which has a number or a date."""
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        return (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None


def _describe(error: Exception) -> str:
    """Return what went wrong, without the path of the URL, which may be secret."""
    reason = getattr(error, "reason", None) or error
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return f"No answer within {_READ_SECONDS:.0f} seconds"
    return str(reason).rpartition(": ")[2] or type(error).__name__
