"""A short-lived cache of database lookups."""

import threading
import time
from typing import Generic, TypeVar

from cachetools import TTLCache

K = TypeVar("K")
V = TypeVar("V")

_MAX_ENTRIES = 4096


class RowCache(Generic[K, V]):
    """Caches values for some seconds, and collects which rows were used; for any thread.

    `most`: most entries at once; the least recently used is dropped.
    """

    def __init__(self, seconds: float, most: int = _MAX_ENTRIES) -> None:
        self._lock = threading.Lock()
        self._entries: TTLCache[K, tuple[str, V]] = TTLCache(most, seconds, _clock)
        self._used: set[str] = set()

    def get(self, key: K) -> V | None:
        """Return the cached value; None if there is none or it has expired."""
        with self._lock:
            row_id, value = self._entries.get(key, (None, None))
            if row_id is not None:
                self._used.add(row_id)
            return value

    def put(self, key: K, row_id: str, value: V) -> None:
        with self._lock:
            self._entries[key] = (row_id, value)
            self._used.add(row_id)

    def drop(self, key: K) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def take_used(self) -> set[str]:
        """Return the ids of the rows used since the last call."""
        with self._lock:
            used, self._used = self._used, set()
        return used


def _clock() -> float:
    return time.monotonic()
