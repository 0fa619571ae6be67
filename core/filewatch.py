"""Waiting for files to change, without polling: inotify, and a way to be woken from another thread."""

import os
import select
from pathlib import Path
from typing import Self

from inotify_simple import INotify, flags

_CHANGES = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.ATTRIB | flags.DELETE_SELF


class FileWatch:
    """Waits until something under the watched paths changes, somebody calls `wake`, or time is up.

    A folder is watched for its own entries, not for those of its sub-folders.
    """

    def __init__(self, *paths: Path) -> None:
        self._inotify = INotify(nonblocking=True)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for path in paths:
            self.add(path)

    def add(self, path: Path) -> None:
        """Watch one more path, which must exist."""
        self._inotify.add_watch(str(path), _CHANGES)

    def fileno(self) -> int:
        """Descriptor that is readable after a change (not after `wake`), for an event loop."""
        return int(self._inotify.fileno())

    def wake(self) -> None:
        """Let `wait` return; safe from any thread."""
        os.eventfd_write(self._wake, 1)

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`; True if something changed or `wake` was called."""
        ready, _, _ = select.select([self._inotify.fileno(), self._wake], [], [], max(0.0, seconds))
        self.drain()
        return bool(ready)

    def drain(self) -> None:
        """Forget the changes seen so far."""
        self._inotify.read(timeout=0)
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the descriptors back."""
        self._inotify.close()
        os.close(self._wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
