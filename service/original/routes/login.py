"""Signing in with e-mail and password, in two steps, to get an API key."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool

from core.errors import Unauthorized
from core.security import one_time_tokens, users
from core.security.one_time_tokens import Purpose
from service.deps import Stores
from service.http.scopes import client_name
from service.original.params import Params, read_params, takes
from service.schemas.jobs import ErrorView

router = APIRouter()

_BUSY: dict[int | str, dict[str, Any]] = {
    429: {"model": ErrorView, "description": "Too many wrong passwords from this client, or too many at once."}
}

Sent = Annotated[Params, Depends(read_params)]


@router.post(
    "/users/login", name="original_login", openapi_extra=takes("email", "password", body=True), responses=_BUSY
)
async def login(request: Request, stores: Stores, sent: Sent) -> dict[str, str]:
    """First step: a token for those who know their password."""
    email, password = sent.text("email") or "", sent.text("password") or ""

    def check() -> str:
        with stores.database.read() as session:
            return users.sign_in(session, email, password).id

    def issue(user_id: str) -> str:
        with stores.database.write() as session:
            return one_time_tokens.issue(session, Purpose.LOGIN, user_id)

    client = client_name(request.client.host if request.client else None)
    user_id = await stores.sign_ins.check(email, client, check)
    return {"id": await run_in_threadpool(issue, user_id)}


@router.post(
    "/apiTokens/createPublic", name="original_create_key", openapi_extra=takes("access_token", "apiToken", body=True)
)
def create_key(request: Request, stores: Stores, sent: Sent) -> dict[str, str]:
    """Second step: one API key for that token."""
    token, name = request.query_params.get("access_token", ""), sent.text("apiToken") or "paperspace login"
    days = stores.settings.sign_in.key_days or None
    made = one_time_tokens.redeem(
        stores.database,
        Purpose.LOGIN,
        token,
        lambda session, user_id: users.create_key_for(session, user_id, name, days=days),
    )
    if made is None:
        raise Unauthorized("This sign-in was used already, is damaged, or is older than 10 minutes. Sign in again.")
    key, secret = made
    return {"key": secret, "name": key.name}
