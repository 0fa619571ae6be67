"""Group commit: what several threads and requests submit at the same time is committed in one transaction."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from core.errors import StoreUnavailable

_MOST = 100  # most items of one transaction, which holds SQLite's only write lock

T = TypeVar("T")
R = TypeVar("R")
Commit = Callable[[Sequence[T]], Sequence[R | Exception]]
"""Commits items in one transaction; returns the result or the error of each."""


@dataclass(slots=True)
class _Waiting(Generic[T, R]):
    """An item, and once it is committed or refused, its result or error."""

    item: T
    outcome: R | Exception | None = None
    future: asyncio.Future[R] | None = None  # what a coroutine awaits; None: a thread waits for the outcome

    def settle(self) -> None:
        """Resolve the future; in its event loop."""
        if self.future is None or self.future.done():
            return
        if isinstance(self.outcome, Exception):
            self.future.set_exception(self.outcome)
        elif self.outcome is not None:
            self.future.set_result(self.outcome)


class GroupCommit(Generic[T, R]):
    """Items of concurrent threads and coroutines: whoever commits takes all that wait; a lone one is committed at once.

    A commit flushes the disk, and a transaction has costs of its own; shared ones let throughput rise with the number
    of clients. The items of coroutines are committed by one thread, so that a request occupies none.
    """

    def __init__(self) -> None:
        self._committing = threading.Lock()
        self._waiting: deque[_Waiting[T, R]] = deque()
        self._writer = ThreadPoolExecutor(1, "submissions")
        self._writing = False

    def run(self, item: T, commit: Commit[T, R]) -> R:
        """Commit an item, perhaps together with others, and return its result after the commit.

        Raises `Exception`: the error that `commit` returned for this item, or raised.
        """
        own: _Waiting[T, R] = _Waiting(item)
        self._waiting.append(own)
        with self._committing:
            while own.outcome is None:
                self._commit_waiting(commit)
        if isinstance(own.outcome, Exception):
            raise own.outcome
        return own.outcome

    async def run_async(self, item: T, commit: Commit[T, R]) -> R:
        """Do what `run` does, for a coroutine.

        Raises `Exception`: the error that `commit` returned for this item, or raised.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append(_Waiting(item, future=future))
        if not self._writing:
            self._writing = True
            # After the other coroutines that can run now: what they submit belongs to the same transaction.
            loop.call_soon(self._writer.submit, self._write, commit)
        return await future

    def _write(self, commit: Commit[T, R]) -> None:
        """Commit in groups until nothing waits; in the writer's thread."""
        # An item added before `_writing` is reset is seen by the next look; one added after it wakes the writer again.
        while self._waiting or self._writing:
            with self._committing:
                if self._waiting:  # else a thread has just committed them all
                    self._commit_waiting(commit)
            if not self._waiting:
                self._writing = False

    def _commit_waiting(self, commit: Commit[T, R]) -> None:
        group = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
        for one, outcome in zip(group, _commit_all([one.item for one in group], commit), strict=True):
            one.outcome = outcome
        by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting[T, R]]] = {}
        for one in group:
            if one.future is not None:
                by_loop.setdefault(one.future.get_loop(), []).append(one)
        for loop, settled in by_loop.items():
            with suppress(RuntimeError):  # the loop has ended, and nobody awaits them
                loop.call_soon_threadsafe(_settle, settled)


def _settle(group: Sequence[_Waiting[T, R]]) -> None:
    for one in group:
        one.settle()


def _commit_all(items: Sequence[T], commit: Commit[T, R]) -> Sequence[R | Exception]:
    try:
        return commit(items)
    except StoreUnavailable as error:
        return [error] * len(items)
    except Exception as error:  # noqa: BLE001 - raised again in the thread of the item that caused it
        return [error] if len(items) == 1 else [_commit_all([item], commit)[0] for item in items]
