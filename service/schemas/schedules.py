from typing import Literal

from pydantic import Field

from service.schemas.base import Time, View
from service.schemas.jobs import JobView, SubmitJob, TemplateView

_CRON = "minute, hour, day of the month, month and day of the week, such as `0 3 * * *`"
_ON_MISS = (
    "what to do about times missed while the service was down: create no job, one for all of them, or one for each"
)
_ON_OVERLAP = (
    "if a job of the schedule has not ended: `queue`: the next one waits for it; `skip`: no next one is created; "
    "`replace`: it is stopped and the next one follows"
)


class SubmitSchedule(SubmitJob):
    """A job to create at the times of a cron expression."""

    cron: str = Field(max_length=1000, description=_CRON)
    timezone: str = Field("UTC", max_length=1000, description="name of the time zone, such as Europe/Berlin")
    on_miss: Literal["skip", "once", "all"] = Field("once", description=_ON_MISS)
    on_overlap: Literal["queue", "skip", "replace"] = Field("queue", description=_ON_OVERLAP)


class ScheduleView(TemplateView):
    """A schedule, and the options of its jobs."""

    cron: str
    timezone: str
    on_miss: Literal["skip", "once", "all"] = Field(description=_ON_MISS)
    on_overlap: Literal["queue", "skip", "replace"] = Field(description=_ON_OVERLAP)
    suspended: bool
    next_times: list[Time] = Field(
        description="the next five times; empty if it is suspended or they cannot be computed"
    )
    last_job: JobView | None = Field(description="the last job that it created; null: none yet, or deleted")
    refusal: str | None = Field(description="why no job was created at the last time; null: a job was created")
    refused_at: Time | None = Field(description="that time")


class SchedulesPage(View):
    """One page of schedules, newest first."""

    schedules: list[ScheduleView]
    next: str | None = Field(description="cursor of the next page, for `after`")
