"""The loop that sends messages to receivers. Safe in any number of processes at once: each message is claimed.

Each receiver has one try at a time, in a thread of its own, so that one which does not answer delays no other.
"""

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue

from sqlalchemy.orm import Session
from urllib3.exceptions import HTTPError

from core.db.models.jobs import Event
from core.db.models.notifications import NotificationDelivery, Receiver
from core.errors import GradientError, StoreUnavailable
from core.jobs.spec.notify import ENDS
from core.jobs.templates.sweeps import sweeps
from core.notifications import apprise_address, deliveries, receivers, webhook
from core.notifications.deliveries import Answer, Notice
from core.security.encryption import Vault
from core.system.failpoints import failpoint
from service.app_state import AppState
from service.auth.authentication import sees_projects
from service.notifications.notices import notices_of, of_costs, of_sweep, of_workers

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
_DEADLINE_SECONDS = 45.0  # of a try; shorter than its claim


class Sender:
    """Sends the messages of one process."""

    def __init__(self) -> None:
        self._trying: dict[str, tuple[str, float]] = {}  # message and start of a receiver's try, until its thread ends
        self._given_up: set[str] = set()  # messages whose try has passed the deadline
        self._answers: SimpleQueue[tuple[str, str, Answer, float]] = SimpleQueue()

    def advance(self, app_state: AppState) -> int:
        """Record what came back, write new messages, and begin to send those that are due; return their number."""
        for name, (message_id, start) in list(self._trying.items()):
            if time.monotonic() - start > _DEADLINE_SECONDS and message_id not in self._given_up:
                self._given_up.add(message_id)
                text = f"No end of the answer within {_DEADLINE_SECONDS:.0f} seconds"
                self._answers.put((name, message_id, Answer(text), _DEADLINE_SECONDS))
        while not self._answers.empty():
            self._record(app_state, *self._answers.get())
        if not collect(app_state):
            return 0
        with app_state.database.write() as session:
            claimed = deliveries.claim(session, list(self._trying))
        for delivery, receiver in claimed:
            self._trying[receiver.id] = delivery.id, time.monotonic()
            threading.Thread(target=self._try, args=(app_state, delivery, receiver), daemon=True).start()
        return len(claimed)

    def _try(self, app_state: AppState, delivery: NotificationDelivery, receiver: Receiver) -> None:
        start, answer = time.monotonic(), attempt(app_state, delivery, receiver)
        failpoint("notify_sent")
        self._answers.put((receiver.id, delivery.id, answer, time.monotonic() - start))
        del self._trying[receiver.id]
        self._given_up.discard(delivery.id)

    def _record(self, app_state: AppState, receiver: str, message_id: str, answer: Answer, seconds: float) -> None:
        """Record an answer; if the database is away, the claim ends and the message is sent again."""
        with app_state.database.write() as session:
            deliveries.record(session, message_id, answer, seconds)
        level = logging.INFO if answer.delivered else logging.WARNING
        context = {"receiver": receiver, "delivery": message_id, "status": answer.status}
        logger.log(level, "notification_delivered" if answer.delivered else "notification_failed", extra=context)


def collect(app_state: AppState) -> bool:
    """Write the messages of the events and sweeps that are marked; return whether there may be something to send."""
    with app_state.database.read() as session:
        may_be_due = deliveries.has_due(session)
        events = deliveries.marked_events(session)
        notices = _make_notices(session, app_state, events) if events else []
        ended = [(sweep, of_sweep(session, app_state, sweep)) for sweep in sweeps.marked(session)]
    if not events and not ended:
        return may_be_due
    with app_state.database.write() as session:
        for sweep, notice in ended:
            if notice is not None and sweeps.unmark(session, sweep):
                deliveries.send(session, notice, partial(sees_projects, app_state, session))
        if events and deliveries.unmark(session, [event.id for event in events]):
            for notice in notices:
                deliveries.send(session, notice, partial(sees_projects, app_state, session))
            # An array's id is the first subject of its notice, a job's of its own.
            over = [notice.subjects for notice in notices if notice.event in {*ENDS, "array.ended"}]
            deliveries.unfollow(session, [next(iter(subjects)) for subjects in over])
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


def collect_states(app_state: AppState) -> None:
    """Write the messages of workers and of costs; again, they are the same."""
    with app_state.database.read() as session:
        notices = [*of_workers(session, app_state), *of_costs(session, app_state)]
    if notices:
        with app_state.database.write() as session:
            for notice in notices:
                deliveries.send(session, notice, partial(sees_projects, app_state, session))


def attempt(app_state: AppState, delivery: NotificationDelivery, receiver: Receiver) -> Answer:
    """Make one try, and return what came back; raises nothing."""
    try:
        opened = receivers.unseal(Vault(app_state.settings), receiver)
        allowed = app_state.settings.notifications.allowed
        if receiver.kind == "webhook":
            return webhook.send(opened["url"], opened["secret"], delivery.id, delivery.body, allowed)
        return apprise_address.send(opened["url"], delivery.id, delivery.body, allowed)
    except GradientError as error:
        return Answer(error.message)
    except (HTTPError, OSError, ValueError) as error:
        # Without the path of the URL, which may be secret.
        return Answer(str(getattr(error, "reason", None) or error).rpartition(": ")[2] or type(error).__name__)
    except Exception as error:
        logger.exception("notification_try_failed")
        return Answer(f"An error of the service: {type(error).__name__}")
