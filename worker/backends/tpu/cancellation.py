"""Steps of a start that heed a request to stop at once, however long they take themselves."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

Check = Callable[[], None]  # raises if the start must be aborted; cheap, and usable from any thread

_CHECK_SECONDS = 0.25


def pause(seconds: float, check: Check) -> None:
    """Wait for this long, unless `check` raises."""
    while seconds > 0:
        check()
        step = min(seconds, _CHECK_SECONDS)
        time.sleep(step)
        seconds -= step


def run_cancellably(action: Callable[[], T], check: Check) -> T:
    """Run an action in a thread of its own, and return its result, unless `check` raises.

    The action is then left to itself; it should check, too, and remove what it made.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits, if anybody still does
            future.set_exception(error)

    # A daemon, unlike an executor's: the process need not wait for it.
    threading.Thread(target=run, name="interruptible", daemon=True).start()
    while not wait([future], _CHECK_SECONDS).done:
        check()
    return future.result()
