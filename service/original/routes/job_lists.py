"""Lists of jobs, newest first, with the filters of each client."""

from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs import queries
from core.jobs.queries import JobFilter
from core.jobs.states import JobState
from service.app_state import AppState
from service.auth.authentication import SearchSlot
from service.deps import AppStateDep, ReadSession
from service.http.errors import problem
from service.http.routing import Router
from service.original.error_messages import OriginalRoute
from service.original.params import MAX_IDS, OriginalParams, Params, check_count, openapi_params
from service.original.presenters import PREEMPTED, job_shapes
from service.presenters.jobs import job_filter
from service.schemas.job_list import ListJobs

router = Router(route_class=OriginalRoute)

MAX_JOBS = 2000  # largest number of jobs in a list, the newest ones: the protocol has no pages
_PAGE_JOBS = 500
_ALL_PROJECTS = "all"
_UNSUPPORTED_FILTERS = ("dataset", "experimentId")
_FILTERS = ("project", "projectId", "name", "state", "machineType", "container", "command", "workspace")


@router.get(
    "/jobs/getJobs",
    name="original_get_jobs",
    dependencies=[SearchSlot],
    openapi_extra=openapi_params(*_FILTERS, *_UNSUPPORTED_FILTERS),
)
def get_jobs(app_state: AppStateDep, given: OriginalParams, session: ReadSession) -> list[dict[str, Any]]:
    """List jobs for the npm client and `paperspace-python`."""
    if any(given.text(name) for name in _UNSUPPORTED_FILTERS):
        return []
    of_spec = replace(
        _parse_filter(app_state, given),
        container=given.text("container"),
        command=given.text("command"),
        workspace=given.text("workspace"),
    )
    return _list_all(session, app_state, of_spec)


@router.get(
    "/jobs/getJobList",
    name="original_get_job_list",
    dependencies=[SearchSlot],
    openapi_extra=openapi_params("filter", "tagFilter", "modelName"),
)
def get_job_list(app_state: AppStateDep, given: OriginalParams, session: ReadSession) -> dict[str, Any]:
    """List jobs for `gradient`: of a project, or with one of some tags."""
    filters = given.object("filter")
    for name in ("filter", "where"):
        filters = filters.get(name, {})
        if not isinstance(filters, dict):
            raise problem(("query", "filter"), f"`{name}` must be an object")
    texts = {name: filters.get(name) for name in ("project", "projectId", "experimentId")}
    if not all(isinstance(value, str | None) for value in texts.values()):
        raise problem(("query", "filter"), "project, projectId and experimentId must be text")
    where = {name: value for name, value in texts.items() if value}
    if where.get("experimentId"):
        return {"jobList": []}
    tags = given.text_list("tagFilter")
    check_count(tags, MAX_IDS, "ids", "tagFilter")
    wanted = JobFilter(project=where.get("project"), project_id=where.get("projectId"), tags=tags)
    return {"jobList": _list_all(session, app_state, wanted)}


def _parse_filter(app_state: AppState, given: Params) -> JobFilter:
    requested = {name: given.text(name) for name in ("project", "projectId", "name", "state", "machineType")}
    if requested["project"] == _ALL_PROJECTS:
        requested["project"] = None
    preempted = requested["state"] == PREEMPTED
    if preempted:
        requested["state"] = None
    try:
        wanted = job_filter(ListJobs.model_validate(requested), app_state.catalogue)
    except ValidationError as error:
        raise problem(("query",), str(error.errors()[0]["msg"])) from error
    if preempted:
        return replace(wanted, states=[JobState.FAILED], reasons=["preempted"])
    return replace(wanted, not_reasons=["preempted"]) if JobState.FAILED in wanted.states else wanted


def _list_all(session: Session, app_state: AppState, wanted: JobFilter) -> list[dict[str, Any]]:
    jobs: list[Job] = []
    page = queries.page(session, wanted, limit=_PAGE_JOBS)
    jobs += page.jobs
    while page.next_cursor is not None and len(jobs) < MAX_JOBS:
        page = queries.page(session, wanted, limit=_PAGE_JOBS, after=page.next_cursor)
        jobs += page.jobs
    return job_shapes(session, app_state, jobs)
