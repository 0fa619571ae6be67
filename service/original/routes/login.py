from typing import Annotated, Any

from fastapi import Depends, Request

from core.errors import Unauthorized
from core.security import one_time_tokens, users
from core.security.one_time_tokens import Purpose
from service.deps import AppStateDep
from service.http.asgi_scope import client_network
from service.http.routing import Router
from service.original.params import Params, openapi_params, read_params
from service.schemas.base import ErrorView

router = Router()

_RESPONSES: dict[int | str, dict[str, Any]] = {
    429: {"model": ErrorView, "description": "Too many wrong passwords from this client, or too many logins at once."}
}

SentParams = Annotated[Params, Depends(read_params)]


@router.post(
    "/users/login",
    name="original_login",
    openapi_extra=openapi_params("email", "password", body=True),
    responses=_RESPONSES,
)
async def login(request: Request, app_state: AppStateDep, sent: SentParams) -> dict[str, str]:
    """Log in, first step: exchange e-mail and password for a token."""
    email, password = sent.text("email") or "", sent.text("password") or ""

    def check() -> str:
        with app_state.database.read() as session:
            return users.sign_in(session, email, password).id

    def issue(user_id: str) -> str:
        with app_state.database.write() as session:
            return one_time_tokens.issue(session, Purpose.LOGIN, user_id)

    client = client_network(request.client.host if request.client else None)
    user_id = await app_state.sign_ins.check(email, client, check)
    return {"id": await app_state.lanes.urgent.run(issue, user_id)}


@router.post(
    "/apiTokens/createPublic",
    name="original_create_key",
    openapi_extra=openapi_params("access_token", "apiToken", body=True),
)
def create_key(request: Request, app_state: AppStateDep, sent: SentParams) -> dict[str, str]:
    """Log in, second step: exchange the token for an API key."""
    token, name = request.query_params.get("access_token", ""), sent.text("apiToken") or "paperspace login"
    days = app_state.settings.sign_in.key_days or None
    made = one_time_tokens.redeem(
        app_state.database,
        Purpose.LOGIN,
        token,
        lambda session, user_id: users.create_key_for(session, user_id, name, days=days),
    )
    if made is None:
        raise Unauthorized("This login was already used, is damaged or is older than 10 minutes. Log in again.")
    key, secret = made
    return {"key": secret, "name": key.name}
