from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession
from service.routes.projects import list_projects

router = APIRouter(dependencies=[Depends(require_key_or_session)])


@router.get("/ui/projects")
def show_projects(session: ReadSession, app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the projects with their jobs, limits and retention policies."""
    return render_page("projects.html", caller=caller, projects=list_projects(session, app_state).projects)
