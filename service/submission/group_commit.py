"""Group commit: jobs that several threads submit at the same time are inserted in one transaction."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from core.errors import StoreUnavailable
from service.submission.stages import InsertedJob, PreparedJob

_MOST = 100  # most jobs of one transaction, which holds SQLite's only write lock

Commit = Callable[[Sequence[PreparedJob]], Sequence[InsertedJob]]
"""Inserts jobs in one transaction, all or none."""


class GroupCommit:
    """Jobs of concurrent threads: whoever commits takes all that wait; a lone one is committed at once.

    A commit flushes the disk, and a transaction has costs of its own; shared ones let throughput rise with the number
    of clients.
    """

    def __init__(self) -> None:
        self.committing = threading.Lock()
        self._waiting: deque[tuple[PreparedJob, Future[InsertedJob]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def insert(self, job: PreparedJob, commit: Commit) -> InsertedJob:
        """Insert a job, perhaps together with others, and return it after the commit.

        Raises `Exception`: the error of the job, for which alone it was not inserted.
        """
        inserted: Future[InsertedJob] = Future()
        self._waiting.append((job, inserted))
        with self.committing:
            while not inserted.done():
                _commit([self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))], commit)
        return inserted.result()


def _commit(group: Sequence[tuple[PreparedJob, Future[InsertedJob]]], commit: Commit) -> None:
    try:
        for (_, inserted), job in zip(group, commit([job for job, _ in group]), strict=True):
            inserted.set_result(job)
    except Exception as error:  # noqa: BLE001 - raised again in the thread of the job that caused it
        if len(group) == 1 or isinstance(error, StoreUnavailable):
            for _, inserted in group:
                inserted.set_exception(error)
        else:
            for item in group:
                _commit([item], commit)
