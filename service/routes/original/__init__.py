"""The protocol of the original Paperspace clients, as a face of this service: same record, rules and stores.

What they send to `/jobs/createJob`, with or without a slash at its end, is served at `/original/jobs/createJob`:
`paths.py` tells who means which. Nothing here decides anything about jobs; it translates.
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
    """Have this application serve the original clients too. Comes before other middleware is added.

    Args:
        app: The application.
        beside: The main API's routes.
    """
    for noun in _WITH_KEY:
        app.include_router(noun.router, prefix=PREFIX, tags=["original"], responses=errors.RESPONSES)
    app.include_router(s3.router, tags=["original"], responses=errors.RESPONSES_TO_ALL)
    own = [route for noun in _WITH_KEY for route in noun.router.routes]
    app.add_middleware(OriginalPaths, own=own, beside=beside)
