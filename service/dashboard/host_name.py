"""Restricts the dashboard to one host name, so that no browser has a session for another one.

Browsers send cookies to every port of a host name, and so also to jobs' ports under that name.
"""

from urllib.parse import quote

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from core.system.canonical_host import canonical_host
from service.deps import AppStateDep


async def require_dashboard_host(request: Request, app_state: AppStateDep) -> None:
    """Refuse a request that does not use the dashboard's own host name."""
    own_host, settings = app_state.settings.dashboard_host, app_state.settings
    if own_host is None:
        raise HTTPException(
            421,
            "This dashboard does not know its public name. Its operator can set GRADIENT_API__PUBLIC_URL.",
        )
    given = request.url.hostname
    if given is None or canonical_host(given) == own_host:
        return
    if settings.api.public_url is not None:
        raise HTTPException(
            421,
            f"The dashboard is at {settings.public_url}/ui, not at {given[:100]!r}. If you did use that address, "
            "its proxy has to forward the Host header.",
        )
    if request.method not in {"GET", "HEAD"}:
        raise HTTPException(421, f"The dashboard is at {settings.public_url}/ui, not at {given[:100]!r}.")
    port = f":{request.url.port}" if request.url.port else ""
    query = f"?{request.url.query}" if request.url.query else ""
    host = f"[{own_host}]" if ":" in own_host else own_host
    there = f"{request.url.scheme}://{host}{port}{quote(request.scope['path'])}{query}"
    raise HTTPException(307, "", {"Location": there})


DashboardHost = Depends(require_dashboard_host)
