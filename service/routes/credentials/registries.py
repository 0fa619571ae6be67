from typing import Annotated, Any

from fastapi import Depends, Response
from sqlalchemy.orm import Session

from core.db.models.credentials import Registry
from core.jobs import queries
from core.security import credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from service.app_state import AppState
from service.auth.authentication import Caller
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.schemas.credentials import Registries, RegistryView, SetRegistry

router = api_router(tags=["registries"])

_SET_RESPONSES: dict[int | str, dict[str, Any]] = {
    201: {"model": RegistryView, "description": "The login was created."}
}
RegistryBody = Annotated[SetRegistry, Depends(parse_json_body(SetRegistry))]


@router.get("/registries")
def list_registries(session: ReadSession) -> Registries:
    """List the registry logins of all projects, by host, without passwords."""
    return _list_views(session, ALL_PROJECTS)


@router.put("/registries/{host}", responses=_SET_RESPONSES, openapi_extra=json_body_schema(SetRegistry))
def set_registry(
    response: Response, app_state: AppStateDep, host: str, body: RegistryBody, session: WriteSession
) -> RegistryView:
    """Store a registry login for all projects, replacing an existing one."""
    return _set_registry(response, session, app_state, ALL_PROJECTS, host, body)


@router.delete("/registries/{host}", status_code=204)
def delete_registry(session: WriteSession, _caller: Caller, host: str) -> None:
    """Delete a registry login of all projects."""
    credentials.delete_registry(session, ALL_PROJECTS, host)


@router.get("/projects/{project_id}/registries")
def list_project_registries(session: ReadSession, project_id: str) -> Registries:
    """List the registry logins of one project, by host, without passwords."""
    return _list_views(session, queries.project(session, project_id).id)


@router.put(
    "/projects/{project_id}/registries/{host}", responses=_SET_RESPONSES, openapi_extra=json_body_schema(SetRegistry)
)
def set_project_registry(
    response: Response, app_state: AppStateDep, project_id: str, host: str, body: RegistryBody, session: WriteSession
) -> RegistryView:
    """Store a registry login for one project, where it takes precedence over that of all projects."""
    project = queries.project(session, project_id)
    return _set_registry(response, session, app_state, project.id, host, body)


@router.delete("/projects/{project_id}/registries/{host}", status_code=204)
def delete_project_registry(session: WriteSession, _caller: Caller, project_id: str, host: str) -> None:
    """Delete a registry login of one project."""
    credentials.delete_registry(session, queries.project(session, project_id).id, host)


def _set_registry(
    response: Response, session: Session, app_state: AppState, project_id: str, host: str, body: SetRegistry
) -> RegistryView:
    registry, made = credentials.put_registry(
        session, Vault(app_state.settings), project_id, host, body.username, body.password, push=body.push
    )
    response.status_code = 201 if made else 200
    return _registry_view(registry)


def _list_views(session: Session, project_id: str) -> Registries:
    return Registries(registries=[_registry_view(registry) for registry in credentials.registries(session, project_id)])


def _registry_view(registry: Registry) -> RegistryView:
    return RegistryView.of(registry, project_id=registry.project_id or None)
