from datetime import datetime

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime
from core.db.models.jobs import BigId


class Change(Base):
    """A change to what is not a job, a refusal, or a read in a closed project; rows are only ever added."""

    __tablename__ = "changes"

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    actor: Mapped[str | None] = mapped_column(String(16))
    """Id of the API key; None: an administrator on the host, with gradient-server."""
    address: Mapped[str | None] = mapped_column(String(64))  # of the client
    kind: Mapped[str] = mapped_column(String(32))  # refused, read, secret_set, worker_drained, project_changed, …
    target: Mapped[str] = mapped_column(Text)  # name of the changed thing, without its value
    result: Mapped[str | None] = mapped_column(String(32))  # name of the error of a refusal; None: it was done
