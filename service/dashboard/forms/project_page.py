"""The list of projects, and spending, limits and secrets of each, which the workspace of its runs shows."""

from typing import Any

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.jobs import Project
from core.errors import ProjectNotFound
from core.jobs import projects, queries
from core.jobs.costs.report import report
from core.search.query_text import quote
from core.security import credentials, members
from service.app_state import AppState
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.dashboard.rendering import render_page, runs_url
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.presenters.projects import project_details, projects_view

router = Router(dependencies=[Depends(require_key_or_session)])

SPENDING_DAYS = 30


@router.get("/ui/projects", dependencies=[SearchSlot])
def show_projects(session: ReadSession, app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the projects with their jobs, limits and retention policies."""
    week = {row.name: row for row in report(session, "project", 7)}
    return render_page("projects.html", caller=caller, projects=projects_view(session, app_state).projects, week=week)


@router.get("/ui/projects/{name:path}")
def show_project(session: ReadSession, _caller: PageCaller, name: str) -> Response:
    project_id = find_project(session, name)
    if project_id is None:
        raise ProjectNotFound(f"There is no project {name[:80]!r}. See the list of projects.")
    shown = project_id if '"' in name else quote(name)  # no query can name one with a quotation mark
    return RedirectResponse(runs_url(q=f"project:{shown}"), 307)


def find_project(session: Session, name: str) -> str | None:
    """Return the id of a project; the original client's addresses have its id, not its name."""
    return projects.find_id(session, name) or session.scalar(select(Project.id).where(Project.id == name))


def project_facts(session: Session, app_state: AppState, name: str | None) -> dict[str, Any] | None:
    """Return spending, limits and secrets of a project, as its template shows them; None: there is none."""
    project_id = find_project(session, name) if name else None
    if project_id is None:
        return None
    project = queries.project(session, project_id)
    return {
        "project": project_details(session, app_state, project),
        "lately": report(session, "machine", SPENDING_DAYS, "project", project_id),
        "days": SPENDING_DAYS,
        "remaining": projects.remaining_bytes(session, project, app_state.settings.disk.project_mb),
        "members": members.members_of(session, project_id),
        "secrets": [secret.name for secret in credentials.secrets_of(session, project_id)],
    }
