"""Secrets: values that jobs get by name. The API never returns them; only a job's environment contains them."""

from typing import Annotated, Any

from fastapi import Depends, Response

from core.db.models.credentials import Secret
from core.jobs import queries
from core.security import credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from service.auth.authentication import Caller
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.schemas.credentials import Secrets, SecretView, SetSecret

router = api_router(tags=["secrets"])

_SET_RESPONSES: dict[int | str, dict[str, Any]] = {201: {"model": SecretView, "description": "The secret was created."}}
SecretBody = Annotated[SetSecret, Depends(parse_json_body(SetSecret))]


@router.get("/secrets")
def list_secrets(session: ReadSession) -> Secrets:
    """List the secrets of all projects, by name, without their values."""
    return _secret_views(credentials.secrets_of(session, ALL_PROJECTS))


@router.put("/secrets/{name}", responses=_SET_RESPONSES, openapi_extra=json_body_schema(SetSecret))
def set_secret(
    response: Response, app_state: AppStateDep, name: str, body: SecretBody, session: WriteSession
) -> SecretView:
    """Store a secret for all projects, replacing an existing value."""
    secret, made = credentials.put_secret(session, Vault(app_state.settings), ALL_PROJECTS, name, body.value)
    response.status_code = 201 if made else 200
    return _secret_view(secret)


@router.delete("/secrets/{name}", status_code=204)
def delete_secret(session: WriteSession, _caller: Caller, name: str) -> None:
    """Delete a secret of all projects; jobs that refer to it and have not started fail with `secret_missing`."""
    credentials.delete_secret(session, ALL_PROJECTS, name)


@router.get("/projects/{project_id}/secrets")
def list_project_secrets(session: ReadSession, project_id: str) -> Secrets:
    """List the secrets of one project, by name, without their values."""
    return _secret_views(credentials.secrets_of(session, queries.project(session, project_id).id))


@router.put(
    "/projects/{project_id}/secrets/{name}", responses=_SET_RESPONSES, openapi_extra=json_body_schema(SetSecret)
)
def set_project_secret(
    response: Response, app_state: AppStateDep, project_id: str, name: str, body: SecretBody, session: WriteSession
) -> SecretView:
    """Store a secret for one project, where it takes precedence over one of all projects."""
    project = queries.project(session, project_id)
    secret, made = credentials.put_secret(session, Vault(app_state.settings), project.id, name, body.value)
    response.status_code = 201 if made else 200
    return _secret_view(secret)


@router.delete("/projects/{project_id}/secrets/{name}", status_code=204)
def delete_project_secret(session: WriteSession, _caller: Caller, project_id: str, name: str) -> None:
    """Delete a secret of one project."""
    credentials.delete_secret(session, queries.project(session, project_id).id, name)


def _secret_views(secrets: list[Secret]) -> Secrets:
    return Secrets(secrets=[_secret_view(secret) for secret in secrets])


def _secret_view(secret: Secret) -> SecretView:
    return SecretView.of(secret, project_id=secret.project_id or None)
