"""The job logs being followed now: how many there may be, what wakes them, and how they end."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from core.folderwatch import FolderWatch

logger = logging.getLogger(__name__)

MAX_STREAMS = 500
_READERS = 8


@dataclass(slots=True, eq=False)
class Wakes:
    """What a follower waits for.

    Attributes:
        changed: Set after each change in its folder, and when the service stops.
        stopped: Set when the service stops.
    """

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """Say that the service stops."""
        self.stopped.set()
        self.changed.set()


class Streams:
    """Every followed log of one process.

    Everything but `stop` belongs to the event loop's thread.

    Args:
        per_key: Most logs that one key follows at once; 0: no limit.
        limit: Most logs followed at once.
    """

    def __init__(self, per_key: int = 0, limit: int = MAX_STREAMS) -> None:
        self._per_key = per_key
        self._limit = limit
        self._watch: FolderWatch | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakes: set[Wakes] = set()
        self._by_key: Counter[str] = Counter()
        self._stopping = False
        self._readers: anyio.CapacityLimiter | None = None

    @property
    def full(self) -> bool:
        """Whether no further log can be followed."""
        return self._by_key.total() >= self._limit

    @property
    def active(self) -> int:
        """How many logs are followed."""
        return len(self._wakes)

    @property
    def readers(self) -> anyio.CapacityLimiter:
        """Threads for reading logs, apart from those of requests: many followers must not hold those up."""
        if self._readers is None:
            self._readers = anyio.CapacityLimiter(_READERS)
        return self._readers

    def full_for(self, key: str) -> bool:
        """Whether a key follows as many logs as it may."""
        return 0 < self._per_key <= self._by_key[key]

    @contextmanager
    def counted(self, key: str) -> Iterator[None]:
        """Count a followed log as one of a key's, while the block lasts."""
        self._by_key[key] += 1
        try:
            yield
        finally:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]

    @contextmanager
    def watching(self, folder: Path) -> Iterator[Wakes]:
        """Follow changes in a folder, while the block lasts."""
        wakes = Wakes()
        self._wakes.add(wakes)
        try:
            with self._watched(folder, wakes.changed.set):
                if self._stopping:
                    wakes.stop()
                yield wakes
        finally:
            self._wakes.discard(wakes)

    @contextmanager
    def _watched(self, folder: Path, callback: Callable[[], None]) -> Iterator[None]:
        try:
            watching = self._folder_watch().watching(folder, callback)
            watching.__enter__()
        except OSError as error:
            # Without a watch (the host's limit is reached) followers still look once a second.
            logger.warning("folder_not_watched", extra={"error": str(error)})
            yield
            return
        try:
            yield
        finally:
            watching.__exit__(None, None, None)

    def _folder_watch(self) -> FolderWatch:
        loop = asyncio.get_running_loop()
        if self._watch is None or self._loop is not loop:
            self.close()
            self._watch, self._loop = FolderWatch(), loop
            loop.add_reader(self._watch.fileno(), self._watch.deliver)
        return self._watch

    def stop(self) -> None:
        """End every stream, now and from now on; safe from any thread.

        A server that stops gracefully waits for its connections, so this comes before that wait.
        """
        self._stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing is followed any more
                self._loop.call_soon_threadsafe(self._stop_all)

    def close(self) -> None:
        """Give the watch's descriptor back."""
        if self._watch is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = self._loop = None

    def _stop_all(self) -> None:
        for wakes in self._wakes:
            wakes.stop()
