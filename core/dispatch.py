"""The dispatcher: sends what transactions left in the outbox, apart from any request.

Publishing inside a request is forbidden: on a hung broker it blocked for over 90 seconds. A request commits its
outbox row and answers; this thread, woken by the commit, rings.
"""

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy import delete, select

from core.db import Database
from core.errors import StoreUnavailable
from core.jobs.models import Outbox

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_LINGER_SECONDS = 0.2
_BATCH = 1000


class Dispatcher:
    """A thread that rings for every committed outbox row, and then removes the row.

    Args:
        database: Where the outbox is.
        ring: Rings once for any number of rows; may raise, the rows then stay and are tried again.
    """

    def __init__(self, database: Database, ring: Callable[[], None]) -> None:
        self._database = database
        self._ring = ring
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Begin; rows that an earlier process left are sent first."""
        self._woken.set()
        self._thread.start()

    def wake(self) -> None:
        """There is something in the outbox: for `on_commit`."""
        self._woken.set()

    def stop(self) -> None:
        """End the thread; what is still in the outbox is sent at the next start."""
        self._stopping = True
        self._woken.set()
        self._thread.join()

    def send(self) -> int:
        """Send what is there now; the number of rows."""
        with self._database.read() as session:
            ids = list(session.scalars(select(Outbox.id).order_by(Outbox.id).limit(_BATCH)))
        if not ids:
            return 0
        self._ring()
        with self._database.write() as session:
            session.execute(delete(Outbox).where(Outbox.id.in_(ids)))
        return len(ids)

    def _run(self) -> None:
        due: float | None = None
        while True:
            woken = self._woken.wait(None if due is None else max(0.0, due - time.monotonic()))
            self._woken.clear()
            if self._stopping:
                return
            try:
                if woken and (due is None or time.monotonic() < due):
                    # Who waits for work hears of it at once; the rows of many commits are removed together.
                    self._ring()
                    due = due or time.monotonic() + _LINGER_SECONDS
                else:
                    while self.send():
                        pass
                    due = None
            except (StoreUnavailable, OSError) as error:
                logger.warning("dispatch_failed", extra={"error": str(error)})
                due = time.monotonic() + _RETRY_SECONDS
            except Exception:  # the thread must outlive whatever a broker throws: nobody starts another
                logger.exception("dispatch_failed")
                due = time.monotonic() + _RETRY_SECONDS
