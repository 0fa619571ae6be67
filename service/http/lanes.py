"""The threads in which requests use the database: some for each kind of work, so that no kind waits for another.

A request opens and closes its session within one call in one of these threads. So nothing that holds a connection waits
for a thread, and there are never more connections in use than threads.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from starlette.exceptions import HTTPException

_MOST_WAITING = 1000
_RETRY_AFTER_SECONDS = "1"
_GENERAL_THREADS = "AnyIO worker thread"

P = ParamSpec("P")
T = TypeVar("T")


class Lane:
    """Threads for one kind of work."""

    def __init__(self, name: str, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, name)
        self._waiting = 0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in one of the threads, and return its result."""
        if self._waiting >= _MOST_WAITING:
            raise HTTPException(
                503, "Too many requests are waiting. Try again in a moment.",
                {"Retry-After": _RETRY_AFTER_SECONDS},
            )  # fmt: skip
        self._waiting += 1
        try:
            bound = copy_context().run  # with the id of the request, for the log
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: bound(call, *args, **kwargs)
            )
        finally:
            self._waiting -= 1


_TOGETHER = 16  # submissions that wait for a commit, which they share
_ARCHIVES = 4  # each is unpacked to a temporary folder while it is checked


class Lanes:
    def __init__(self, database_threads: int) -> None:
        self.reading = Lane("reading", database_threads)  # requests that only read the database
        # requests that read artifacts, logs or storage, too, which may be slow
        self.files = Lane("files", database_threads)
        self.changing = Lane("changing", max(2, database_threads // 2))
        # sign-ins, checks of keys, and stops, which have to work however busy the rest is
        self.urgent = Lane("urgent", 2)
        # logs and artifacts that workers on other hosts send: many jobs may print at once
        self.worker_files = Lane("worker-files", database_threads)
        self.uploads = Lane("uploads", database_threads)  # files for storage, which may go on to a bucket
        self.submissions = Lane("submissions", _TOGETHER)
        self.archives = Lane("archives", _ARCHIVES)
        self.following = Lane("following", database_threads)


def require_lane() -> None:
    """Refuse to use the database in the event loop, which would stop for it, or in a thread that is for anything.

    Raises `RuntimeError`: the caller is not in a lane's thread.
    """
    if asyncio._get_running_loop() is not None or threading.current_thread().name == _GENERAL_THREADS:  # noqa: SLF001 - does not raise without a loop
        raise RuntimeError("A session may be opened only in a thread of service.http.lanes: use Lane.run.")
