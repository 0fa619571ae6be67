from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.database import UtcDateTime
from core.db.models.jobs import BigId
from core.jobs.spec.job_spec import JobSpec


class Template:
    """The columns of a row from which jobs are created: of a schedule or a sweep."""

    seq: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)  # order of creation
    id: Mapped[str] = mapped_column(String(16), unique=True)  # a beginning by its kind, and 13 of [a-z0-9]
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    submitted_by: Mapped[str] = mapped_column(String(16))  # id of an API key; its jobs are submitted by it, too
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_sha256: Mapped[str | None] = mapped_column(String(64))  # as of a job
    spec_json: Mapped[dict[str, Any]] = mapped_column("spec", JSON)
    sealed: Mapped[str | None] = mapped_column(Text)  # `user:password` for the git server of its workspace
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    @property
    def spec(self) -> JobSpec:
        return JobSpec.from_json(self.spec_json)
