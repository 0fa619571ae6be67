from datetime import datetime

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime
from core.db.models.jobs import BigId


class Change(Base):
    """A change that somebody made to what is not a job; rows are only ever added."""

    __tablename__ = "changes"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str | None] = mapped_column(String(16))
    """Id of the API key; None: an administrator on the host, with gradient-server."""
    kind: Mapped[str] = mapped_column(String(32))  # secret_set, worker_drained, project_changed, …
    target: Mapped[str] = mapped_column(Text)  # name of the changed thing, without its value
