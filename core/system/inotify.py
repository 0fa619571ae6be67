"""Waits for changes of files without polling (inotify). A user may have only about a hundred instances per host."""

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from inotify_simple import INotify, flags

logger = logging.getLogger(__name__)

_WRITES = flags.MODIFY | flags.CREATE | flags.MOVED_TO
_CHANGES = _WRITES | flags.ATTRIB | flags.DELETE_SELF
_FALLBACK_POLL_SECONDS = 0.25


class FileWatcher:
    """Waits until something under the watched paths changes, `wake` is called, or a timeout passes.

    A folder is watched for its own entries, not for those of its sub-folders. Other threads can end the wait. Jobs can
    use up the user's inotify instances: without one, `wait` returns after a quarter of a second at most.

    `ignored`: names in the folders whose changes do not end a wait.
    """

    def __init__(self, *paths: Path, ignored: Collection[str] = ()) -> None:
        self._ignored = ignored
        self._lock = threading.RLock()  # a signal handler may call `wake` during `close`
        self.changed = False  # true if the last wait saw a change of files, or may have missed one
        self._wake: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inotify = _open_inotify(paths)
        self._poll = select.poll()  # not select(): it refuses descriptors above 1023
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
        longest = seconds if self._inotify is not None else min(seconds, _FALLBACK_POLL_SECONDS)
        until = time.monotonic() + longest
        while True:
            ready = self._poll.poll(1000 * max(0.0, until - time.monotonic()))
            if self._drain() or self.changed or not ready:
                return bool(ready)

    def close(self) -> None:
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

    def _drain(self) -> bool:
        """Discard the events seen so far; return whether `wake` was called."""
        events = None if self._inotify is None else self._inotify.read(timeout=0)
        self.changed = events is None or any(event.name not in self._ignored for event in events)
        try:
            return self._wake is not None and os.eventfd_read(self._wake) > 0
        except BlockingIOError:
            return False


def _open_inotify(paths: tuple[Path, ...]) -> INotify | None:
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


class FolderWatcher:
    """Calls back when something in one of many folders changes, with one inotify instance.

    It has no thread of its own: an event loop waits for `fileno` to become readable and then calls `dispatch_events`.
    """

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)
        self._lock = threading.Lock()
        self.callbacks: dict[int, list[Callable[[], None]]] = {}

    def fileno(self) -> int:
        """Return the descriptor, which is readable after a change."""
        return int(self._inotify.fileno())

    @contextmanager
    def watch(self, folder: Path, callback: Callable[[], None]) -> Iterator[None]:
        """Let `dispatch_events` call `callback` after changes, while the block lasts.

        Raises `OSError`: the folder does not exist, or the host's limit of watches is reached.
        """
        with self._lock:
            # The same folder gets the same descriptor each time it is added.
            descriptor = self._inotify.add_watch(str(folder), _WRITES)
            self.callbacks.setdefault(descriptor, []).append(callback)
        try:
            yield
        finally:
            self._unwatch(descriptor, callback)

    def dispatch_events(self) -> None:
        """Call the callbacks of the folders that changed; never blocks."""
        changed = {event.wd for event in self._inotify.read(timeout=0)}
        with self._lock:
            callbacks = [callback for descriptor in changed for callback in self.callbacks.get(descriptor, ())]
        for callback in callbacks:
            callback()

    def close(self) -> None:
        self._inotify.close()

    def _unwatch(self, descriptor: int, callback: Callable[[], None]) -> None:
        with self._lock:
            # One entry per watcher: two watchers with equal callbacks have two entries.
            callbacks = self.callbacks.get(descriptor, [])
            if callback in callbacks:
                callbacks.remove(callback)
            if callbacks or self.callbacks.pop(descriptor, None) is None:
                return
            try:
                self._inotify.rm_watch(descriptor)
            except (OSError, ValueError):  # the folder was deleted, or this object is closed
                return
