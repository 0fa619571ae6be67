"""Secrets: values that jobs get by name. The API never returns them; only a job's environment contains them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from core.db.models.credentials import Secret
from core.jobs import queries
from core.security import credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from service.auth.api_keys import Caller
from service.deps import Reading, Stores, Writing
from service.http.json_body import json_body, posted
from service.schemas.credentials import Secrets, SecretView, SetSecret

router = APIRouter(tags=["secrets"])

_SET: dict[int | str, dict[str, Any]] = {201: {"model": SecretView, "description": "It is new."}}
Value = Annotated[SetSecret, Depends(posted(SetSecret))]


@router.get("/secrets")
def list_secrets(session: Reading) -> Secrets:
    """The secrets that every project's jobs may use, by name, without their values."""
    return _views(credentials.secrets_of(session, ALL_PROJECTS))


@router.put("/secrets/{name}", responses=_SET, openapi_extra=json_body(SetSecret))
def set_secret(response: Response, session: Writing, stores: Stores, name: str, asked: Value) -> SecretView:
    """Store a value that every project's jobs may use, over the one that was there."""
    secret, made = credentials.put_secret(session, Vault(stores.settings), ALL_PROJECTS, name, asked.value)
    response.status_code = 201 if made else 200
    return _view(secret)


@router.delete("/secrets/{name}", status_code=204)
def delete_secret(session: Writing, _caller: Caller, name: str) -> None:
    """Forget a secret of every project; jobs that name it and have not started fail with `secret_missing`."""
    credentials.delete_secret(session, ALL_PROJECTS, name)


@router.get("/projects/{project_id}/secrets")
def list_project_secrets(session: Reading, project_id: str) -> Secrets:
    """The secrets of one project, by name, without their values."""
    return _views(credentials.secrets_of(session, queries.project(session, project_id).id))


@router.put("/projects/{project_id}/secrets/{name}", responses=_SET, openapi_extra=json_body(SetSecret))
def set_project_secret(
    response: Response, session: Writing, stores: Stores, project_id: str, name: str, asked: Value
) -> SecretView:
    """Store a value that one project's jobs may use; there it goes before one of every project."""
    project = queries.project(session, project_id)
    secret, made = credentials.put_secret(session, Vault(stores.settings), project.id, name, asked.value)
    response.status_code = 201 if made else 200
    return _view(secret)


@router.delete("/projects/{project_id}/secrets/{name}", status_code=204)
def delete_project_secret(session: Writing, _caller: Caller, project_id: str, name: str) -> None:
    """Forget a secret of one project."""
    credentials.delete_secret(session, queries.project(session, project_id).id, name)


def _views(found: list[Secret]) -> Secrets:
    return Secrets(secrets=[_view(secret) for secret in found])


def _view(secret: Secret) -> SecretView:
    return SecretView(
        name=secret.name,
        project_id=secret.project_id or None,
        created_at=secret.created_at,
        updated_at=secret.updated_at,
    )
