from pathlib import Path
from urllib.parse import unquote

from pydantic import Field, field_validator

from core.settings.group import SettingsGroup, require_host_and_port

SQLITE = "sqlite:///"  # beginning of the URL of an SQLite database; the path after it is quoted as in any URL

_DATABASES = (SQLITE, "postgresql://", "postgres://", "postgresql+psycopg://")


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite database; None if the URL is of another one."""
    return Path(unquote(url.removeprefix(SQLITE).partition("?")[0])) if url.startswith(SQLITE) else None


class DatabaseSettings(SettingsGroup):
    url: str | None = Field(
        default=None, description="SQLAlchemy URL of the database; default: SQLite under GRADIENT_HOME"
    )
    worker_url: str | None = Field(
        default=None,
        description="PostgreSQL URL for workers; `gradient-server migrate` creates its user, which can run jobs but "
        "has no access to keys, sessions and users",
    )
    transaction_pooler: bool = Field(
        default=False,
        description="whether the service reaches PostgreSQL through PgBouncer or another transaction pooler",
    )

    @field_validator("url", "worker_url")
    @classmethod
    def _known(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(_DATABASES):
            # The URL is not repeated: it may contain a password.
            raise ValueError(f"It must begin with {' or '.join(_DATABASES[:2])}.")
        if url is not None and sqlite_file(url) is None:
            require_host_and_port(url)
        elif url is not None and (sqlite_file(url) == Path() or not str(sqlite_file(url)).isprintable()):
            raise ValueError(
                "It does not name a file. An absolute path looks like sqlite:////var/lib/gradient-jobs/gradient.db."
            )
        return url
