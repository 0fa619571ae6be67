"""Projects: jobs that belong together, their limits, and how long what they leave is kept."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from core.jobs import lifecycle, projects, queries
from core.jobs.models import Project
from core.jobs.projects import Live
from service import links
from service.auth import Caller
from service.deps import OpenStores, Reading, Stores, Writing
from service.submission import check_project_name
from service.views import project_view
from service.wire import CreateProject, Projects, ProjectView, UpdateProject, parse

router = APIRouter(prefix="/projects", tags=["projects"])

_MADE: dict[int | str, dict[str, Any]] = {
    200: {"model": ProjectView, "description": "It was there already.", "links": links.OF_PROJECT},
    201: {"links": links.OF_PROJECT},
}


def _json_body(model: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


# The key is checked before the body is read.
async def _posted(request: Request, _caller: Caller) -> CreateProject:
    return parse(CreateProject, await request.body())


async def _patched(request: Request, _caller: Caller) -> UpdateProject:
    return parse(UpdateProject, await request.body())


@router.get("")
def list_projects(session: Reading, stores: Stores) -> Projects:
    """Every project, by name."""
    live, policy = projects.live(session), stores.settings.retention
    found = queries.projects(session)
    return Projects(projects=[project_view(one, jobs, live.get(one.id, Live()), policy) for one, jobs in found])


@router.post("", status_code=201, responses=_MADE, openapi_extra=_json_body(CreateProject))
def create_project(
    response: Response, session: Writing, stores: Stores, asked: Annotated[CreateProject, Depends(_posted)]
) -> ProjectView:
    """Make a project, or find the one of this name."""
    project, made = lifecycle.ensure_project(session, check_project_name(asked.name))
    response.status_code = 201 if made else 200
    return _view(session, stores, project)


@router.get("/{project_id}")
def show_project(session: Reading, stores: Stores, project_id: str) -> ProjectView:
    """One project."""
    return _view(session, stores, queries.project(session, project_id))


@router.patch("/{project_id}", openapi_extra=_json_body(UpdateProject))
def update_project(
    session: Writing, stores: Stores, project_id: str, asked: Annotated[UpdateProject, Depends(_patched)]
) -> ProjectView:
    """Change a project's limit of running jobs, and how long its logs and artifacts are kept."""
    given = asked.model_dump(include=asked.model_fields_set)
    return _view(session, stores, projects.change(session, project_id, given))


def _view(session: Session, stores: OpenStores, project: Project) -> ProjectView:
    live = projects.live(session, project.id).get(project.id, Live())
    return project_view(project, queries.job_count(session, project.id), live, stores.settings.retention)
