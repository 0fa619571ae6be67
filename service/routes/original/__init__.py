"""The protocol of the original Paperspace clients, translated to this service's own functions.

Their requests to `/jobs/createJob`, with or without a trailing slash, are served at `/original/jobs/createJob`:
`paths.py` decides which protocol a request uses. Nothing here decides anything about jobs.
"""

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.routing import BaseRoute

from service import errors
from service.routes.original import (
    artifacts,
    entity_tags,
    job_lists,
    jobs,
    links,
    login,
    logs,
    machine_types,
    projects,
    s3,
    teams,
)
from service.routes.original.paths import PREFIX, OriginalPaths

_WITH_KEY = (jobs, job_lists, logs, artifacts, machine_types, projects, entity_tags, teams, login, links)


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
