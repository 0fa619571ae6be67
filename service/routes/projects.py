"""Projects: jobs that belong together, their limits, and how long what they leave is kept."""

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from core.jobs import lifecycle, projects, queries
from core.jobs.models import Project
from core.jobs.projects import Live
from service.auth import Caller
from service.deps import OpenStores, Reading, Stores, Writing
from service.submission import check_project_name
from service.views import project_view
from service.wire import CreateProject, Projects, ProjectView, UpdateProject

router = APIRouter(prefix="/projects", tags=["projects"])


@router.get("")
def list_projects(session: Reading, stores: Stores) -> Projects:
    """Every project, by name."""
    live, policy = projects.live(session), stores.settings.retention
    found = queries.projects(session)
    return Projects(projects=[project_view(one, jobs, live.get(one.id, Live()), policy) for one, jobs in found])


@router.post("", status_code=201, responses={200: {"model": ProjectView, "description": "It was there already."}})
def create_project(
    response: Response, _caller: Caller, session: Writing, stores: Stores, asked: CreateProject
) -> ProjectView:
    """Make a project, or find the one of this name."""
    project, made = lifecycle.ensure_project(session, check_project_name(asked.name))
    response.status_code = 201 if made else 200
    return _view(session, stores, project)


@router.get("/{project_id}")
def show_project(session: Reading, stores: Stores, project_id: str) -> ProjectView:
    """One project."""
    return _view(session, stores, queries.project(session, project_id))


@router.patch("/{project_id}")
def update_project(
    _caller: Caller, session: Writing, stores: Stores, project_id: str, asked: UpdateProject
) -> ProjectView:
    """Change a project's limit of running jobs, and how long its logs and artifacts are kept."""
    given = asked.model_dump(include=asked.model_fields_set)
    return _view(session, stores, projects.change(session, project_id, given))


def _view(session: Session, stores: OpenStores, project: Project) -> ProjectView:
    live = projects.live(session, project.id).get(project.id, Live())
    return project_view(project, queries.job_count(session, project.id), live, stores.settings.retention)
