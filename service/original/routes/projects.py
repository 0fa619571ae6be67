from typing import Any

from core.db.models.jobs import Project
from core.errors import ProjectNotFound
from core.jobs import projects, queries
from service.auth.authentication import Caller
from service.auth.ownership import OwnerCheck, require_owner_of_all, require_project_owner
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.routing import Router
from service.original.error_messages import OriginalRoute
from service.original.params import OriginalParams, openapi_params
from service.original.presenters import project_shape
from service.submission.validation import check_project_name

router = Router(route_class=OriginalRoute, dependencies=[OwnerCheck])


@router.get("/projects", name="original_list_projects", openapi_extra=openapi_params("filter", "tagFilter"))
def list_projects(given: OriginalParams, session: ReadSession) -> dict[str, Any]:
    """List projects, newest first: all, the one of a handle, or those with one of some tags."""
    where = given.object("filter").get("where", {})
    handle = where.get("handle") if isinstance(where, dict) else None
    rows = _newest_first(session) if handle is None else _find(session, str(handle))
    tags = set(given.text_list("tagFilter"))
    return {"data": [project_shape(project) for project in rows if not tags or tags & set(project.tags or ())]}


@router.post(
    "/projects", name="original_create_project", openapi_extra=openapi_params("name", "repoName", "repoUrl", body=True)
)
def create_project(
    given: OriginalParams, session: WriteSession, app_state: AppStateDep, caller: Caller
) -> dict[str, str]:
    """Create a project, or return the existing one of this name."""
    app_state.keys.rights(caller.id).check_may_create_projects()
    project, _ = projects.get_or_create(session, check_project_name(given.required("name")), caller.id)
    repository = {"repo_name": given.text("repoName"), "repo_url": given.text("repoUrl")}
    if any(repository.values()):
        require_project_owner(session, app_state, caller, project.id)
    return {"handle": projects.set_repository(session, project.id, **repository).id}


@router.post("/projects/{project_id}/deleteProject", status_code=204, name="original_delete_project")
def delete_project(session: WriteSession, app_state: AppStateDep, caller: Caller, project_id: str) -> None:
    """Delete a project and its jobs, once all of them have ended."""
    require_owner_of_all(session, app_state, caller, queries.project(session, project_id).id)
    projects.delete(session, project_id)


def _newest_first(session: ReadSession) -> list[Project]:
    return sorted(queries.projects(session), key=lambda project: project.created_at, reverse=True)


def _find(session: ReadSession, project_id: str) -> list[Project]:
    try:
        return [queries.project(session, project_id)]
    except ProjectNotFound:
        return []
