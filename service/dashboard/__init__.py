"""The dashboard: pages rendered on the server, with the same functions as the API."""

from fastapi import FastAPI

from service.dashboard import artifact_pages, assets, job_pages, login, tpu_page
from service.dashboard.error_pages import ErrorPageMiddleware
from service.dashboard.host_name import DashboardHost
from service.dashboard.login import wrong_key_backoff

__all__ = ["mount"]


def mount(app: FastAPI) -> None:
    """Add the pages to an application that has its stores and its middleware.

    Must come last: the error pages are rendered from the error responses of everything else.
    """
    app.state.wrong_keys = wrong_key_backoff()
    for pages in (login, job_pages, artifact_pages, tpu_page, assets):
        app.include_router(pages.router, include_in_schema=False, dependencies=[DashboardHost])
    app.add_middleware(ErrorPageMiddleware)
