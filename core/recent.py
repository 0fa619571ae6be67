"""Answers of the database that are trusted for some seconds, so that not every request asks it again."""

import threading
import time
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MOST = 4096


class Recent(Generic[K, V]):
    """Keeps answers for some seconds, the last used ones if there are too many, and notes which were used.

    Args:
        seconds: How long an answer is trusted.
        most: Answers kept at once.
    """

    def __init__(self, seconds: float, most: int = _MOST) -> None:
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[K, tuple[float, str, V]] = OrderedDict()
        self._used: set[str] = set()

    def get(self, by: K) -> V | None:
        """The answer of a moment ago; None if there is none."""
        with self._lock:
            found = self._answers.get(by)
            if found is None or time.monotonic() >= found[0]:
                return None
            self._used.add(found[1])
            return found[2]

    def put(self, by: K, row_id: str, answer: V) -> None:
        """Keep an answer.

        Args:
            by: What was asked for.
            row_id: The row that it was found in, which counts as used.
            answer: What was found.
        """
        with self._lock:
            self._answers[by] = (time.monotonic() + self._seconds, row_id, answer)
            self._answers.move_to_end(by)
            self._used.add(row_id)
            if len(self._answers) > self._most:
                self._answers.popitem(last=False)

    def drop(self, by: K) -> None:
        """Forget an answer."""
        with self._lock:
            self._answers.pop(by, None)

    def clear(self) -> None:
        """Forget every answer."""
        with self._lock:
            self._answers.clear()

    def take_used(self) -> set[str]:
        """Ids of the rows that were used since the last call."""
        with self._lock:
            used, self._used = self._used, set()
        return used
