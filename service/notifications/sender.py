"""The loop that sends messages to receivers. Safe in any number of processes at once: each message is claimed.

Each receiver has one try at a time, in a thread of its own, so that one which does not answer delays no other.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from core.db.models.jobs import Event
from core.errors import SecretUnreadable, StoreUnavailable
from core.jobs.templates.sweeps import sweeps
from core.notifications import apprise_address, deliveries, receivers, webhook
from core.notifications.deliveries import Answer, Claimed, Notice
from core.security.encryption import Vault
from core.system.failpoints import failpoint
from service.app_state import AppState
from service.notifications.notices import ended_subjects, notices_of, of_sweep, of_workers

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_FORGET_SECONDS = 3600.0
_WORKERS_SECONDS = 10.0
_DEADLINE_SECONDS = 45.0  # of a try; shorter than its claim


class Sender:
    """Sends the messages of one process."""

    def __init__(self, app_state: AppState) -> None:
        self._app_state = app_state
        self._busy: set[str] = set()  # receivers with a try whose thread has not ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._forget_at = time.monotonic() + _FORGET_SECONDS
        self._workers_at = 0.0
        self._defer_lost_detection()

    async def run(self) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                with suppress(HTTPException):  # too many requests wait for a thread
                    for claimed in await self._app_state.lanes.changing.run(self._next):
                        self._busy.add(claimed.receiver.id)
                        task = asyncio.create_task(self._deliver(claimed))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                await asyncio.sleep(_POLL_SECONDS)

    def _next(self) -> list[Claimed]:
        try:
            may_be_due = collect(self._app_state)
            self._keep_house()
            if not may_be_due:
                return []
            with self._app_state.database.write() as session:
                deliveries.digest(session)
                return list(deliveries.claim(session, self._busy))
        except StoreUnavailable:
            self._defer_lost_detection()  # it is logged; the next round tries again
        except Exception:
            logger.exception("notifications_failed")
        return []

    def _keep_house(self) -> None:
        current = time.monotonic()
        if current > self._workers_at:
            self._workers_at = current + _WORKERS_SECONDS
            collect_workers(self._app_state)
        if current > self._forget_at:
            self._forget_at = current + _FORGET_SECONDS
            with self._app_state.database.write() as session:
                deliveries.forget(session)

    def _defer_lost_detection(self) -> None:
        """Wait again before a worker counts as lost: while the database was away, none could send heartbeats."""
        self._workers_at = time.monotonic() + self._app_state.settings.worker.lost_after_seconds

    async def _deliver(self, claimed: Claimed) -> None:
        name = claimed.receiver.id
        answer = await self._try(claimed)
        failpoint("notify_sent")
        while True:
            with suppress(HTTPException):
                await self._app_state.lanes.changing.run(self._record, claimed.delivery.id, answer)
                break
            await asyncio.sleep(_POLL_SECONDS)
        level = logging.INFO if answer.delivered else logging.WARNING
        context = {"receiver": name, "message": claimed.delivery.id, "status": answer.status}
        logger.log(level, "notification_delivered" if answer.delivered else "notification_failed", extra=context)

    async def _try(self, claimed: Claimed) -> Answer:
        """Make one try in a thread, which is left alone after the deadline."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def settle(answer: Answer) -> None:
            self._busy.discard(claimed.receiver.id)
            if not future.done():
                future.set_result(answer)

        def work() -> None:
            answer = attempt(self._app_state, claimed)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, answer)

        threading.Thread(target=work, name="notification", daemon=True).start()
        try:
            return await asyncio.wait_for(future, _DEADLINE_SECONDS)
        except TimeoutError:
            text = f"No end of the answer within {_DEADLINE_SECONDS:.0f} seconds"
            return Answer(delivered=False, status=None, text=text, seconds=_DEADLINE_SECONDS)

    def _record(self, delivery_id: str, answer: Answer) -> None:
        try:
            with self._app_state.database.write() as session:
                deliveries.record(session, delivery_id, answer)
        except StoreUnavailable:
            pass  # the claim ends, and the message is sent again


def collect(app_state: AppState) -> bool:
    """Write the messages of the events and sweeps that are marked; return whether there may be something to send."""
    with app_state.database.read() as session:
        may_be_due = deliveries.has_due(session)
        events = deliveries.marked_events(session)
        notices = _make_notices(session, app_state, events) if events else []
        ended = [(sweep, of_sweep(session, app_state, sweep)) for sweep in sweeps.marked(session)]
    for sweep, notice in ended:
        if notice is not None:
            with app_state.database.write() as session:
                if sweeps.unmark(session, sweep):
                    deliveries.send(session, notice)
    if not events:
        return may_be_due or bool(ended)
    with app_state.database.write() as session:
        if deliveries.unmark(session, [event.id for event in events]):
            for notice in notices:
                deliveries.send(session, notice)
            deliveries.unfollow(session, ended_subjects(notices))
    return True


def _make_notices(session: Session, app_state: AppState, events: Sequence[Event]) -> list[Notice]:
    """Return the messages of events; one that no message can be made of must not hold up the others."""
    try:
        return list(notices_of(session, app_state, events))
    except StoreUnavailable:
        raise
    except Exception:
        if len(events) == 1:
            logger.exception("notification_not_made", extra={"job_id": events[0].job_id})
            return []
    return [notice for event in events for notice in _make_notices(session, app_state, [event])]


def collect_workers(app_state: AppState) -> None:
    """Write the messages of workers; again, they are the same."""
    with app_state.database.read() as session:
        notices = list(of_workers(session, app_state))
    if notices:
        with app_state.database.write() as session:
            for notice in notices:
                deliveries.send(session, notice)


def attempt(app_state: AppState, claimed: Claimed) -> Answer:
    """Make one try, and return what came back; raises nothing."""
    start = time.monotonic()
    try:
        opened = receivers.unseal(Vault(app_state.settings), claimed.receiver)
        url, allowed = opened["url"], app_state.settings.notifications.allowed
        if claimed.receiver.kind == "webhook":
            return webhook.post(url, opened["secret"], claimed.delivery.id, claimed.delivery.body, allowed)
        return apprise_address.send(url, claimed.delivery.id, claimed.delivery.body, allowed)
    except SecretUnreadable as error:
        return Answer(delivered=False, status=None, text=error.message, seconds=0.0)
    except Exception as error:
        logger.exception("notification_try_failed")
        text = f"An error of the service: {type(error).__name__}"
        return Answer(delivered=False, status=None, text=text, seconds=time.monotonic() - start)
