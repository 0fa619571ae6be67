"""Long polling, because the original clients poll again at once, or only after 5 s."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from core.errors import JobNotFound
from core.storage.prune import remove_late_outputs
from service.app_state import AppState
from service.log_stream.registry import WakeEvents

MAX_WAIT_SECONDS = 10.0  # longest wait; well below the half minute after which clients and proxies time out
_POLL_SECONDS = 1.0

T = TypeVar("T")


async def poll_until_done(
    app_state: AppState, key: str, job_id: str, read: Callable[[], T], done: Callable[[T], bool]
) -> T:
    """Return the result of `read` once it is `done`; after 10 s, or when the service stops, the latest result.

    Args:
        key: Id of the client's API key; the request counts as one of the logs that the key follows.
        read: Reads the job or its log, in a thread; raises if there is no such job.
        done: Returns whether to stop waiting.
    """

    async def run() -> T:
        return await app_state.lanes.files.run(read)

    until = time.monotonic() + MAX_WAIT_SECONDS
    result = await run()
    if done(result):
        return result
    if app_state.streams.at_capacity or app_state.streams.is_key_at_capacity(key):
        await anyio.sleep(min(_POLL_SECONDS, MAX_WAIT_SECONDS))  # still slows down clients that poll again at once
        return await run()
    folder = app_state.logs.directory(job_id)
    await anyio.to_thread.run_sync(partial(folder.mkdir, parents=True, exist_ok=True))
    with app_state.streams.count_stream(key), app_state.streams.watch_folder(folder) as wakes:
        try:
            while not done(result) and not wakes.stopped.is_set() and time.monotonic() < until:
                await _wait_for_change(wakes, until)
                wakes.changed.clear()
                result = await run()
        except JobNotFound:  # the folder may have been made after the log's removal
            await app_state.lanes.files.run(remove_late_outputs, app_state, job_id)
            raise
    return result


async def _wait_for_change(wakes: WakeEvents, until: float) -> None:
    with anyio.move_on_after(min(_POLL_SECONDS, until - time.monotonic())):
        await wakes.changed.wait()
