"""What jobs measured."""

from typing import Annotated

from fastapi import APIRouter, Query

from core.jobs import queries
from service.deps import Reading
from service.downsample import series_view
from service.wire import Metrics

router = APIRouter(prefix="/jobs/{job_id}/metrics", tags=["metrics"])


@router.get("")
def read_metrics(
    session: Reading,
    job_id: str,
    name: Annotated[str | None, Query(description="only this metric")] = None,
    max_points: Annotated[int, Query(alias="maxPoints", ge=3, le=100_000)] = 1000,
) -> Metrics:
    """A job's metrics as series, each thinned to `maxPoints` without losing a peak."""
    job = queries.get(session, job_id)
    return Metrics(series=[series_view(series, max_points) for series in queries.metrics(session, job.id, name=name)])
