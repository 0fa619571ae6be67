from typing import Any, Literal

from pydantic import Field

from core.jobs.spec.notify import DEFAULT_EVENTS, EVENTS
from core.notifications.receivers import MAX_QUIET_SECONDS
from service.schemas.base import RequestList, RequestModel, Time, View

_EVENTS = f"names of events, or patterns such as job.*; {', '.join(EVENTS)}"


class SaveReceiver(RequestModel):
    """A receiver of notifications."""

    url: str = Field(
        description="https or http URL of a webhook, or an address of Apprise, such as slack://…; never returned",
        repr=False,
    )
    events: RequestList[str] = Field(
        default=[*DEFAULT_EVENTS], description=f"what it is told of, unless a job names other events: {_EVENTS}"
    )
    jobs: RequestList[str] = Field(
        default=[],
        description="whose events it is told of, besides those of jobs that name it: mine, project:NAME, all",
    )
    quiet_seconds: int = Field(
        default=0,
        ge=0,
        le=MAX_QUIET_SECONDS,
        description="seconds after a message in which further ones are collected, to be sent as one; 0: none",
    )


class ReceiverView(View):
    """A receiver of notifications, without what is secret in its address."""

    name: str
    owner_key: str = Field(description="id of the API key that saved it")
    kind: str = Field(description="webhook, or the scheme of an address of Apprise")
    address: str = Field(description="scheme and, of a webhook, host")
    events: list[str]
    jobs: list[str]
    quiet_seconds: int
    disabled: str | None = Field(description="why nothing is sent to it any more; null: it is enabled")
    created_at: Time
    updated_at: Time
    secret: str | None = Field(
        None, description="secret that signs its messages, returned only when it is saved; null: not signed"
    )


class Receivers(View):
    """Receivers of notifications, by name."""

    receivers: list[ReceiverView]


class TryView(View):
    """A try to deliver a message."""

    at: str
    status: int | None = Field(description="HTTP status of the answer; null: there was none")
    answer: str = Field(description="beginning of the answer, or what went wrong")
    seconds: float


class DeliveryView(View):
    """A message to a receiver."""

    id: str = Field(description="sent as webhook-id, the same with every try")
    event: str
    summary: str
    state: Literal["pending", "held", "delivered", "failed", "digested"]
    created_at: Time
    next_at: Time | None = Field(description="time of the next try; null: there is none")
    tries: list[TryView]
    body: dict[str, Any]


class Deliveries(View):
    """The last messages to a receiver, newest first."""

    deliveries: list[DeliveryView]
