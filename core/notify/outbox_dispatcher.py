"""The dispatcher: sends the outbox messages of committed transactions, in its own thread.

Publishing inside a request is forbidden: on a hung broker it blocked for over 90 seconds. A request commits its
outbox row and answers; this thread, woken by the commit, sends the message.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Row, delete, select

from core.db.database import Base, Database
from core.db.models.jobs import Job, Outbox
from core.errors import StoreUnavailable
from core.jobs.states import OWNED, JobState
from core.notify.messages import WakeMessage, machine_type_queue, worker_queue

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
_LINGER_SECONDS = 0.2
_SPACING_SECONDS = 0.1
"""Shortest time between two batches: a worker spends milliseconds on each message, also while it has no free slot."""
_POLL_SECONDS = 5.0  # workers also write to the outbox, and those on other hosts cannot wake this thread
_BATCH = 1000

_DELETE_ALL = delete(Base.metadata.tables[Outbox.__tablename__])
_OUTBOX = (
    select(Outbox.id, Outbox.job_id, Job.state, Job.machine_type, Job.worker, Job.request_id)
    .outerjoin(Job, Job.id == Outbox.job_id)
    .order_by(Outbox.id)
    .limit(_BATCH)
)


class Dispatcher:
    """A thread that sends a wake message for every committed outbox row, and then deletes the row.

    `publish`: sends messages to the broker; None: there is no broker. May take seconds and raise: the rows then stay
    and are retried.
    """

    def __init__(
        self,
        database: Database,
        notify_local: Callable[[], None],  # wakes this host's supervisors, once for any number of rows; fast
        publish: Callable[[Sequence[WakeMessage]], None] | None = None,
    ) -> None:
        self._database = database
        self._notify_local = notify_local
        self._publish = publish
        self._woken = threading.Event()
        self._stopping = self._scheduled = False
        self._earliest = 0.0
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Start the thread; rows left by an earlier process are sent first."""
        self.wake()
        self._thread.start()

    def wake(self) -> None:
        """Wake this host's supervisors, and the thread, because the outbox has new rows; for `on_commit`."""
        self._notify_local()  # in the caller's thread: a broker that hangs must not delay this host's supervisors
        if not self._scheduled:
            self._woken.set()

    def stop(self) -> None:
        """Stop the thread; remaining rows are sent at the next start."""
        self._stopping = True
        self._woken.set()
        self._thread.join()

    def send(self) -> int:
        """Send a batch of rows, or without a broker all of them; returns their number."""
        if self._publish is None:
            with self._database.write() as session:
                deleted: int = session.connection().execute(_DELETE_ALL).rowcount
                self._notify_local()  # after the commits of these rows, and before they are gone
            return deleted
        with self._database.read() as session:
            rows: Sequence[Row[*tuple[Any, ...]]] = session.execute(_OUTBOX).all()
        if rows:
            self._publish(_wake_messages(rows))
            with self._database.write() as session:
                session.execute(delete(Outbox).where(Outbox.id.in_([row.id for row in rows])))
        return len(rows)

    def _run(self) -> None:
        dispatch = self._dispatch_locally if self._publish is None else self._dispatch_to_broker
        due: float | None = None
        while True:
            woken = self._woken.wait(None if due is None else max(0.0, due - time.monotonic()))
            self._woken.clear()
            if self._stopping:
                return
            try:
                due = dispatch(woken=woken)
            except (StoreUnavailable, OSError) as error:
                logger.warning("dispatch_failed", extra={"error": str(error)})
                due = self._earliest = time.monotonic() + RETRY_SECONDS
            except Exception:  # the thread must survive any error of the broker: nothing restarts it
                logger.exception("dispatch_failed")
                due = self._earliest = time.monotonic() + RETRY_SECONDS

    def _dispatch_locally(self, *, woken: bool) -> float | None:
        """Delete the rows of many commits together, while the supervisors of this host are awake already.

        Returns the time of the next action.
        """
        if woken and not self._scheduled:
            self._earliest = max(self._earliest, time.monotonic() + _LINGER_SECONDS)
        if self._is_early():
            return self._earliest
        self.send()
        return None

    def _dispatch_to_broker(self, *, woken: bool) -> float | None:
        """Send messages to the broker, those of many commits together; returns the time of the next action."""
        if woken and self._is_early():
            return self._earliest
        self._scheduled = False
        sent = last = self.send()
        while last == _BATCH:
            last = self.send()
        if sent:
            self._earliest = time.monotonic() + _SPACING_SECONDS
        return time.monotonic() + _POLL_SECONDS

    def _is_early(self) -> bool:
        """Return whether rows have to wait, soon after a failure or others; if so, commits wake the thread no more."""
        # Set before the rows are read: the next commit wakes the thread again.
        self._scheduled = time.monotonic() < self._earliest
        return self._scheduled


def _wake_messages(rows: Sequence[Row[*tuple[Any, ...]]]) -> list[WakeMessage]:
    """Build one message for each queue that the rows' jobs concern; none for jobs that have ended meanwhile."""
    messages: dict[str, WakeMessage] = {}
    for row in rows:
        if row.state in OWNED:
            queue = worker_queue(row.worker)  # a stop request for the worker that holds the job
        elif row.state is JobState.QUEUED:
            queue = machine_type_queue(row.machine_type)
        else:
            continue
        messages.setdefault(queue, WakeMessage(queue, row.job_id, row.request_id))
    return list(messages.values())
