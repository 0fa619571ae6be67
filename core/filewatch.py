"""Waiting for files to change, without polling: inotify, and a way to be woken from another thread."""

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
    """Waits until something under the watched paths changes, somebody calls `wake`, or time is up.

    A folder is watched for its own entries, not for those of its sub-folders. A host allows a user only so many
    inotify instances, and jobs can use them up: without one, `wait` returns after a quarter of a second at most.
    """

    def __init__(self, *paths: Path) -> None:
        self._lock = threading.RLock()  # a signal's handler may call `wake` within `close`
        self._wake: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inotify = _watching(paths)
        # Not select(): it refuses descriptors above 1023.
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        if self._inotify is not None:
            self._poll.register(self._inotify.fileno(), select.POLLIN)

    def wake(self) -> None:
        """Let `wait` return; safe from any thread, also when the watch is closed."""
        with self._lock:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`; True if something is seen to have changed or `wake` was called."""
        longest = seconds if self._inotify is not None else min(seconds, _BLIND_SECONDS)
        ready = self._poll.poll(1000 * max(0.0, longest))
        self._drain()
        return bool(ready)

    def close(self) -> None:
        """Give the descriptors back."""
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
        """Forget the changes seen so far."""
        if self._inotify is not None:
            self._inotify.read(timeout=0)
        if self._wake is not None:
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                return


def _watching(paths: tuple[Path, ...]) -> INotify | None:
    """An inotify instance that watches these paths; None where the host allows no more."""
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
