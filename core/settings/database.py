"""Settings of the database, the broker, and the encryption keys of secrets."""

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from core.settings.group import SettingsGroup

_DATABASES = ("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://")


class DatabaseSettings(SettingsGroup):
    """The database."""

    url: str | None = Field(
        default=None, description="SQLAlchemy URL of the database; default: SQLite under GRADIENT_HOME"
    )
    pool_size: int = Field(default=5, description="connections that each process keeps open (PostgreSQL)")
    max_checkout_seconds: float = Field(
        default=45.0,
        description="seconds after which a connection that is still in use is considered stuck and closed (PostgreSQL)",
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


class SecretSettings(SettingsGroup):
    """Encryption of secrets and registry passwords."""

    encryption_keys: list[SecretStr] = Field(
        default=[],
        description="encryption keys (32 bytes in URL-safe Base64) as a JSON list, the first for new values; "
        "default: those in secrets.key under GRADIENT_HOME, which is created when first needed",
    )
