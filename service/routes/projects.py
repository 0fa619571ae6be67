"""Projects: jobs that belong together."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from core.jobs import lifecycle, queries
from service import links
from service.auth import Caller
from service.deps import Reading, Writing
from service.submission import check_project_name
from service.views import project_view
from service.wire import CreateProject, Projects, ProjectView, parse

router = APIRouter(prefix="/projects", tags=["projects"])

_MADE: dict[int | str, dict[str, Any]] = {
    200: {"model": ProjectView, "description": "It was there already.", "links": links.OF_PROJECT},
    201: {"links": links.OF_PROJECT},
}
_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": CreateProject.model_json_schema()}}}
}


async def _posted(request: Request, _caller: Caller) -> CreateProject:
    # The key is checked before the body is read.
    return parse(CreateProject, await request.body())


@router.get("")
def list_projects(session: Reading) -> Projects:
    """Every project, by name."""
    return Projects(projects=[project_view(project, jobs) for project, jobs in queries.projects(session)])


@router.post("", status_code=201, responses=_MADE, openapi_extra=_BODY)
def create_project(
    response: Response, session: Writing, asked: Annotated[CreateProject, Depends(_posted)]
) -> ProjectView:
    """Make a project, or find the one of this name."""
    project, made = lifecycle.ensure_project(session, check_project_name(asked.name))
    response.status_code = 201 if made else 200
    return project_view(project, queries.job_count(session, project.id))


@router.get("/{project_id}")
def show_project(session: Reading, project_id: str) -> ProjectView:
    """One project."""
    project = queries.project(session, project_id)
    return project_view(project, queries.job_count(session, project.id))
