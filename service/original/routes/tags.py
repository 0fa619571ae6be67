from typing import Any

from core.jobs import edits, projects, queries
from service.auth.authentication import Caller
from service.auth.ownership import require_owner, require_project_owner
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.errors import problem
from service.http.routing import Router
from service.original.error_messages import OriginalRoute
from service.original.params import MAX_IDS, OriginalParams, Params, check_count, openapi_params

router = Router(route_class=OriginalRoute)

_JOB, _PROJECT = "job", "project"


@router.get("/entityTags/getTags", name="original_get_tags", openapi_extra=openapi_params("entity", "entityIds"))
def get_tags(given: OriginalParams, session: ReadSession) -> dict[str, list[dict[str, Any]]]:
    """Return the tags of some jobs or projects, by id; those without tags are left out."""
    entity = _entity(given)
    ids = [part for value in given.text_list("entityIds") for part in value.split(",") if part]
    check_count(ids, MAX_IDS, "ids", "entityIds")
    tags_by_id = queries.job_tags(session, ids) if entity == _JOB else queries.project_tags(session, ids)
    return {
        entity_id: [{"tag": {"name": tag}} for tag in tags_by_id[entity_id]]
        for entity_id in ids
        if tags_by_id.get(entity_id)
    }


@router.put(
    "/entityTags/updateTags",
    name="original_update_tags",
    openapi_extra=openapi_params("entity", "entityId", "tags", body=True),
)
def update_tags(app_state: AppStateDep, caller: Caller, given: OriginalParams, session: WriteSession) -> dict[str, Any]:
    """Replace the tags of a job or project."""
    entity, entity_id = _entity(given), given.required("entityId")
    tags = list(dict.fromkeys(given.text_list("tags")))
    if entity == _JOB:
        require_owner(session, app_state, caller, entity_id)
        edits.edit(session, entity_id, tags=tags)
    else:
        require_project_owner(session, app_state, caller, entity_id)
        projects.set_tags(session, entity_id, tags)
    return {"entity": entity, "entityId": entity_id, "tags": tags}


def _entity(given: Params) -> str:
    entity = given.required("entity")
    if entity not in {_JOB, _PROJECT}:
        raise problem(("query", "entity"), f"must be {_JOB} or {_PROJECT}")
    return entity
