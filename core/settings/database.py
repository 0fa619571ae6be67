"""Settings of the database, the broker, and the encryption keys of secrets."""

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from core.settings.group import SettingsGroup

_DATABASES = ("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://")


class DatabaseSettings(SettingsGroup):
    """The database."""

    url: str | None = Field(default=None, description="SQLAlchemy URL; default: SQLite under GRADIENT_HOME")
    pool_size: int = Field(default=5, description="connections kept per process (PostgreSQL)")
    max_checkout_seconds: float = Field(
        default=45.0, description="a connection that nothing comes back on for this long is broken (PostgreSQL)"
    )

    @field_validator("url")
    @classmethod
    def _known(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(_DATABASES):
            # The URL is not repeated: it may contain a password.
            raise ValueError(f"must begin with {' or '.join(_DATABASES[:2])}")
        if url is not None:
            _ = urlsplit(url).port  # raises if the port is not a number
        return url


class QueueSettings(SettingsGroup):
    """The message broker, which wakes workers on other hosts."""

    broker_url: str | None = Field(default=None, description="Celery broker; none: workers only poll")
    ping_seconds: float = Field(default=20.0, gt=0, description="seconds between a worker's messages to itself")
    broker_silent_seconds: float = Field(
        default=90.0, ge=0, description="a worker that hears none of them for so long restarts; 0: never"
    )


class SecretSettings(SettingsGroup):
    """Encryption of secrets and registry passwords."""

    encryption_keys: list[SecretStr] = Field(
        default=[],
        description="keys (32 bytes in URL-safe Base64) as a JSON list, the first one for new values; default: those "
        "in secrets.key under GRADIENT_HOME, where the first is made when it is needed",
    )
