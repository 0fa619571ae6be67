from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from core.errors import SpecInvalid
from core.jobs import queries
from core.jobs.tracking import metrics
from core.jobs.tracking.metrics import MAX_TIME, XRange
from service.auth.authentication import SearchSlot
from service.deps import AppStateDep, ReadSession
from service.http.responses import file_responses
from service.http.routing import api_router
from service.schemas.outputs import MAX_ATTEMPT, MetricRowsPage, MetricRowView, Metrics

router = api_router(prefix="/jobs/{job_id}/metrics", tags=["metrics"])

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"schema": {"type": "string"}}}},
    304: {"description": "Not modified since the version in If-None-Match."},
}


class MetricsQuery(BaseModel):
    """The metrics to return: their names, points and range."""

    name: str | None = Field(None, description="return only this metric")
    max_points: int = Field(1000, alias="maxPoints", ge=3, le=100_000)
    axis: Literal["step", "time"] = Field("step", description="unit of `from` and `to`")
    start: float | None = Field(None, alias="from", allow_inf_nan=False, description="first step, or Unix time in s")
    stop: float | None = Field(None, alias="to", allow_inf_nan=False, description="last step, or Unix time in s")
    attempt: int | None = Field(None, ge=1, le=MAX_ATTEMPT, description="only values of this attempt")

    def range(self) -> XRange | None:
        """Return the requested range of the horizontal axis; None: everything."""
        if self.start is None and self.stop is None:
            return None
        if self.start is None or self.stop is None:
            missing = "from" if self.start is None else "to"
            raise SpecInvalid("`from` and `to` must be given together.", field=missing)
        if self.axis == "time" and not 0 <= self.start <= self.stop <= MAX_TIME:
            raise SpecInvalid("`from` and `to` must be Unix times in seconds, with `from` before `to`.", field="from")
        return XRange(self.axis, self.start, self.stop)


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
    wanted: Annotated[MetricsQuery, Query()],
) -> Response:
    """Return a job's metrics as series, each downsampled to `maxPoints` with its peaks.

    With `from` and `to`, only the points between them, at their full resolution if they are few enough. The metrics of
    a large running job may be 10 seconds old.
    """
    job = queries.get(session, job_id)
    answer = app_state.metrics.get(session, job, wanted.name, wanted.max_points, wanted.range(), attempt=wanted.attempt)
    headers = {"ETag": answer.etag}
    if file_responses.not_modified(request, answer.etag):
        return Response(status_code=304, headers=headers)
    return Response(answer.body, media_type="application/json", headers=headers)


PAGE_VALUES = 20_000


class RowsQuery(BaseModel):
    """The page of metrics to return."""

    name: str | None = Field(None, description="return only this metric")
    after: str = Field(
        "0.job.0", pattern=r"^\d{1,9}\.(job|system)\.\d{1,18}$", description="`next` of the previous page"
    )


@router.get("/rows", dependencies=[SearchSlot])
def read_rows(session: ReadSession, job_id: str, wanted: Annotated[RowsQuery, Query()]) -> MetricRowsPage:
    """Return all stored values of a job's metrics, by attempt, in pages, each in the order in which it was written."""
    queries.get(session, job_id)
    attempt, source, offset = wanted.after.split(".")
    key = (int(attempt), source, int(offset))
    rows = metrics.read_page(session, job_id, key, name=wanted.name, most_values=PAGE_VALUES)
    count = sum(max(1, len(row.values)) for row in rows)
    last = rows[-1] if count >= PAGE_VALUES else None
    return MetricRowsPage(
        rows=[MetricRowView.of(row, time=row.at) for row in rows if row.values],
        next=last and f"{last.attempt}.{last.source}.{last.offset}",
        left_out=" ".join(metrics.limit_messages(session, job_id)) or None,
    )
