"""The protocol of the original Paperspace clients, translated to this service's own functions.

Their requests to `/jobs/createJob`, with or without a trailing slash, are served at `/original/jobs/createJob`:
`protocol_dispatch.py` decides which protocol a request uses. This package contains no rules about jobs.
"""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from service.auth.authentication import KEY_SCHEMES
from service.http import errors
from service.http.middleware import Application
from service.original.protocol_dispatch import PREFIX, PathRewriter
from service.original.routes import (
    artifacts,
    job_lists,
    jobs,
    login,
    logs,
    machine_types,
    projects,
    s3_read,
    signed_links,
    tags,
    teams,
)

_ROUTE_MODULES = (jobs, job_lists, logs, artifacts, machine_types, projects, tags, teams, login, signed_links)


def include(app: Application, main_routes: Sequence[BaseRoute]) -> None:
    for module in _ROUTE_MODULES:
        schemes = [] if module in {login, signed_links} else KEY_SCHEMES
        app.include_router(
            module.router, prefix=PREFIX, tags=["original"], responses=errors.RESPONSES, dependencies=schemes
        )
    app.include_router(s3_read.router, tags=["original"], responses=errors.PUBLIC_RESPONSES)
    routes = [route for module in _ROUTE_MODULES for route in module.router.routes]
    app.rewrite_path = PathRewriter(routes, main_routes)
