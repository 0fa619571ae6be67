from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base


class JobDependency(Base):
    """A job or an array that a job waits for. Removed when it ends: a job that has none may start."""

    __tablename__ = "job_dependencies"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    after_id: Mapped[str] = mapped_column(String(16), primary_key=True)
    must_succeed: Mapped[bool]

    __table_args__ = (Index("ix_job_dependencies_after_id", "after_id"),)
