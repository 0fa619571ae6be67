"""Lists of jobs, newest first, with the filters of each client."""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs import queries
from core.jobs.queries import JobFilter
from core.jobs.states import JobState
from service.auth.api_keys import Searching
from service.deps import OpenStores, Reading, Stores
from service.http.errors import problem
from service.original.params import Given, Params, check_names, takes
from service.original.presenters import PREEMPTED, job_shapes
from service.original.routing import OriginalRoute
from service.presenters.jobs import job_filter
from service.schemas.jobs import ListJobs

router = APIRouter(route_class=OriginalRoute)

MAX_JOBS = 2000
"""Largest number of jobs in a list, the newest ones: the protocol has no pages."""
_PAGE = 500
_EVERY_PROJECT = "all"
_NOTHING_HAS = ("dataset", "experimentId")
_FILTERS = ("project", "projectId", "name", "state", "machineType", "container", "command", "workspace")


@router.get(
    "/jobs/getJobs", name="original_get_jobs", dependencies=[Searching], openapi_extra=takes(*_FILTERS, *_NOTHING_HAS)
)
def get_jobs(session: Reading, stores: Stores, given: Given) -> list[dict[str, Any]]:
    """Jobs, as the npm client and `paperspace-python` list them."""
    if any(given.text(name) for name in _NOTHING_HAS):
        return []
    of_spec = replace(
        _filter(stores, given),
        container=given.text("container"),
        command=given.text("command"),
        workspace=given.text("workspace"),
    )
    return _listed(session, stores, of_spec)


@router.get(
    "/jobs/getJobList",
    name="original_get_job_list",
    dependencies=[Searching],
    openapi_extra=takes("filter", "tagFilter", "modelName"),
)
def get_job_list(session: Reading, stores: Stores, given: Given) -> dict[str, Any]:
    """Jobs, as `gradient` lists them: of a project, or with one of some tags."""
    where = _where(given)
    if where.get("experimentId"):
        return {"jobList": []}
    tags = given.every("tagFilter")
    check_names(tags, stores.settings.limits.ids, "ids", "tagFilter")
    wanted = JobFilter(project=where.get("project"), project_id=where.get("projectId"), tags=tags)
    return {"jobList": _listed(session, stores, wanted)}


def _filter(stores: OpenStores, given: Params) -> JobFilter:
    asked = {name: given.text(name) for name in ("project", "projectId", "name", "state", "machineType")}
    if asked["project"] == _EVERY_PROJECT:
        asked["project"] = None
    preempted = asked["state"] == PREEMPTED
    if preempted:
        asked["state"] = None
    try:
        wanted = job_filter(ListJobs.model_validate(asked), stores.catalogue)
    except ValidationError as error:
        raise problem(("query",), str(error.errors()[0]["msg"])) from error
    if preempted:
        return replace(wanted, states=[JobState.FAILED], reasons=["preempted"])
    return replace(wanted, not_reasons=["preempted"]) if JobState.FAILED in wanted.states else wanted


def _where(given: Params) -> dict[str, str]:
    found = given.object("filter")
    for name in ("filter", "where"):
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise problem(("query", "filter"), f"`{name}` must be an object")
    texts = {name: found.get(name) for name in ("project", "projectId", "experimentId")}
    if not all(isinstance(value, str | None) for value in texts.values()):
        raise problem(("query", "filter"), "project, projectId and experimentId must be text")
    return {name: value for name, value in texts.items() if value}


def _listed(session: Session, stores: OpenStores, wanted: JobFilter) -> list[dict[str, Any]]:
    jobs: list[Job] = []
    page = queries.page(session, wanted, limit=_PAGE)
    jobs += page.jobs
    while page.next_cursor is not None and len(jobs) < MAX_JOBS:
        page = queries.page(session, wanted, limit=_PAGE, after=page.next_cursor)
        jobs += page.jobs
    return job_shapes(session, stores, jobs)
