"""Schemas of job events."""

from service.schemas.base import Time, View


class EventView(View):
    """Something that happened to a job."""

    id: int
    at: Time
    attempt: int
    kind: str
    from_state: str | None
    to_state: str | None
    phase: str | None
    reason: str | None
    message: str | None


class Events(View):
    """A job's events, oldest first."""

    events: list[EventView]
