"""Settings of the database."""

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from core.settings.group import SettingsGroup

_DATABASES = ("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://")


class DatabaseSettings(SettingsGroup):
    """The database."""

    url: str | None = Field(
        default=None, description="SQLAlchemy URL of the database; default: SQLite under GRADIENT_HOME"
    )
    pool_size: int = Field(
        default=5,
        description="threads of an API process for reads, for files and for logs, each; "
        "PostgreSQL gets up to four times as many connections",
    )
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
