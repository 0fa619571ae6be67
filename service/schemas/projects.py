from typing import Annotated, Literal

from pydantic import Field

from service.schemas.base import RequestModel, Time, View, single_error_message


class CreateProject(RequestModel):
    """A project to create."""

    name: str


Days = Annotated[
    int | Literal["default"] | None,
    single_error_message('must be a number of days, null (forever) or "default" (the service\'s setting)'),
]
"""A retention time."""

Limit = Annotated[
    int | Literal["default"] | None,
    single_error_message('must be a number of MiB, null (no limit) or "default" (the service\'s setting)'),
]
"""A storage limit."""


class UpdateProject(RequestModel):
    """Changes to a project; fields left out stay as they are."""

    max_running: int | None = Field(None, description="limit on jobs running at once, at least 1; null: no limit")
    max_stored_mb: Limit = Field(
        None,
        description='limit on stored logs and artifacts in MiB, at least 1; null: no limit; "default": the '
        "service's setting",
    )
    keep_logs_days: Days = Field(
        None,
        description="days to keep logs after a job's end, from 1; null: forever; \"default\": the service's setting",
    )
    keep_artifacts_days: Days = Field(None, description="days to keep artifacts; like `keepLogsDays`")


class ProjectView(View):
    """A project."""

    id: str
    name: str
    created_at: Time
    job_count: int
    running_count: int = Field(description="number of jobs that occupy a machine")
    queued_count: int = Field(description="number of waiting jobs")
    max_running: int | None = Field(description="limit on jobs running at once; null: no limit")
    max_stored_mb: int | None = Field(description="limit on stored logs and artifacts in MiB; null: no limit")
    keep_logs_days: int | None = Field(description="days to keep logs after a job's end; null: forever")
    keep_logs_by: Literal["project", "service"] = Field(description="source of `keepLogsDays`")
    keep_artifacts_days: int | None = Field(description="days to keep artifacts after a job's end; null: forever")
    keep_artifacts_by: Literal["project", "service"]


class Projects(View):
    """Every project, by name."""

    projects: list[ProjectView]
