"""Messages to receivers: written with what they tell of, or from the events that are marked; claimed, tried, recorded.

A message is delivered at least once: the state of a job and the mark of its event are one transaction, the end of the
mark and the message another, and a try that no process records is lost after a while, and made again.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Event
from core.db.models.notifications import ALL, NotificationDelivery, NotificationRule, Receiver
from core.errors import NotFound
from core.formatting import iso_time
from core.ids import new_id
from core.jobs.guarded_updates import insert_ignore, storable_text
from core.jobs.spec.notify import matches
from core.security.actor import record_change
from core.security.visibility import hidden_projects

RETRY_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds after each try that failed, as Standard Webhooks suggests; after the last one, the message has failed."""
CLAIM_SECONDS = 90  # after this time a try of which nothing is recorded was made by a process that died
_KEPT_SECONDS = 30 * 86_400
_JITTER = 0.2  # part of a wait that is added at random, so that messages do not come back together
_MAX_RETRY_AFTER = 86_400
_MAX_ANSWER = 500
_GONE = 410  # status of a receiver that wants no more messages
_BATCH = 100  # a transaction that writes more of them would keep others waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event as receivers get it."""

    key: str  # tells it from all others
    event: str
    summary: str
    data: dict[str, Any]
    at: datetime
    subjects: Collection[str] = ()  # ids of rules, see `NotificationRule.subject`
    also: Collection[str] = ()  # events of single jobs that it stands for


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a try."""

    text: str
    delivered: bool = False
    status: int | None = None  # of HTTP
    retry_after: float | None = None


def read_now(session: Session) -> datetime:
    return session.scalars(select(now())).one()


def marked_events(session: Session) -> list[Event]:
    """Return the first events of which receivers may have to be told."""
    marked = select(Event).where(Event.to_notify.is_not(None)).order_by(Event.id).limit(_BATCH)
    return list(session.scalars(marked))


def unmark(session: Session, ids: Sequence[int]) -> bool:
    """Take events; false if another process has taken them meanwhile."""
    mine = update(Event).where(Event.id.in_(ids), Event.to_notify.is_not(None)).values(to_notify=None)
    return bool(session.scalars(mine.returning(Event.id), execution_options={"synchronize_session": False}).all())


def send(session: Session, notice: Notice, sees: Callable[[str, Collection[str]], bool]) -> None:
    """Write a message to each receiver to be told whose owner `sees` the subjects, in the caller's transaction."""
    rules = select(Receiver, NotificationRule.events).join(NotificationRule, NotificationRule.receiver == Receiver.id)
    followed = rules.where(NotificationRule.subject.in_([*notice.subjects, ALL])).order_by(Receiver.id)
    for receiver, events in session.execute(followed.with_for_update(of=Receiver)).all():
        wanted = matches(receiver.events if events is None else events, [notice.event, *notice.also])
        if wanted and sees(receiver.submitted_by, notice.subjects):
            state = "failed" if receiver.disabled else "held" if receiver.quiet_seconds else "pending"
            _write(session, receiver, notice, state)


def send_test(session: Session, receiver: Receiver) -> NotificationDelivery:
    """Write a message to one receiver, whatever it is told of."""
    summary = f"A test of the receiver {receiver.id}"
    notice = Notice(key=new_id("test-"), event="test", summary=summary, data={}, at=read_now(session))
    return session.get_one(NotificationDelivery, _write(session, receiver, notice, "pending"))


def _write(session: Session, receiver: Receiver, notice: Notice, state: str) -> str:
    """Write a message, unless its event has one, and return its id."""
    summary, current, delivery_id = storable_text(notice.summary), read_now(session), new_id("msg_")
    values = {
        "id": delivery_id,
        "receiver": receiver.id,
        "event_key": notice.key,
        "event": notice.event,
        "summary": summary,
        "body": {"type": notice.event, "timestamp": iso_time(notice.at), "data": {"summary": summary, **notice.data}},
        "state": state,
        "created_at": current,
        "next_at": None if state == "failed" else current,
        "failures": 0,
        "tries": [],
    }
    session.execute(insert_ignore(session.get_bind().dialect.name, NotificationDelivery).values(**values))
    return delivery_id


def has_due(session: Session) -> bool:
    due = select(NotificationDelivery.id).where(NotificationDelivery.next_at <= now()).limit(1)
    return session.scalar(due) is not None


def claim(session: Session, busy: Collection[str]) -> list[tuple[NotificationDelivery, Receiver]]:
    """Take the next due message of each receiver that is not `busy`; another process takes it if none records it."""
    old = NotificationDelivery.created_at < now(-_KEPT_SECONDS), NotificationDelivery.next_at.is_(None)
    session.execute(delete(NotificationDelivery).where(*old))
    due = select(NotificationDelivery.receiver).where(NotificationDelivery.next_at <= now())
    ready = select(Receiver).where(Receiver.id.in_(due), Receiver.id.not_in(busy))
    receivers = session.scalars(ready.order_by(Receiver.id).with_for_update(skip_locked=True)).all()
    return [(delivery, receiver) for receiver in receivers if (delivery := _claim_next(session, receiver))]


