"""Long polling, because the original clients poll again at once, or only after 5 s."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from service.deps import OpenStores
from service.log_stream.registry import Wakes

HOLD_SECONDS = 10.0
"""Longest wait; well below the half minute after which clients and proxies time out."""
_LOOK_SECONDS = 1.0

T = TypeVar("T")


async def hold(stores: OpenStores, key: str, job_id: str, look: Callable[[], T], done: Callable[[T], bool]) -> T:
    """Return the result of `look` once it is `done`; after 10 s, or when the service stops, the latest result.

    Args:
        stores: The open stores.
        key: Id of the client's API key; the request counts as one of the logs that the key follows.
        job_id: Id of the job to wait for.
        look: Reads the job or its log, in a thread; raises if there is no such job.
        done: Returns whether to stop waiting.
    """
    run = partial(anyio.to_thread.run_sync, look, limiter=stores.streams.readers)
    until = time.monotonic() + HOLD_SECONDS
    found = await run()
    if done(found):
        return found
    if stores.streams.full or stores.streams.full_for(key):
        await anyio.sleep(min(_LOOK_SECONDS, HOLD_SECONDS))  # still slows down clients that poll again at once
        return await run()
    folder = stores.logs.directory(job_id)
    await anyio.to_thread.run_sync(partial(folder.mkdir, parents=True, exist_ok=True))
    with stores.streams.counted(key), stores.streams.watching(folder) as wakes:
        while not done(found) and not wakes.stopped.is_set() and time.monotonic() < until:
            await _news(wakes, until)
            wakes.changed.clear()
            found = await run()
    return found


async def _news(wakes: Wakes, until: float) -> None:
    with anyio.move_on_after(min(_LOOK_SECONDS, until - time.monotonic())):
        await wakes.changed.wait()
