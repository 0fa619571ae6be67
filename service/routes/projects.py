from typing import Annotated, Any

from fastapi import Depends, Response

from core.jobs import projects, queries
from core.security import members
from service.auth.authentication import Caller, SearchSlot
from service.auth.ownership import require_owner_of_all
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http import openapi_links
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.presenters.projects import project_details, projects_view
from service.schemas.projects import CreateProject, Members, MemberView, Projects, ProjectView, SetMember, UpdateProject
from service.submission.validation import check_project_name

router = api_router(prefix="/projects", tags=["projects"])

_CREATE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": ProjectView,
        "description": "The project already exists.",
        "links": openapi_links.LINKS_FROM_PROJECT,
    },
    201: {"links": openapi_links.LINKS_FROM_PROJECT},
}


@router.get("", dependencies=[SearchSlot])
def list_projects(session: ReadSession, app_state: AppStateDep) -> Projects:
    """List the projects, by name."""
    return projects_view(session, app_state)


@router.post("", status_code=201, responses=_CREATE_RESPONSES, openapi_extra=json_body_schema(CreateProject))
def create_project(
    response: Response,
    app_state: AppStateDep,
    caller: Caller,
    body: Annotated[CreateProject, Depends(parse_json_body(CreateProject))],
    session: WriteSession,
) -> ProjectView:
    """Create a project, or return the existing one of this name."""
    app_state.keys.rights(caller.id).check_may_create_projects()
    project, made = projects.get_or_create(session, check_project_name(body.name), caller.id)
    response.status_code = 201 if made else 200
    return project_details(session, app_state, project)


@router.get("/{project_id}")
def show_project(session: ReadSession, app_state: AppStateDep, project_id: str) -> ProjectView:
    """Return one project."""
    return project_details(session, app_state, queries.project(session, project_id))


@router.patch("/{project_id}", openapi_extra=json_body_schema(UpdateProject))
def update_project(
    app_state: AppStateDep,
    caller: Caller,
    project_id: str,
    body: Annotated[UpdateProject, Depends(parse_json_body(UpdateProject))],
    session: WriteSession,
) -> ProjectView:
    """Change a project's limits and retention policies; close it, so that only members see it, or open it."""
    given = body.model_dump(include=body.model_fields_set)
    closed = given.pop("closed", None)
    project = projects.update_limits(session, project_id, given)
    if closed is not None:
        members.set_closed(session, project, caller.id, closed=closed)
    return project_details(session, app_state, project)


@router.delete("/{project_id}", status_code=204)
def delete_project(session: WriteSession, app_state: AppStateDep, caller: Caller, project_id: str) -> None:
    """Delete a project with all its jobs, of which none may be waiting or running, or belong to others."""
    require_owner_of_all(session, app_state, caller, queries.project(session, project_id).id)
    projects.delete(session, project_id)


@router.get("/{project_id}/members")
def list_members(session: ReadSession, project_id: str) -> Members:
    """List the members of a project with their roles, by name."""
    return Members.of(None, members=members.members_of(session, queries.project(session, project_id).id))


@router.put("/{project_id}/members/{member}", openapi_extra=json_body_schema(SetMember))
def set_member(
    session: WriteSession,
    _caller: Caller,
    project_id: str,
    member: str,
    body: Annotated[SetMember, Depends(parse_json_body(SetMember))],
) -> MemberView:
    """Give a user, by e-mail address, or an API key, by id, a role in a project; the key of a user means the user."""
    return MemberView.of(members.put(session, queries.project(session, project_id), member, body.role))


@router.delete("/{project_id}/members/{member}", status_code=204)
def remove_member(session: WriteSession, _caller: Caller, project_id: str, member: str) -> None:
    """Take the role of a user or a key away."""
    members.remove(session, queries.project(session, project_id), member)
