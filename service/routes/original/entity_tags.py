"""Tags of jobs and projects."""

from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session

from core.errors import NotFound
from core.jobs import lifecycle, projects, queries
from service.deps import Reading, Writing
from service.errors import problem
from service.routes.original.params import Given, Params, takes
from service.routes.original.routing import OriginalRoute

router = APIRouter(route_class=OriginalRoute)

_JOB, _PROJECT = "job", "project"


@router.get("/entityTags/getTags", name="original_get_tags", openapi_extra=takes("entity", "entityIds"))
def get_tags(session: Reading, given: Given) -> dict[str, list[dict[str, Any]]]:
    """The tags of some jobs or projects, by id; who has none is left out."""
    entity = _entity(given)
    ids = [part for value in given.every("entityIds") for part in value.split(",") if part]
    found = {one: _tags(session, entity, one) for one in ids}
    return {one: [{"tag": {"name": tag}} for tag in tags] for one, tags in found.items() if tags}


@router.put(
    "/entityTags/updateTags", name="original_update_tags", openapi_extra=takes("entity", "entityId", "tags", body=True)
)
def update_tags(session: Writing, given: Given) -> dict[str, Any]:
    """Give a job or project these tags instead of those it has."""
    entity, entity_id = _entity(given), given.required("entityId")
    tags = list(dict.fromkeys(given.every("tags")))
    if entity == _JOB:
        lifecycle.set_tags(session, entity_id, tags)
    else:
        projects.set_tags(session, entity_id, tags)
    return {"entity": entity, "entityId": entity_id, "tags": tags}


def _entity(given: Params) -> str:
    entity = given.required("entity")
    if entity not in {_JOB, _PROJECT}:
        raise problem(("query", "entity"), f"must be {_JOB} or {_PROJECT}")
    return entity


def _tags(session: Session, entity: str, entity_id: str) -> list[str]:
    try:
        if entity == _JOB:
            return list(queries.get(session, entity_id).spec.tags)
        return list(queries.project(session, entity_id).tags or ())
    except NotFound:
        return []
