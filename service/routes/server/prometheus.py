import asyncio
from typing import Any

from fastapi import Response
from prometheus_client.core import Metric

from core.security.visibility import seeing_everything
from service.app_state import AppState
from service.deps import AppStateDep
from service.http.routing import api_router
from service.monitoring.service_metrics import CONTENT_TYPE_LATEST, exposition
from service.siblings import FIRST

router = api_router(tags=["operations"])

_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
_ANSWER_SECONDS = 5.0

Counted = tuple[list[Metric], list[Metric]]
"""Metrics of a process, and those of job events, which only the first one has."""


@router.get("/metrics", response_class=Response, responses=_RESPONSES)
async def read_prometheus(app_state: AppStateDep) -> Response:
    """Return the service's own metrics in Prometheus' text format; a job's are at `/jobs/{job_id}/metrics`."""
    numbers = range(app_state.siblings.count)
    answers = await asyncio.gather(*(_call(app_state, number) for number in numbers))
    text = await app_state.lanes.reading.run(_render, app_state, dict(zip(numbers, answers, strict=True)))
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def collect_metrics(app_state: AppState) -> Counted:
    return await app_state.lanes.reading.run(_collect, app_state)


@seeing_everything()
def _collect(app_state: AppState) -> Counted:
    metrics = app_state.service_metrics
    if app_state.siblings.number != FIRST:
        return metrics.collect(), []
    with app_state.database.read() as session:
        return metrics.collect(), metrics.collect_job_events(session)


async def _call(app_state: AppState, number: int) -> Counted:
    try:
        counted: Counted = await app_state.siblings.call(number, "metrics", seconds=_ANSWER_SECONDS)
    except OSError:  # it has ended, and starts again: Prometheus shows a gap
        return [], []
    return counted


@seeing_everything()
def _render(app_state: AppState, answers: dict[int, Counted]) -> bytes:
    counted = {number: metrics for number, (metrics, _) in answers.items()}
    with app_state.database.read() as session:
        return exposition(counted, answers[FIRST][1], session)
