"""A short-lived cache of database lookups."""

import threading
import time
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MOST = 4096


class Recent(Generic[K, V]):
    """Caches values for some seconds, evicts the oldest if there are too many, and collects which rows were used.

    Args:
        seconds: Lifetime of an entry.
        most: Most entries at once.
    """

    def __init__(self, seconds: float, most: int = _MOST) -> None:
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[K, tuple[float, str, V]] = OrderedDict()
        self._used: set[str] = set()

    def get(self, by: K) -> V | None:
        """Return the cached value; None if there is none or it has expired."""
        with self._lock:
            found = self._answers.get(by)
            if found is None or time.monotonic() >= found[0]:
                return None
            self._used.add(found[1])
            return found[2]

    def put(self, by: K, row_id: str, answer: V) -> None:
        """Cache a value.

        Args:
            by: The cache key.
            row_id: Id of the row that it comes from, which counts as used.
            answer: The value.
        """
        with self._lock:
            self._answers[by] = (time.monotonic() + self._seconds, row_id, answer)
            self._answers.move_to_end(by)
            self._used.add(row_id)
            if len(self._answers) > self._most:
                self._answers.popitem(last=False)

    def drop(self, by: K) -> None:
        """Drop an entry."""
        with self._lock:
            self._answers.pop(by, None)

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._answers.clear()

    def take_used(self) -> set[str]:
        """Return the ids of the rows used since the last call."""
        with self._lock:
            used, self._used = self._used, set()
        return used
