"""Messages to receivers: written with what they tell of, or from the events that are marked; claimed, tried, recorded.

A message is delivered at least once: the state of a job and the mark of its event are one transaction, the end of the
mark and the message another, and a try that no process records is lost after a while, and made again.
"""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, or_, select, update
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

RETRY_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds after each try that failed, as Standard Webhooks suggests; after the last one, the message has failed."""
CLAIM_SECONDS = 90  # after this time a try of which nothing is recorded was made by a process that died
KEPT_DAYS = 30
_JITTER = 0.2  # part of a wait that is added at random, so that messages do not come back together
_MAX_RETRY_AFTER = 86_400
_MAX_ANSWER = 500
_BATCH = 100  # a transaction that writes more of them would keep others waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event as receivers get it."""

    key: str  # tells it from all others
    event: str
    summary: str
    data: dict[str, Any]
    at: datetime
    subjects: Collection[str]  # ids of rules, see `NotificationRule.subject`
    also: Collection[str] = ()  # events of single jobs that it stands for


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a try."""

    delivered: bool
    status: int | None  # of HTTP
    text: str
    seconds: float
    retry_after: float | None = None
    gone: bool = False  # whether the receiver wants no more messages


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message to try now, and where to."""

    delivery: NotificationDelivery
    receiver: Receiver


def marked_events(session: Session) -> list[Event]:
    """Return the first events of which receivers may have to be told."""
    marked = select(Event).where(Event.to_notify.is_not(None)).order_by(Event.id).limit(_BATCH)
    return list(session.scalars(marked))


def unmark(session: Session, ids: Sequence[int]) -> set[int]:
    """Take events, and return those that no other process has taken meanwhile."""
    mine = update(Event).where(Event.id.in_(ids), Event.to_notify.is_not(None)).values(to_notify=None)
    return set(session.scalars(mine.returning(Event.id), execution_options={"synchronize_session": False}))


def send(session: Session, notice: Notice) -> None:
    """Write one message to each receiver that is to be told, in the caller's transaction."""
    rules = select(NotificationRule).where(NotificationRule.subject.in_([*notice.subjects, ALL]))
    named: dict[str, list[list[str] | None]] = {}
    for rule in session.scalars(rules):
        named.setdefault(rule.receiver, []).append(rule.events)
    locked = select(Receiver).where(Receiver.id.in_(named)).order_by(Receiver.id).with_for_update()
    for receiver in session.scalars(locked) if named else ():
        wanted = [receiver.events if events is None else events for events in named[receiver.id]]
        if any(matches(events, [notice.event, *notice.also]) for events in wanted):
            _write(session, receiver, notice)


def send_test(session: Session, name: str) -> str:
    """Write a message to one receiver, whatever it is told of; return its id."""
    receiver = session.scalars(select(Receiver).where(Receiver.id == name).with_for_update()).one()
    at = session.scalars(select(now())).one()
    summary = f"A test of the receiver {name}"
    notice = Notice(key=new_id("test-"), event="test", summary=summary, data={}, at=at, subjects=())
    return _write(session, receiver, notice, is_test=True)


def _write(session: Session, receiver: Receiver, notice: Notice, *, is_test: bool = False) -> str:
    summary = storable_text(notice.summary)
    current = session.scalars(select(now())).one()
    held = not is_test and receiver.quiet_until is not None and receiver.quiet_until > current
    delivery_id = new_id("msg_")
    values = {
        "id": delivery_id,
        "receiver": receiver.id,
        "event_key": notice.key,
        "event": notice.event,
        "summary": summary,
        "body": {"type": notice.event, "timestamp": iso_time(notice.at), "data": {"summary": summary, **notice.data}},
        "state": "failed" if receiver.disabled and not is_test else "held" if held else "pending",
        "created_at": current,
        "next_at": None if held or (receiver.disabled and not is_test) else current,
        "failures": 0,
        "tries": [],
    }
    new = insert_ignore(session.get_bind().dialect.name, NotificationDelivery).values(**values)
    written = session.scalar(new.returning(NotificationDelivery.id)) is not None
    if written and not is_test and receiver.quiet_seconds and not held:
        _be_quiet(session, receiver)
    return delivery_id


def _be_quiet(session: Session, receiver: Receiver) -> None:
    quiet = update(Receiver).where(Receiver.id == receiver.id).values(quiet_until=now(receiver.quiet_seconds))
    session.execute(quiet, execution_options={"synchronize_session": False})
    session.refresh(receiver)


def _quiet_is_over() -> ColumnElement[bool]:
    """Return the condition that messages are held for a receiver whose quiet time is over."""
    held = NotificationDelivery.receiver == Receiver.id, NotificationDelivery.state == "held"
    return and_(Receiver.quiet_until <= now(), select(NotificationDelivery.id).where(*held).exists())


