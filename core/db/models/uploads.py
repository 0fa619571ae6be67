from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base, UtcDateTime

_UNNAMED = text("key IS NULL")


class UploadedFile(Base):
    """A file that a client stored for a project's jobs, and whose bytes are an object in the bucket."""

    __tablename__ = "uploaded_files"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)  # last part of the object's name
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    key: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Its path, as it is ordered in lists: with NUL between folders. None: it is not complete yet, or was deleted."""
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    mtime_ms: Mapped[int] = mapped_column(BigInteger)
    remove_at: Mapped[datetime] = mapped_column(UtcDateTime)  # when the object is deleted, if it has no path then

    __table_args__ = (
        Index("ix_uploaded_files_project_id_key", "project_id", "key", unique=True),
        Index("ix_uploaded_files_remove_at", "remove_at", sqlite_where=_UNNAMED, postgresql_where=_UNNAMED),
    )
