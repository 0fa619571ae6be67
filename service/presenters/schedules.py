from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.jobs import Project
from core.db.models.schedules import Schedule
from core.jobs.templates import schedules
from core.security import api_keys
from service.deps import AppState
from service.presenters.jobs import job_views, option_fields, port_views
from service.schemas.schedules import ScheduleView

_SHOWN_TIMES = 5


def schedule_view(session: Session, app_state: AppState, schedule: Schedule) -> ScheduleView:
    return schedule_views(session, app_state, [schedule])[0]


def schedule_views(session: Session, app_state: AppState, found: Sequence[Schedule]) -> list[ScheduleView]:
    ids = {one.project_id for one in found}
    names = {row.id: row.name for row in session.execute(select(Project.id, Project.name).where(Project.id.in_(ids)))}
    owners = api_keys.names(session, {one.submitted_by for one in found})
    jobs = job_views(session, app_state, schedules.last_jobs(session, [one.id for one in found]))
    last = {job.schedule_id: job for job in jobs}
    return [
        ScheduleView.of(
            one,
            **option_fields(one.spec) | {"name": one.spec.name or f"schedule {one.seq}", "ports": port_views(one.spec)},
            project=names[one.project_id],
            owner=owners.get(one.submitted_by),
            owner_key=one.submitted_by,
            suspended=one.next_at is None,
            next_times=_next_times(one),
            last_job=last.get(one.id),
            url=f"{app_state.settings.public_url}/ui/schedules/{one.id}",
        )
        for one in found
    ]


def _next_times(schedule: Schedule) -> list[datetime]:
    if schedule.next_at is None:
        return []
    return schedules.next_times(schedule.cron, schedule.timezone, datetime.now(UTC), _SHOWN_TIMES)
