"""Throttling of sign-ins: growing delays after wrong passwords, and a limit of concurrent password checks."""

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cachetools import FIFOCache
from starlette.exceptions import HTTPException

from core.errors import Unauthorized

MAX_NAMES = 10_000
MAX_WAITING = 1000
_LOWEST_PRIORITY = 19

T = TypeVar("T")


class FailureBackoff:
    """Delays after failures, by name: each further failure doubles the delay. Kept in this process.

    Each of several processes takes it that the others count as many failures, and let as many attempts through.
    """

    def __init__(self, *, free: int, first: float = 1.0, longest: float, forgotten: float, processes: int = 1) -> None:
        self._free = free
        self._first = first
        self._longest = longest
        self._processes = processes
        self._forgotten = forgotten
        self._lock = threading.RLock()
        self._failed: FIFOCache[str, tuple[int, float]] = FIFOCache(MAX_NAMES)

    def wait_seconds(self, name: str) -> float:
        """Return the seconds until the next attempt with this name; 0: now."""
        count, at = self._recent(name)
        excess = count * self._processes - self._free
        if excess < 0:
            return 0.0
        # The exponent is bounded against overflow: by then, the delay is the longest.
        delay = min(self._first * 2.0 ** min(excess, 30), self._longest) * self._processes
        return max(0.0, at + delay - time.monotonic())

    def failures(self, name: str) -> int:
        return self._recent(name)[0]

    def record_failure(self, name: str) -> None:
        with self._lock:
            self._failed[name] = (self._recent(name)[0] + 1, time.monotonic())

    def reset(self, name: str) -> None:
        with self._lock:
            self._failed.pop(name, None)

    def _recent(self, name: str) -> tuple[int, float]:
        with self._lock:
            count, at = self._failed.get(name, (0, 0.0))
        return (count, at) if time.monotonic() - at < self._forgotten else (0, 0.0)


class SignInLimiter:
    """Checks passwords, in threads of low priority: a check takes a tenth of a second of a CPU and 16 MiB.

    Wrong passwords delay the same client's next attempt for the same address, so nobody can block a user at another
    client. Many wrong ones delay the client for all addresses. Sign-ins wait for a thread, one of each client, and
    those of clients with the fewest wrong passwords are first: a storm of sign-ins keeps nobody else waiting for longer
    than the first attempt of each of its clients takes. `at_once`: number of concurrent checks; default: one for two
    CPUs, at least one in each process.
    """

    def __init__(self, at_once: int | None = None, *, processes: int = 1) -> None:
        self._free = at_once or max(1, (os.cpu_count() or 1) // (2 * processes))
        self._threads = ThreadPoolExecutor(self._free, "sign-in", initializer=_lower_priority)
        self._waiting: dict[str, tuple[int, asyncio.Future[None]]] = {}
        self._clients = FailureBackoff(free=20, longest=60.0, forgotten=900.0, processes=processes)
        self._pairs = FailureBackoff(free=5, longest=60.0, forgotten=900.0, processes=processes)

    async def check(self, address: str, client: str, check: Callable[[], T]) -> T:
        """Run `check` and return its result; its `Unauthorized` counts as a wrong password."""
        pair = f"{client} {address.strip().casefold()}"
        wait = max(self._clients.wait_seconds(client), self._pairs.wait_seconds(pair))
        if wait > 0:
            seconds = math.ceil(wait)
            raise _too_many_requests(f"Too many wrong passwords. Try again in {seconds} seconds.", seconds)
        await self._acquire(client)
        try:
            key = await asyncio.get_running_loop().run_in_executor(self._threads, check)
        except Unauthorized:
            self._clients.record_failure(client)
            self._pairs.record_failure(pair)
            raise
        finally:
            self._release()
        self._pairs.reset(pair)
        return key

    async def _acquire(self, client: str) -> None:
        if self._free > 0:
            self._free -= 1
            return
        if client in self._waiting:
            raise _too_many_requests("Another login from your network is already waiting. Try again.", 1)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[client] = self._clients.failures(client), turn
        if len(self._waiting) > MAX_WAITING:
            self._refuse_last()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release()
            raise
        finally:
            if (waiting := self._waiting.get(client)) and waiting[1] is turn:
                del self._waiting[client]

    def _refuse_last(self) -> None:
        """Refuse whoever would wait longest."""
        last = max(reversed(self._waiting), key=lambda client: self._waiting[client][0])
        self._waiting.pop(last)[1].set_exception(_too_many_requests("Too many logins at once. Try again.", 1))

    def _release(self) -> None:
        """Let the next one have the thread: of those with the fewest wrong passwords, the first."""
        if not self._waiting:
            self._free += 1
            return
        first = min(self._waiting, key=lambda client: self._waiting[client][0])
        self._waiting.pop(first)[1].set_result(None)


def _lower_priority() -> None:
    """Let all other threads of this machine run before this one."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)


def _too_many_requests(message: str, seconds: int) -> HTTPException:
    return HTTPException(429, message, {"Retry-After": str(seconds)})
