"""Signing in with e-mail and password, in two steps, for an API key of one's own."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from core import users
from core.errors import Unauthorized
from service.deps import Stores
from service.routes.original.params import Params, read_params, takes
from service.scopes import client_name
from service.wire import ErrorView

router = APIRouter()

_PURPOSE = "login"
_SECONDS = 600
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

    client = client_name(request.client.host if request.client else None)
    user_id = await stores.sign_ins.check(email, client, check)
    return {"id": f"{user_id}.{stores.signer.stamp(_PURPOSE, user_id, _SECONDS)}"}


@router.post(
    "/apiTokens/createPublic", name="original_create_key", openapi_extra=takes("access_token", "apiToken", body=True)
)
def create_key(request: Request, stores: Stores, sent: Sent) -> dict[str, str]:
    """Second step: an API key for that token."""
    user_id, _, stamp = request.query_params.get("access_token", "").partition(".")
    if not stores.signer.holds(_PURPOSE, user_id, stamp):
        raise Unauthorized("This sign-in is damaged, or older than 10 minutes. Sign in again.")
    with stores.database.write() as session:
        key, secret = users.give_key(session, user_id, sent.text("apiToken") or "paperspace login")
    return {"key": secret, "name": key.name}
