"""Group commit: what several threads submit at the same time is committed in one transaction."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from core.errors import StoreUnavailable

_MOST = 100
"""Most items of one transaction, which holds SQLite's only write lock."""

T = TypeVar("T")
R = TypeVar("R")
Commit = Callable[[Sequence[T]], Sequence[R | Exception]]
"""Commits items in one transaction; returns the result or the error of each."""


@dataclass(slots=True)
class _Waiting(Generic[T, R]):
    """An item, and once it is committed or refused, its result or error."""

    item: T
    outcome: R | Exception | None = None


class GroupCommit(Generic[T, R]):
    """Items of concurrent threads, of which one commits those of all that wait; a lone one commits at once.

    A commit flushes the disk, and a transaction has costs of its own; shared ones let throughput rise with the number
    of clients.
    """

    def __init__(self) -> None:
        self._committing = threading.Lock()
        self._waiting: deque[_Waiting[T, R]] = deque()

    def run(self, item: T, commit: Commit[T, R]) -> R:
        """Commit an item, perhaps together with others, and return its result after the commit.

        Raises:
            Exception: The error that `commit` returned for this item, or raised.
        """
        own: _Waiting[T, R] = _Waiting(item)
        self._waiting.append(own)
        with self._committing:
            while own.outcome is None:
                self._commit_waiting(commit)
        if isinstance(own.outcome, Exception):
            raise own.outcome
        return own.outcome

    def _commit_waiting(self, commit: Commit[T, R]) -> None:
        group = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
        for one, outcome in zip(group, _commit_all([one.item for one in group], commit), strict=True):
            one.outcome = outcome


def _commit_all(items: Sequence[T], commit: Commit[T, R]) -> Sequence[R | Exception]:
    try:
        return commit(items)
    except StoreUnavailable as error:
        return [error] * len(items)
    except Exception as error:  # noqa: BLE001 - raised again in the thread of the item that caused it
        return [error] if len(items) == 1 else [_commit_all([item], commit)[0] for item in items]
