"""Waits for file changes without polling (inotify); other threads can end the wait."""

import logging
import os
import select
import threading
from pathlib import Path
from typing import Self

from inotify_simple import INotify, flags

logger = logging.getLogger(__name__)

_CHANGES = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.ATTRIB | flags.DELETE_SELF
_BLIND_SECONDS = 0.25


class FileWatch:
    """Waits until something under the watched paths changes, `wake` is called, or a timeout passes.

    A folder is watched for its own entries, not for those of its sub-folders. The number of inotify instances
    per user is limited, and jobs can use them up: without one, `wait` returns after a quarter of a second at most.
    """

    def __init__(self, *paths: Path) -> None:
        self._lock = threading.RLock()  # a signal handler may call `wake` during `close`
        self._wake: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inotify = _watching(paths)
        # Not select(): it refuses descriptors above 1023.
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        if self._inotify is not None:
            self._poll.register(self._inotify.fileno(), select.POLLIN)

    def wake(self) -> None:
        """Make `wait` return; safe from any thread, also when the watch is closed."""
        with self._lock:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`; True if a change was seen or `wake` was called."""
        longest = seconds if self._inotify is not None else min(seconds, _BLIND_SECONDS)
        ready = self._poll.poll(1000 * max(0.0, longest))
        self._drain()
        return bool(ready)

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
            if self._wake is not None:
                os.close(self._wake)
                self._wake = None
        if self._inotify is not None:
            self._inotify.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drain(self) -> None:
        """Discard the events seen so far."""
        if self._inotify is not None:
            self._inotify.read(timeout=0)
        if self._wake is not None:
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                return


def _watching(paths: tuple[Path, ...]) -> INotify | None:
    """Create an inotify instance that watches these paths; None if the limit is reached."""
    inotify = None
    try:
        inotify = INotify(nonblocking=True)
        for path in paths:
            inotify.add_watch(str(path), _CHANGES)
    except OSError as error:
        logger.warning("files_not_watched", extra={"error": str(error)})
        if inotify is not None:
            inotify.close()
        return None
    return inotify
