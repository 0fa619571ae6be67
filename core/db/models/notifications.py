"""Receivers of notifications, what each of them is told of, and the messages to them."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime

ALL = "*"  # subject of the rule for all events
_DUE = text("next_at IS NOT NULL")


class Receiver(Base):
    """A webhook, a chat or a mailbox outside the service, which is told of events."""

    __tablename__ = "notification_receivers"

    id: Mapped[str] = mapped_column(String(100), primary_key=True)  # its name, which people chose
    submitted_by: Mapped[str] = mapped_column(String(16))  # id of an API key
    kind: Mapped[str] = mapped_column(String(16))  # webhook, or the scheme of an address of Apprise
    address: Mapped[str] = mapped_column(String(300))  # for display: scheme and host
    sealed: Mapped[str] = mapped_column(Text)  # JSON: the address (`url`), and the secret that signs (`secret`)
    events: Mapped[list[str]] = mapped_column(JSON)  # what it is told of if a rule names no events
    quiet_seconds: Mapped[int]  # after a message, further ones are collected for this time
    quiet_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    disabled: Mapped[str | None] = mapped_column(Text)  # why nothing is sent any more; None: it is
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class NotificationRule(Base):
    """A receiver that is told of the events of one thing."""

    __tablename__ = "notification_rules"

    subject: Mapped[str] = mapped_column(String(16), primary_key=True)
    """Id of a job, an array, a sweep, a project, a user or an API key; `*`: all."""
    receiver: Mapped[str] = mapped_column(ForeignKey("notification_receivers.id"), primary_key=True, index=True)
    scope: Mapped[str | None] = mapped_column(String(8))
    """mine, project or all, which the receiver was saved with; None: the job, array or sweep names the receiver."""
    events: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Names and patterns; None: those of the receiver."""


class NotificationDelivery(Base):
    """A message to a receiver, and what came back. Several rules never make two of one event."""

    __tablename__ = "notification_deliveries"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)  # sent with every try, by which once is enough
    receiver: Mapped[str] = mapped_column(ForeignKey("notification_receivers.id"))
    event_key: Mapped[str] = mapped_column(String(100))  # tells the event from others
    event: Mapped[str] = mapped_column(String(32))
    summary: Mapped[str] = mapped_column(Text)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16))  # pending, held (in the quiet time), delivered, failed or digested
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    next_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The next try; while one is made, the time after which it counts as lost. None: there is none."""
    failures: Mapped[int] = mapped_column(default=0)  # tries that failed since it was written or replayed
    tries: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """The answers, in order: `at`, `status` (of HTTP, or null), `answer`, `seconds`."""

    __table_args__ = (
        Index("uq_notification_deliveries_event", "receiver", "event_key", unique=True),
        Index("ix_notification_deliveries_due", "next_at", sqlite_where=_DUE, postgresql_where=_DUE),
        Index("ix_notification_deliveries_created_at", "created_at"),
    )
