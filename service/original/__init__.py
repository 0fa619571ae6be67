"""The protocol of the original Paperspace clients, translated to this service's own functions.

Their requests to `/jobs/createJob`, with or without a trailing slash, are served at `/original/jobs/createJob`:
`paths.py` decides which protocol a request uses. Nothing here decides anything about jobs.
"""

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.routing import BaseRoute

from service.http import errors
from service.original.middleware import PREFIX, OriginalPaths
from service.original.routes import (
    artifacts,
    job_lists,
    jobs,
    login,
    logs,
    machine_types,
    projects,
    s3,
    signed_links,
    tags,
    teams,
)

_WITH_KEY = (jobs, job_lists, logs, artifacts, machine_types, projects, tags, teams, login, signed_links)


def include(app: FastAPI, beside: Sequence[BaseRoute]) -> None:
    """Add the original protocol to an application. Must be called before other middleware is added.

    Args:
        app: The application.
        beside: The main API's routes.
    """
    for noun in _WITH_KEY:
        app.include_router(noun.router, prefix=PREFIX, tags=["original"], responses=errors.RESPONSES)
    app.include_router(s3.router, tags=["original"], responses=errors.RESPONSES_TO_ALL)
    own = [route for noun in _WITH_KEY for route in noun.router.routes]
    app.add_middleware(OriginalPaths, own=own, beside=beside)
