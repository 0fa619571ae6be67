"""Metrics of jobs."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from core.jobs import queries
from service.auth.authentication import SearchSlot
from service.deps import AppStateDep, ReadSession
from service.http import file_responses
from service.schemas.jobs import Metrics

router = APIRouter(prefix="/jobs/{job_id}/metrics", tags=["metrics"])

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"schema": {"type": "string"}}}},
    304: {"description": "Not modified since the version in If-None-Match."},
}


@router.get(
    "",
    response_model=Metrics,
    responses=_RESPONSES,
    dependencies=[SearchSlot],
    openapi_extra=file_responses.declare_request_headers("If-None-Match"),
)
def read_metrics(
    request: Request,
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    name: Annotated[str | None, Query(description="return only this metric")] = None,
    max_points: Annotated[int, Query(alias="maxPoints", ge=3, le=100_000)] = 1000,
) -> Response:
    """Return a job's metrics as series, each downsampled to `maxPoints` with its peaks.

    The metrics of a large running job may be 10 seconds old.
    """
    answer = app_state.metrics.get(session, queries.get(session, job_id), name, max_points)
    headers = {"ETag": answer.etag}
    if file_responses.not_modified(request, answer.etag):
        return Response(status_code=304, headers=headers)
    return Response(answer.body, media_type="application/json", headers=headers)
