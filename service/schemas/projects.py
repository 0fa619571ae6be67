"""Schemas of projects."""

from typing import Annotated, Literal

from pydantic import Field

from service.schemas.base import View
from service.schemas.jobs import RequestModel, Time, single_error_message


class CreateProject(RequestModel):
    """A project to make."""

    name: str


Days = Annotated[
    int | Literal["default"] | None,
    single_error_message('must be a number of days, null (for good) or "default" (as the service is set)'),
]
"""A retention time."""

Limit = Annotated[
    int | Literal["default"] | None,
    single_error_message('must be a number of MiB, null (no limit) or "default" (as the service is set)'),
]
"""A storage limit."""


class UpdateProject(RequestModel):
    """Changes to a project; fields left out stay as they are."""

    max_running: int | None = Field(None, description="jobs that run at once, at least 1; null: no limit")
    max_stored_mb: Limit = Field(
        None,
        description='MiB of logs and artifacts kept of its jobs, at least 1; null: no limit; "default": as the '
        "service is set",
    )
    keep_logs_days: Days = Field(
        None, description='days that logs are kept, at least 1; null: for good; "default": as the service is set'
    )
    keep_artifacts_days: Days = Field(None, description="the same for artifacts")


class ProjectView(View):
    """A project."""

    id: str
    name: str
    created_at: Time
    job_count: int
    running_count: int = Field(description="jobs that have a machine")
    queued_count: int = Field(description="jobs that wait")
    max_running: int | None = Field(description="jobs that run at once, at most; null: no limit of its own")
    max_stored_mb: int | None = Field(description="MiB of its jobs' logs and artifacts that are kept; null: no limit")
    keep_logs_days: int | None = Field(description="days that logs are kept after a job's end; null: for good")
    keep_logs_by: Literal["project", "service"] = Field(description="whose policy that is")
    keep_artifacts_days: int | None = Field(description="the same for artifacts")
    keep_artifacts_by: Literal["project", "service"]


class Projects(View):
    """Every project, by name."""

    projects: list[ProjectView]
