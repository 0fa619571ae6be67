from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from core.db.models.schedules import Schedule
from core.errors import SpecInvalid
from core.jobs.templates import schedules
from service.app_state import AppState
from service.presenters.jobs import job_views
from service.presenters.templates import template_fields
from service.schemas.schedules import ScheduleView

_SHOWN_TIMES = 5


def schedule_view(session: Session, app_state: AppState, schedule: Schedule) -> ScheduleView:
    return schedule_views(session, app_state, [schedule])[0]


def schedule_views(session: Session, app_state: AppState, schedules_shown: Sequence[Schedule]) -> list[ScheduleView]:
    shared = template_fields(session, app_state, schedules_shown)
    jobs = job_views(session, app_state, schedules.last_jobs(session, [schedule.id for schedule in schedules_shown]))
    last = {job.schedule_id: job for job in jobs}
    return [
        ScheduleView.of(
            schedule,
            **shared[schedule.id],
            **_next_times(schedule),
            last_job=last.get(schedule.id),
        )
        for schedule in schedules_shown
    ]


def _next_times(schedule: Schedule) -> dict[str, Any]:
    if schedule.next_at is None:
        return {"suspended": True, "next_times": []}
    fields: dict[str, Any] = {"suspended": False}
    try:
        times = schedules.next_times(schedule.cron, schedule.timezone, datetime.now(UTC), _SHOWN_TIMES)
    except SpecInvalid as error:  # such as a time zone that an update of the system's database has removed
        return fields | {"next_times": [], "refusal": error.message, "refused_at": schedule.next_at}
    return fields | {"next_times": times}
