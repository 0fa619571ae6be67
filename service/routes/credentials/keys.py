"""API keys: administrators create them and see all; everybody sees and revokes their own."""

from typing import Annotated, Any

from fastapi import Depends

from core.db.database import on_commit
from core.security import api_keys
from service.auth.authentication import Caller, PageCaller, require_administrator
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.presenters.keys import keys_view, make_key, own_key_view
from service.schemas.base import ErrorView
from service.schemas.credentials import CreatedKey, CreateKey, Keys, KeyView

router = api_router(prefix="/keys", tags=["keys"])

_ADMINISTRATORS: dict[int | str, dict[str, Any]] = {
    403: {"model": ErrorView, "description": "The API key does not belong to an administrator."}
}


@router.get("")
def list_keys(session: ReadSession, app_state: AppStateDep, caller: PageCaller) -> Keys:
    """List all API keys for an administrator, and the caller's own for everybody else."""
    return keys_view(session, app_state, caller)


@router.get("/self")
def show_own_key(session: ReadSession, app_state: AppStateDep, caller: PageCaller) -> KeyView:
    """Return the key of this request, with what it may do."""
    return own_key_view(session, app_state, caller)


@router.post("", status_code=201, responses=_ADMINISTRATORS, openapi_extra=json_body_schema(CreateKey))
def create_key(
    app_state: AppStateDep,
    caller: Caller,
    body: Annotated[CreateKey, Depends(parse_json_body(CreateKey))],
    session: WriteSession,
) -> CreatedKey:
    """Create an API key; only for administrators. The response has the key, which is not shown again."""
    require_administrator(app_state, caller)
    return make_key(session, app_state, body)


@router.delete("/{key_id}", status_code=204, responses=_ADMINISTRATORS)
def revoke_key(session: WriteSession, app_state: AppStateDep, caller: Caller, key_id: str) -> None:
    """Revoke an API key and end its browser sessions; keys of others only for administrators."""
    if key_id != caller.id:
        require_administrator(app_state, caller)
    api_keys.revoke(session, key_id)
    on_commit(session, app_state.keys.clear)
