"""The service's own metrics, for its operator."""

from typing import Any

from fastapi import APIRouter, Response

from service.deps import AppStateDep, ReadSession
from service.monitoring.service_metrics import CONTENT_TYPE_LATEST

router = APIRouter(tags=["operations"])

_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", response_class=Response, responses=_RESPONSES)
def read_prometheus(session: ReadSession, app_state: AppStateDep) -> Response:
    """Return the service's own metrics in Prometheus' text format; a job's are at `/jobs/{job_id}/metrics`."""
    return Response(app_state.service_metrics.exposition(session), headers={"Content-Type": CONTENT_TYPE_LATEST})
