from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from core.jobs.costs.budgets import MAX_BUDGETS
from service.schemas.base import LimitedList, RequestModel, Time, View, single_error_message

BUDGETS = (
    "most that its jobs may cost, `AMOUNT/PERIOD` in US dollars or `AMOUNTgpu_hours/PERIOD`: `100/month`, "
    "`8gpu_hours/day`, `500/total`; null or empty: no limit"
)


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
    budgets: LimitedList[str] | None = Field(None, max_length=MAX_BUDGETS, description=BUDGETS)
    closed: bool | None = Field(None, description="whether only members and administrators see it and what is in it")


class BudgetView(View):
    """A budget, and what of it is left."""

    amount: float
    unit: Literal["usd", "gpu_hours"]
    period: Literal["day", "month", "total"] = Field(description="days and months are of UTC")
    spent: float = Field(description="in the current period, by all jobs, also by deleted ones")
    reserved: float = Field(description="what running jobs can still cost until they are stopped")
    left: float
    resets_at: Time | None = Field(description="end of the period; null: it has none")


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
    budgets: list[BudgetView] = Field(default_factory=list)
    closed: bool = Field(description="whether only members and administrators see it and what is in it")


Role: TypeAlias = Literal["viewer", "submitter", "maintainer"]


class SetMember(RequestModel):
    """The role of a member."""

    role: Role = Field(description="viewer: read; submitter: also submit; maintainer: also change all of the project")


class MemberView(View):
    """A member of a project."""

    id: str = Field(description="of the user, or of the API key if it is no user's")
    name: str = Field(description="address of the user, or name of the key")
    role: Role


class Members(View):
    """The members of a project, by name."""

    members: list[MemberView]


class Projects(View):
    """Every project, by name."""

    projects: list[ProjectView]
