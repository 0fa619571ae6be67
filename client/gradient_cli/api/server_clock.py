"""The server's clock, as the `Date` of its last response tells it: this machine's may be wrong."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

_LEAST_SECONDS = 3.0  # smaller differences come from the second that a `Date` is rounded to, and from the network

_last: tuple[str, float] | None = None


def record(date: str | None) -> None:
    """Record the `Date` of a response that has just arrived."""
    global _last  # noqa: PLW0603  one clock of one process
    if date:
        _last = date, time.time()


def is_known() -> bool:
    return _last is not None


def now() -> datetime:
    """Return the time by the server's clock; by this machine's, if no response has told it."""
    here = datetime.now(timezone.utc)
    if _last is None:
        return here
    try:
        ahead = parsedate_to_datetime(_last[0]).timestamp() - _last[1]
    except (TypeError, ValueError):
        return here
    return here + timedelta(seconds=ahead) if abs(ahead) >= _LEAST_SECONDS else here
