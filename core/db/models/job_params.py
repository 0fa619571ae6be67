from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import Base
from core.jobs.spec.params import MAX_PARAM_NAME, MAX_PARAM_TEXT


class JobParam(Base):
    """A parameter of a job: a number or a text, by which lists of jobs are filtered and sorted."""

    __tablename__ = "job_params"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(MAX_PARAM_NAME), primary_key=True)
    number: Mapped[float | None]
    text: Mapped[str | None] = mapped_column(String(MAX_PARAM_TEXT))

    __table_args__ = (
        Index("ix_job_params_name_number", "name", "number"),
        Index("ix_job_params_name_text", "name", "text"),
    )
