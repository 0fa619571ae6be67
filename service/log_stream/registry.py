import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from core.system.inotify import FolderWatcher

logger = logging.getLogger(__name__)

MAX_STREAMS = 2000
_MOST_READS = 64  # reads that wait for a thread; the threads refuse when many do, which would end streams


@dataclass(slots=True, eq=False)
class WakeEvents:
    # set after each change in the log's folder, and when the service stops
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self.stopped.set()
        self.changed.set()


class StreamRegistry:
    """All log streams of one process.

    Only `stop` is thread-safe; everything else must be called in the event loop's thread. `per_key`: largest number of
    logs that one key follows at once; 0: no limit.
    """

    def __init__(self, per_key: int = 0, limit: int = MAX_STREAMS) -> None:
        self.feeds: dict[str, object] = {}  # the feed of each job
        self.authorizations: WeakValueDictionary[object, object] = WeakValueDictionary()  # that of each caller and job
        self.reads = asyncio.Semaphore(_MOST_READS)  # hold it while a thread reads for a stream
        self._per_key = per_key
        self._limit = limit
        self._folder_watcher: FolderWatcher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakes: set[WakeEvents] = set()
        self._by_key: Counter[str] = Counter()
        self._stopping = False

    @property
    def at_capacity(self) -> bool:
        return self.active >= self._limit

    @property
    def active(self) -> int:
        return self._by_key.total()

    def is_key_at_capacity(self, key: str) -> bool:
        return 0 < self._per_key <= self._by_key[key]

    @contextmanager
    def count_stream(self, key: str) -> Iterator[None]:
        """Count a followed log for a key during the block."""
        self._by_key[key] += 1
        try:
            yield
        finally:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]

    @contextmanager
    def watch_folder(self, folder: Path) -> Iterator[WakeEvents]:
        """Watch a folder for changes during the block."""
        wakes = WakeEvents()
        self._wakes.add(wakes)
        try:
            with self._watch_or_poll(folder, wakes.changed.set):
                if self._stopping:
                    wakes.stop()
                yield wakes
        finally:
            self._wakes.discard(wakes)

    @contextmanager
    def _watch_or_poll(self, folder: Path, callback: Callable[[], None]) -> Iterator[None]:
        try:
            watching = self._open_watcher().watch(folder, callback)
            watching.__enter__()
        except OSError as error:
            # Without a watch (the host's limit is reached), followers still poll once a second.
            logger.warning("folder_not_watched", extra={"error": str(error)})
            yield
            return
        try:
            yield
        finally:
            watching.__exit__(None, None, None)

    def _open_watcher(self) -> FolderWatcher:
        loop = asyncio.get_running_loop()
        if self._folder_watcher is None or self._loop is not loop:
            self.close()
            self._folder_watcher, self._loop = FolderWatcher(), loop
            loop.add_reader(self._folder_watcher.fileno(), self._folder_watcher.dispatch_events)
        return self._folder_watcher

    def stop(self) -> None:
        """End all streams, and each later one at once. Thread-safe.

        Must be called before a graceful shutdown waits for connections.
        """
        self._stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing is followed any more
                self._loop.call_soon_threadsafe(self._stop_all)

    def close(self) -> None:
        if self._folder_watcher is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._folder_watcher.fileno())
            self._folder_watcher.close()
            self._folder_watcher = self._loop = None

    def _stop_all(self) -> None:
        for wakes in self._wakes:
            wakes.stop()
