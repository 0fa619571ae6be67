"""The second step of `gradient-cli login --browser`; the first is a page (`service.dashboard.provider_login`)."""

import base64
from functools import partial

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from core.db.models.credentials import ApiKey, Identity
from core.errors import Unauthorized
from core.security import api_keys, one_time_tokens, users
from core.security.actor import Actor, act_as
from core.security.key_rights import KeyRights
from core.security.one_time_tokens import Purpose
from service.app_state import AppState
from service.deps import AppStateDep
from service.http.routing import Router
from service.schemas.base import parse_request

router = Router(prefix="/login", include_in_schema=False)


class ExchangeCode(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str = Field(max_length=100)
    verifier: str = Field(max_length=200)
    name: str = Field(min_length=1, max_length=100)


@router.post("/key")
async def exchange_code(request: Request, app_state: AppStateDep) -> dict[str, str]:
    """Exchange a one-time code, and the secret that it is bound to, for an API key."""
    sent = parse_request(ExchangeCode, await request.body())
    challenge = base64.urlsafe_b64encode(api_keys.digest(sent.verifier)).rstrip(b"=").decode()
    address = request.client.host if request.client else None
    redeem = partial(one_time_tokens.redeem, app_state.database, Purpose.CLI, f"{sent.code}{challenge}")
    made = await app_state.lanes.urgent.run(redeem, partial(_make_key, app_state, sent.name, address))
    if made is None:
        raise Unauthorized("This code was already used, is damaged or is older than ten minutes. Log in again.")
    return {"id": made[0].id, "apiKey": made[1]}


def _make_key(
    app_state: AppState, name: str, address: str | None, session: Session, user_id: str
) -> tuple[ApiKey, str]:
    identity = session.get_one(Identity, user_id)
    act_as(Actor(identity.key_id, address))
    rights = KeyRights.of(api_keys.get(session, identity.key_id).rights)
    days = app_state.settings.sign_in.key_days or None
    return users.create_key_for(session, user_id, name, days=days, rights=rights)
