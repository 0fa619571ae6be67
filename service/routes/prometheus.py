"""The service's own metrics, for its operator."""

from typing import Any

from fastapi import APIRouter, Response

from service.deps import Reading, Stores
from service.metrics.prometheus import CONTENT_TYPE_LATEST

router = APIRouter(tags=["operations"])

_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", response_class=Response, responses=_TEXT)
def read_figures(session: Reading, stores: Stores) -> Response:
    """The service's own figures, in Prometheus' text format; a job's are at `/jobs/{job_id}/metrics`."""
    return Response(stores.measures.page(session), headers={"Content-Type": CONTENT_TYPE_LATEST})
