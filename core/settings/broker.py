from pydantic import Field

from core.settings.group import SettingsGroup


class QueueSettings(SettingsGroup):
    """The message broker, which wakes workers on other hosts."""

    broker_url: str | None = Field(
        default=None, description="URL of the Celery broker; default: none, workers only poll"
    )
    ping_seconds: float = Field(
        default=20.0, gt=0, description="seconds between the messages that a worker sends to itself through the broker"
    )
    broker_silent_seconds: float = Field(
        default=90.0,
        ge=0,
        description="seconds without a message from the broker after which a worker restarts; 0: never",
    )
