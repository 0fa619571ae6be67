"""A TensorBoard that is open, and its visitors."""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.security.one_time_tokens import TTL_SECONDS
from service.tensorboard.board_process import BoardProcess

TOKEN_BYTES = 24
_MAX_VISITORS = 100


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who may see a board."""

    key_id: str
    authorize: Callable[[], Awaitable[object]]  # raises `Unauthorized` once the key or the session is no longer valid


@dataclass(slots=True)
class Board:
    id: str  # the first part of its path; a secret, so that no job can make a browser send the board's cookie
    folders: Mapping[str, Path]
    process: BoardProcess
    used_at: float = field(default_factory=time.monotonic)
    _tickets: dict[str, tuple[float, Visitor]] = field(default_factory=dict)
    _visitors: dict[str, Visitor] = field(default_factory=dict)

    def issue_ticket(self, visitor: Visitor) -> str:
        """Return a ticket that lets the visitor in, once, within ten minutes."""
        ticket = secrets.token_urlsafe(TOKEN_BYTES)
        self._tickets[ticket] = (time.monotonic() + TTL_SECONDS, visitor)
        _keep_newest(self._tickets)
        return ticket

    def redeem(self, ticket: str) -> str | None:
        """Return the token of a visitor's cookie for a ticket; None if it is unknown, used or expired."""
        until, visitor = self._tickets.pop(ticket, (0.0, None))
        if visitor is None or time.monotonic() > until:
            return None
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._visitors[token] = visitor
        _keep_newest(self._visitors)
        return token

    def visitor(self, token: str | None) -> Visitor | None:
        return self._visitors.get(token or "")


def _keep_newest(entries: dict[str, Any]) -> None:
    while len(entries) > _MAX_VISITORS:
        del entries[next(iter(entries))]
