"""Watches many folders through one inotify instance; a user may have only about a hundred of them per host."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from inotify_simple import INotify, flags

_CHANGES = flags.MODIFY | flags.CREATE | flags.MOVED_TO


class FolderWatch:
    """Calls back when something in a folder changes.

    It has no thread of its own: an event loop waits for `fileno` to become readable and then calls `deliver`.
    """

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)
        self._lock = threading.Lock()
        self._called: dict[int, list[Callable[[], None]]] = {}

    def fileno(self) -> int:
        """Return the descriptor, which is readable after a change."""
        return int(self._inotify.fileno())

    @contextmanager
    def watching(self, folder: Path, callback: Callable[[], None]) -> Iterator[None]:
        """Let `deliver` call `callback` after changes, while the block lasts.

        Raises:
            OSError: The folder does not exist, or the host's limit of watches is reached.
        """
        with self._lock:
            # The same folder gets the same descriptor each time it is added.
            descriptor = self._inotify.add_watch(str(folder), _CHANGES)
            self._called.setdefault(descriptor, []).append(callback)
        try:
            yield
        finally:
            self._leave(descriptor, callback)

    def deliver(self) -> None:
        """Call the callbacks of the folders that changed; never blocks."""
        changed = {event.wd for event in self._inotify.read(timeout=0)}
        with self._lock:
            callbacks = [callback for descriptor in changed for callback in self._called.get(descriptor, ())]
        for callback in callbacks:
            callback()

    def close(self) -> None:
        """Close the descriptor."""
        self._inotify.close()

    def _leave(self, descriptor: int, callback: Callable[[], None]) -> None:
        with self._lock:
            # One entry per watcher: two watchers with equal callbacks have two entries.
            callbacks = self._called.get(descriptor, [])
            if callback in callbacks:
                callbacks.remove(callback)
            if callbacks or self._called.pop(descriptor, None) is None:
                return
            try:
                self._inotify.rm_watch(descriptor)
            except (OSError, ValueError):  # the folder was deleted, or this object is closed
                return
