"""The client's distribution, to be installed from this server without a key."""

from functools import cache

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse

from core.errors import NotFound
from gradient_cli import wheel
from service.app_state import AppState
from service.deps import AppStateDep
from service.http.responses.static_content import StaticContent
from service.http.routing import Router

router = Router(prefix="/client", include_in_schema=False)


@router.get("")
def show_address(request: Request, app_state: AppStateDep) -> PlainTextResponse:
    """Return the address of the client's wheel, for `pip install`."""
    return PlainTextResponse(f"{_address(request, app_state)}\n")


@router.get("/{name}")
def download_wheel(request: Request, app_state: AppStateDep, name: str) -> Response:
    """Return the client's wheel."""
    if name != _file_name():
        raise NotFound(f"This server does not have that client. Run `pip install {_address(request, app_state)}`.")
    return _content().response(request)


def _address(request: Request, app_state: AppState) -> str:
    base = app_state.settings.api.public_url or str(request.base_url)
    return f"{base.rstrip('/')}/client/{_file_name()}"


@cache
def _file_name() -> str:
    return wheel.file_name()


@cache
def _content() -> StaticContent:
    return StaticContent(wheel.build(), "application/zip")