def digest(session: Session) -> int:
    """Send what came while receivers were quiet, as one message each; return their number."""
    over = select(Receiver).where(_quiet_is_over()).order_by(Receiver.id).with_for_update()
    due = list(session.scalars(over))
    for receiver in due:
        mine = NotificationDelivery.receiver == receiver.id, NotificationDelivery.state == "held"
        held_by = select(NotificationDelivery).where(*mine).order_by(NotificationDelivery.created_at)
        messages = list(session.scalars(held_by))
        if len(messages) == 1:
            messages[0].state, messages[0].next_at = "pending", now()
            _be_quiet(session, receiver)
            continue
        for message in messages:
            message.state = "digested"
        session.flush()
        receiver.quiet_until = None
        notice = Notice(
            key=new_id("digest-"),
            event="digest",
            summary="\n".join([f"{len(messages):,} events", *(message.summary for message in messages)]),
            data={"messages": [{"id": message.id, **message.body} for message in messages]},
            at=session.scalars(select(now())).one(),
            subjects=(),
        )
        _write(session, receiver, notice)
    session.flush()
    return len(due)


def has_due(session: Session) -> bool:
    """Return whether there may be something to send."""
    due = select(NotificationDelivery.id).where(NotificationDelivery.next_at <= now()).limit(1)
    return any(
        session.scalar(query) is not None for query in (due, select(Receiver.id).where(_quiet_is_over()).limit(1))
    )


def claim(session: Session, busy: Collection[str]) -> Iterator[Claimed]:
    """Take the next due message of each receiver that is not `busy`; another process takes it if none records it."""
    due = NotificationDelivery.next_at <= now(), NotificationDelivery.receiver.not_in(busy)
    waiting = select(NotificationDelivery).where(*due).order_by(NotificationDelivery.next_at).limit(_BATCH)
    taken: set[str] = set()
    for delivery in list(session.scalars(waiting)):
        if delivery.receiver in taken:
            continue
        mine = NotificationDelivery.id == delivery.id, NotificationDelivery.next_at == delivery.next_at
        claimed = update(NotificationDelivery).where(*mine).values(next_at=now(CLAIM_SECONDS))
        took = claimed.returning(NotificationDelivery.id)
        if session.scalar(took, execution_options={"synchronize_session": False}) is not None:
            taken.add(delivery.receiver)
            yield Claimed(delivery, session.get_one(Receiver, delivery.receiver))


def record(session: Session, delivery_id: str, answer: Answer) -> None:
    """Record what came back from a try: the message is delivered, is tried again, or has failed."""
    delivery = session.get(NotificationDelivery, delivery_id, with_for_update=True)
    if delivery is None or delivery.state == "delivered":  # its receiver was deleted, or another process was quicker
        return
    at = iso_time(session.scalars(select(now())).one())
    text = storable_text(answer.text)[:_MAX_ANSWER]
    tried = {"at": at, "status": answer.status, "answer": text, "seconds": round(answer.seconds, 3)}
    delivery.tries = [*delivery.tries, tried]
    if answer.delivered:
        delivery.state, delivery.next_at = "delivered", None
        return
    delivery.failures += 1
    if answer.gone:
        _disable(session, delivery, "It answered 410 Gone")
    elif delivery.failures > len(RETRY_SECONDS):
        newer = NotificationDelivery.receiver == delivery.receiver, NotificationDelivery.state == "delivered"
        since = NotificationDelivery.created_at >= delivery.created_at
        if session.scalar(select(NotificationDelivery.id).where(*newer, since).limit(1)) is None:
            _disable(session, delivery, f"{delivery.failures} tries of one message failed, and no other arrived")
        delivery.state, delivery.next_at = "failed", None
    else:
        pause = RETRY_SECONDS[delivery.failures - 1] * (1 + _JITTER * random.random())  # noqa: S311 - no secret
        delivery.next_at = now(max(pause, min(answer.retry_after or 0, _MAX_RETRY_AFTER)))
    session.flush()


def _disable(session: Session, delivery: NotificationDelivery, why: str) -> None:
    """Send nothing more to a receiver, also of what waits."""
    delivery.state, delivery.next_at = "failed", None
    session.flush()
    disabled = f"{why}. Save it again to enable it."
    session.execute(update(Receiver).where(Receiver.id == delivery.receiver).values(disabled=disabled))
    waits = NotificationDelivery.state.in_(("pending", "held"))
    rest = update(NotificationDelivery).where(NotificationDelivery.receiver == delivery.receiver, waits)
    session.execute(rest.values(state="failed", next_at=None), execution_options={"synchronize_session": False})


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


def page(
    session: Session, name: str, *, limit: int, after: str | None
) -> tuple[list[NotificationDelivery], str | None]:
    """Return messages to a receiver, newest first, and the id that the next page comes after."""
    table = NotificationDelivery
    query = select(table).where(table.receiver == name).order_by(table.created_at.desc(), table.id.desc())
    last = session.get(table, after) if after else None
    if last is not None:
        same = and_(table.created_at == last.created_at, table.id < last.id)
        query = query.where(or_(table.created_at < last.created_at, same))
    messages = list(session.scalars(query.limit(limit + 1)))
    return messages[:limit], messages[limit - 1].id if len(messages) > limit else None


def forget(session: Session) -> None:
    """Delete the messages of long ago."""
    old = NotificationDelivery.created_at < now(-KEPT_DAYS * 86_400), NotificationDelivery.next_at.is_(None)
    session.execute(delete(NotificationDelivery).where(*old))


def unfollow(session: Session, subjects: Sequence[str]) -> None:
    """Delete the rules of jobs and arrays that have ended."""
    ended = NotificationRule.subject.in_(subjects), NotificationRule.scope.is_(None)
    session.execute(delete(NotificationRule).where(*ended))
