from pydantic import Field

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
    actor: str | None = Field(description="name of the API key of the person who caused it; null: nobody did")
    actor_key: str | None = Field(description="id of that key")


class Events(View):
    """A job's events, oldest first."""

    events: list[EventView]
