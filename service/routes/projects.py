"""Projects: groups of jobs with limits and retention policies."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session

from core.db.models.jobs import Project
from core.jobs import projects, queries
from core.jobs.projects import ActiveCounts
from service.deps import OpenStores, Reading, Stores, Writing
from service.http.json_body import json_body, posted
from service.presenters import ports
from service.presenters.jobs import project_view
from service.schemas.projects import CreateProject, Projects, ProjectView, UpdateProject
from service.submission.create import check_project_name

router = APIRouter(prefix="/projects", tags=["projects"])

_MADE: dict[int | str, dict[str, Any]] = {
    200: {"model": ProjectView, "description": "It was there already.", "links": ports.OF_PROJECT},
    201: {"links": ports.OF_PROJECT},
}


@router.get("")
def list_projects(session: Reading, stores: Stores) -> Projects:
    """Every project, by name."""
    live, counts = projects.active_counts(session), stores.job_counts.get(session)
    views = [
        project_view(one, counts.get(one.id, 0), live.get(one.id, ActiveCounts()), stores.settings)
        for one in queries.projects(session)
    ]
    return Projects(projects=views)


@router.post("", status_code=201, responses=_MADE, openapi_extra=json_body(CreateProject))
def create_project(
    response: Response,
    session: Writing,
    stores: Stores,
    asked: Annotated[CreateProject, Depends(posted(CreateProject))],
) -> ProjectView:
    """Make a project, or find the one of this name."""
    project, made = projects.get_or_create(session, check_project_name(asked.name))
    response.status_code = 201 if made else 200
    return _view(session, stores, project)


@router.get("/{project_id}")
def show_project(session: Reading, stores: Stores, project_id: str) -> ProjectView:
    """One project."""
    return _view(session, stores, queries.project(session, project_id))


@router.patch("/{project_id}", openapi_extra=json_body(UpdateProject))
def update_project(
    session: Writing, stores: Stores, project_id: str, asked: Annotated[UpdateProject, Depends(posted(UpdateProject))]
) -> ProjectView:
    """Change a project's limit of running jobs, and how long its logs and artifacts are kept."""
    given = asked.model_dump(include=asked.model_fields_set)
    return _view(session, stores, projects.update_limits(session, project_id, given))


def _view(session: Session, stores: OpenStores, project: Project) -> ProjectView:
    live = projects.active_counts(session, project.id).get(project.id, ActiveCounts())
    return project_view(project, queries.job_count(session, project.id), live, stores.settings)
