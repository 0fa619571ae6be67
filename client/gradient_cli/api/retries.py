"""Repetition of requests: a few times for a submission, as long as needed for a job that runs meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from gradient_cli import terminal
from gradient_cli.errors import TOO_MANY_REQUESTS, ClientError, ServerError

T = TypeVar("T")


_MIN_DELAY = 0.5
_MAX_DELAY = 10.0
# A submission is not repeated after a 500: it may fail in the same way for ever.
_TRANSIENT_FOR_A_FOLLOWER = (TOO_MANY_REQUESTS, 500)


def retry(action: Callable[[], T], delays: Sequence[float]) -> T:
    """Call `action`; after a transient failure wait and call it again, once for each delay."""
    for delay in delays:
        try:
            return action()
        except ClientError as error:
            if not (error.transient or _is_limited(error)):
                raise
            terminal.print_message(f"{error}; trying again…")
            time.sleep(_delay_after(error, delay))
    return action()


def retry_delay(error: ClientError, delay: float) -> float:
    """Return the seconds until a request about a submitted job is repeated: `delay`, or the Retry-After of a limit."""
    if not (error.transient or (isinstance(error, ServerError) and error.status in _TRANSIENT_FOR_A_FOLLOWER)):
        raise error
    return _delay_after(error, delay)


class Reconnection:
    """The attempts to reach a server that cannot answer, while a submitted job runs on."""

    def __init__(self) -> None:
        self.lost = False
        self._delay = _MIN_DELAY

    def delay_after(self, error: ClientError | None) -> float:
        """Return the seconds until the next attempt, and print after the first failure what is waited for.

        `error`: why the attempt failed; None: the server ended the response too early.
        """
        wait = jitter(self._delay) if error is None else retry_delay(error, self._delay)
        if not self.lost:
            cause = str(error).rstrip(".") if isinstance(error, ServerError) else "connection lost"
            terminal.print_message(terminal.style(f"{cause}, trying again…", "yellow", sys.stderr))
            self.lost = True
        self._delay = min(self._delay * 2, _MAX_DELAY)
        return wait

    def succeed(self) -> None:
        """Start again with short delays, after a successful attempt."""
        self.lost, self._delay = False, _MIN_DELAY


def retry_until_connected(request: Callable[[], T]) -> T:
    """Send a request, again and again while the server cannot answer: it may restart during a long wait."""
    reconnection = Reconnection()
    while True:
        try:
            return request()
        except ClientError as error:
            delay = reconnection.delay_after(error)
        time.sleep(delay)


def jitter(delay: float) -> float:
    """Change a delay by up to a fifth at random, so that disconnected clients do not all return at once."""
    return delay * (0.8 + 0.4 * os.urandom(1)[0] / 255)


def _delay_after(error: ClientError, delay: float) -> float:
    limited = error.retry_after if isinstance(error, ServerError) and _is_limited(error) else 0.0
    return max(jitter(delay), limited)


def _is_limited(error: ClientError) -> bool:
    return isinstance(error, ServerError) and error.status == TOO_MANY_REQUESTS
