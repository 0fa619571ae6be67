"""The list of projects, and the page of each: jobs, the best of them by a metric, spending, limits and secrets."""

import time
from typing import NamedTuple

from fastapi import Depends
from fastapi.responses import Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.comparison.measurement import best_value
from core.db.database import now
from core.db.models.jobs import Job
from core.errors import ProjectNotFound
from core.jobs import projects, queries
from core.jobs.costs import amounts
from core.jobs.queries import JobFilter
from core.jobs.tracking import metrics
from core.security import credentials
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.presenters.jobs import job_views
from service.presenters.projects import project_details, projects_view
from service.schemas.jobs import JobView

router = Router(dependencies=[Depends(require_key_or_session)])

SHOWN_JOBS = 20
SPENDING_DAYS = 30
_METRIC_SECONDS = 2.0  # longest time that the page reads metrics; those of further jobs are left out


class RankedJob(NamedTuple):
    job: JobView
    value: float


class Ranking(NamedTuple):
    """The jobs with a metric, best first."""

    names: list[str]
    jobs: list[RankedJob]
    examined: int


@router.get("/ui/projects", dependencies=[SearchSlot])
def show_projects(session: ReadSession, app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the projects with their jobs, limits and retention policies."""
    return render_page("projects.html", caller=caller, projects=projects_view(session, app_state).projects)


@router.get("/ui/projects/{name:path}")
def show(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, name: str, metric: str = "", goal: str = "max"
) -> Response:
    project_id = projects.find_id(session, name)
    if project_id is None:
        raise ProjectNotFound(f"There is no project {name[:80]!r}. See the list of projects.")
    project = queries.project(session, project_id)
    page = queries.page(session, JobFilter(project_id=project_id), limit=SHOWN_JOBS)
    views = job_views(session, app_state, page.jobs)
    return render_page(
        "forms/project.html",
        caller=caller,
        project=project_details(session, app_state, project),
        jobs=views,
        more=page.next_cursor is not None,
        ranking=_rank(session, views, metric, goal),
        metric=metric,
        goal=goal,
        spent=_spent(session, project_id),
        gpu_hours=_gpu_hours(session, project_id),
        days=SPENDING_DAYS,
        remaining=projects.remaining_bytes(session, project, app_state.settings.disk.project_mb),
        secrets=[secret.name for secret in credentials.secrets_of(session, project_id)],
    )


def _spent(session: Session, project_id: str) -> dict[bool, float]:
    """Return the US dollars for the jobs submitted in the last days, by whether simulated."""
    cost = func.coalesce(func.sum(amounts.cost(session.get_bind().dialect.name)), 0.0)
    lately = Job.created_at >= now(-SPENDING_DAYS * 86400)
    query = select(Job.simulated, cost).where(Job.project_id == project_id, lately).group_by(Job.simulated)
    return {False: 0.0, True: 0.0} | dict(session.execute(query).all())


def _gpu_hours(session: Session, project_id: str) -> dict[str, float]:
    """Return the GPU hours of the same jobs on machine types without a price, by type."""
    hours = func.sum(amounts.gpu_hours(session.get_bind().dialect.name))
    free = Job.project_id == project_id, Job.created_at >= now(-SPENDING_DAYS * 86400), Job.price_per_hour == 0
    by_type = select(Job.machine_type, hours).where(*free).group_by(Job.machine_type).order_by(Job.machine_type)
    return {machine_type: amount for machine_type, amount in session.execute(by_type) if amount}


def _rank(session: Session, views: list[JobView], metric: str, goal: str) -> Ranking:
    last = metrics.last_values(session, [view.id for view in views])
    ranked = []
    until, examined = time.monotonic() + _METRIC_SECONDS, 0
    for view in views:
        if time.monotonic() > until:
            break
        examined += 1
        if metric in last.get(view.id, {}):
            value = best_value(session, view.id, metric, "min" if goal == "min" else "max")
            if value is not None:
                ranked.append(RankedJob(view, value))
    ranked.sort(key=lambda ranked_run: ranked_run.value, reverse=goal != "min")
    return Ranking(sorted({name for values in last.values() for name in values}), ranked, examined)
