"""Browser sessions: signed cookies that stand for an API key, and the one-time tickets that open one."""

import os
import secrets
import threading
import time
from pathlib import Path

from service.signing import Signer

COOKIE = "gradient_session"
SESSION_SECONDS = 30 * 24 * 3600
TICKET_SECONDS = 600

_SECRET_BYTES = 32
_MAX_TICKETS = 1000
_PURPOSE = "gradient-session"


def load_secret(path: Path) -> bytes:
    """The secret that signs cookies, made at first use in a file that only its owner can read."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as out:  # noqa: PTH123 - opens a descriptor, which Path cannot
            out.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            # A link never replaces: of two processes that start at once, both take the first one's secret.
            path.hardlink_to(fresh)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_bytes()


class Sessions:
    """Makes and reads session cookies and login tickets.

    A cookie holds the id of a key, never the key; that the key is still in use is for the caller to check.

    Args:
        secret: Signs the cookies; who has it can make sessions.
    """

    def __init__(self, secret: bytes) -> None:
        self._signer = Signer(secret)
        self._lock = threading.Lock()
        self._tickets: dict[str, tuple[float, str]] = {}

    def issue(self, key_id: str) -> str:
        """The value of a cookie that stands for this key for 30 days."""
        return f"{key_id}.{self._signer.stamp(_PURPOSE, key_id, SESSION_SECONDS)}"

    def read(self, cookie: str) -> str | None:
        """The id of the key that a cookie stands for; None if it is forged, damaged or expired."""
        key_id, _, stamp = cookie.partition(".")
        return key_id if self._signer.holds(_PURPOSE, key_id, stamp) else None

    def issue_ticket(self, key_id: str) -> str:
        """A ticket that opens one session for this key, once, within 10 minutes, in this process."""
        ticket = secrets.token_urlsafe(24)
        with self._lock:
            self._forget_old()
            self._tickets[ticket] = (time.monotonic() + TICKET_SECONDS, key_id)
        return ticket

    def redeem_ticket(self, ticket: str) -> str | None:
        """The id of the key that a ticket is for, the first time; None if it is unknown, used or too old."""
        with self._lock:
            until, key_id = self._tickets.pop(ticket, (0.0, ""))
        return key_id if time.monotonic() < until else None

    def _forget_old(self) -> None:
        current = time.monotonic()
        kept = [(t, entry) for t, entry in self._tickets.items() if entry[0] > current]
        self._tickets = dict(kept[-_MAX_TICKETS + 1 :])
