"""Keeps passwords from being guessed, and the costly check of them from taking the machine."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException

from core.errors import Unauthorized

_AT_ONCE = 2
_WAIT_SECONDS = 5.0
_REMEMBERED = 10_000


class Throttle:
    """Counts failures by name, in this process.

    Args:
        failures: So many are allowed within `seconds`.
        seconds: How long a failure is remembered.
    """

    def __init__(self, failures: int, seconds: float) -> None:
        self._failures = failures
        self._seconds = seconds
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._failed: OrderedDict[str, list[float]] = OrderedDict()

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """One try; `Unauthorized` within is a failure, an end without it forgets the earlier ones.

        Raises:
            HTTPException: 429: too many failed, or too many are tried at once.
        """
        if len(self._recent(name)) >= self._failures:
            raise HTTPException(429, "Too many wrong passwords for this address. Try again in 10 minutes.")
        if not self._room.acquire(timeout=_WAIT_SECONDS):
            raise HTTPException(429, "Too many sign in at once. Try again in a moment.")
        try:
            yield
        except Unauthorized:
            self._note(name)
            raise
        finally:
            self._room.release()
        with self._lock:
            self._failed.pop(name, None)

    def _recent(self, name: str) -> list[float]:
        since = time.monotonic() - self._seconds
        with self._lock:
            return [at for at in self._failed.get(name, ()) if at > since]

    def _note(self, name: str) -> None:
        recent = self._recent(name)
        with self._lock:
            self._failed[name] = [*recent, time.monotonic()][-self._failures :]
            self._failed.move_to_end(name)
            if len(self._failed) > _REMEMBERED:
                self._failed.popitem(last=False)