def _claim_next(session: Session, receiver: Receiver) -> NotificationDelivery | None:
    """Take a message that waits for its next try or, after the quiet time, what came in it, as one."""
    mine = NotificationDelivery.receiver == receiver.id, NotificationDelivery.next_at <= now()
    order = NotificationDelivery.state.desc(), NotificationDelivery.created_at  # pending ones first
    messages = session.scalars(select(NotificationDelivery).where(*mine).order_by(*order).limit(_BATCH)).all()
    if not messages:
        return None
    delivery = messages[0]
    if delivery.state == "held":
        if receiver.quiet_until is not None and receiver.quiet_until > read_now(session):
            for message in messages:
                message.next_at = receiver.quiet_until
            return None
        receiver.quiet_until = now(receiver.quiet_seconds)
        if len(messages) > 1:
            delivery = _digest(session, receiver, messages)
    delivery.state, delivery.next_at = "pending", now(CLAIM_SECONDS)
    session.flush()
    return delivery


def _digest(session: Session, receiver: Receiver, messages: Sequence[NotificationDelivery]) -> NotificationDelivery:
    for message in messages:
        message.state, message.next_at = "digested", None
    notice = Notice(
        key=new_id("digest-"),
        event="digest",
        summary="\n".join([f"{len(messages):,} events", *(message.summary for message in messages)]),
        data={"messages": [{"id": message.id, **message.body} for message in messages]},
        at=read_now(session),
    )
    return session.get_one(NotificationDelivery, _write(session, receiver, notice, "pending"))


def record(session: Session, delivery_id: str, answer: Answer, seconds: float) -> None:
    """Record what came back from a try: the message is delivered, is tried again, or has failed."""
    delivery = session.get(NotificationDelivery, delivery_id, with_for_update=True)
    if delivery is None or delivery.state == "delivered":  # its receiver was deleted, or another process was quicker
        return
    text, at = storable_text(answer.text)[:_MAX_ANSWER], iso_time(read_now(session))
    tried = {"at": at, "status": answer.status, "answer": text, "seconds": round(seconds, 3)}
    delivery.tries = [*delivery.tries, tried]
    delivery.failures += not answer.delivered
    if answer.delivered:
        delivery.state, delivery.next_at = "delivered", None
    elif answer.status == _GONE:
        _disable(session, delivery, "It answered 410 Gone")
    elif delivery.failures <= len(RETRY_SECONDS):
        pause = RETRY_SECONDS[delivery.failures - 1] * (1 + _JITTER * random.random())  # noqa: S311 - no secret
        delivery.next_at = now(max(pause, min(answer.retry_after or 0, _MAX_RETRY_AFTER)))
    else:
        delivery.state, delivery.next_at = "failed", None
        arrived = NotificationDelivery.receiver == delivery.receiver, NotificationDelivery.state == "delivered"
        later = NotificationDelivery.created_at >= delivery.created_at
        if session.scalar(select(NotificationDelivery.id).where(*arrived, later).limit(1)) is None:
            _disable(session, delivery, f"{delivery.failures} tries of one message failed, and no other arrived")


def _disable(session: Session, delivery: NotificationDelivery, why: str) -> None:
    """Send nothing more to a receiver, also of what waits."""
    session.get_one(Receiver, delivery.receiver).disabled = f"{why}. Save it again to enable it."
    waits = NotificationDelivery.receiver == delivery.receiver, NotificationDelivery.next_at.is_not(None)
    session.execute(update(NotificationDelivery).where(*waits).values(state="failed", next_at=None))


def replay(session: Session, name: str, delivery_id: str) -> NotificationDelivery:
    """Let a message be sent again, with its id."""
    delivery = session.get(NotificationDelivery, delivery_id, with_for_update=True)
    if delivery is None or delivery.receiver != name:
        raise NotFound(f"There is no message {delivery_id[:60]!r} to {name}.")
    delivery.state, delivery.next_at, delivery.failures = "pending", now(), 0
    record_change(session, "message_replayed", delivery_id)
    session.flush()
    session.refresh(delivery)
    return delivery


def last(session: Session, name: str, limit: int = 200) -> Sequence[NotificationDelivery]:
    """Return the last messages to a receiver, newest first, without those of hidden projects."""
    mine = select(NotificationDelivery).where(NotificationDelivery.receiver == name)
    messages = session.scalars(mine.order_by(NotificationDelivery.created_at.desc()).limit(limit)).all()
    hidden = hidden_projects(session)
    return [message for message in messages if _project_of(message) not in hidden]


def _project_of(message: NotificationDelivery) -> str | None:
    views = (view for view in message.body["data"].values() if isinstance(view, dict))
    return next((view["projectId"] for view in views if "projectId" in view), None)


def unfollow(session: Session, subjects: Sequence[str]) -> None:
    """Delete the rules of jobs and arrays that have ended."""
    ended = NotificationRule.subject.in_(subjects), NotificationRule.scope.is_(None)
    session.execute(delete(NotificationRule).where(*ended))
