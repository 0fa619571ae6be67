"""The dashboard: pages rendered on the server, with the same functions as the API."""

from service.dashboard import assets, comparison_pages, login, provider_login, runs_page
from service.dashboard.error_pages import ErrorPageMiddleware
from service.dashboard.forms import job_form_pages, notification_page, project_page, settings_pages
from service.dashboard.host_name import DashboardHost
from service.dashboard.job import details, log_page, overview, terminal
from service.dashboard.lists import costs_page, job_list, machines, now_page, template_pages
from service.dashboard.login import wrong_key_backoff
from service.dashboard.outputs import artifact_pages, tensorboard_page
from service.http.middleware import Application

__all__ = ["PAGE_MODULES", "mount"]

_LISTS = (
    now_page,
    costs_page,
    job_list,
    machines,
    project_page,
    comparison_pages,
    runs_page,
    template_pages,
)
_JOB = (overview, log_page, details, terminal, artifact_pages, tensorboard_page)
PAGE_MODULES = (login, provider_login, *_LISTS, job_form_pages, settings_pages, notification_page, *_JOB, assets)


def mount(app: Application) -> None:
    """Add the pages to an application that has its stores."""
    app.state.wrong_keys = wrong_key_backoff()
    for pages in PAGE_MODULES:
        app.include_router(pages.router, include_in_schema=False, dependencies=[DashboardHost])
    app.error_pages = ErrorPageMiddleware
