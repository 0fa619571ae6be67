"""The page that compares runs: a row a job, the options and parameters that differ, metrics, and their curves."""

import json
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from core.comparison.measurement import expected_goal
from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs import queries
from core.jobs.spec.arrays import is_array_id
from core.jobs.tracking import metrics
from core.search import saved_views
from service.app_state import AppState
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.dashboard.job.header import LIVE
from service.dashboard.rendering import NO_VALUE, format_number, render_page
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.presenters.job_diff import comparable_options
from service.presenters.job_list import read_filter
from service.presenters.jobs import job_views
from service.presenters.outputs.run_curves import Axis, CurvesQuery
from service.schemas.job_list import ListJobs
from service.schemas.jobs import JobView

router = Router(dependencies=[Depends(require_key_or_session)])

MOST_RUNS = 200
_RUNS_AT_ONCE = 25  # in one answer to the database, a piece of the response
MOST_VALUES = 2_000_000  # read for one response: seconds of work
_METRICS = 30
_CHARACTERS = 80  # of a value
PRIVATE = {"Cache-Control": "private, no-store"}
_NOT_COLUMNS = frozenset({"name", "machineType"})  # they have columns of their own
_CHOSEN = ("params.", "envVars.")
_NO_RESULT = re.compile(r"(?:.*[/_])?(?:lr|learning_rate|epoch|step|steps)\Z", re.IGNORECASE)
_DIGEST = re.compile(r"[0-9a-f]{40,}")


class RunsQuery(BaseModel):
    ids: str = Field("", max_length=16 * MOST_RUNS, description="ids of the jobs, comma separated")
    q: str = Field("", max_length=500, description="a query for the jobs, in place of ids")


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    value: Any = None  # by which the column is sorted
    best: bool = False


@dataclass(frozen=True, slots=True)
class RunColumn:
    title: str
    cells: Sequence[Cell]
    metric: bool = False
    param: bool = False
    goal: str = ""  # `min` or `max`; empty: no value is better than another


@router.get("/ui/compare", dependencies=[SearchSlot])
def show_runs(
    session: ReadSession, app_state: AppStateDep, caller: PageCaller, shown: Annotated[RunsQuery, Query()]
) -> Response:
    jobs = _find_jobs(session, app_state, caller.id, shown)
    views = job_views(session, app_state, jobs)
    choices = _choices(views)
    params = [column for column in choices if column.param]
    columns = [*params, *_metrics(session, views), *choices[len(params) :]]
    return render_page(
        "runs.html",
        caller=caller,
        shown=shown,
        most=MOST_RUNS,
        runs=views,
        columns=columns,
        views=saved_views.of_user(session, caller.id),
        address=f"/ui/compare?{urlencode({'q': shown.q} if shown.q else {'ids': shown.ids})}",
        live=any(view.state in LIVE for view in views),
        names=json.dumps([[view.id, view.name] for view in views]),
    )


class SeriesQuery(BaseModel):
    ids: str = Field(max_length=16 * MOST_RUNS)
    axis: Axis = "step"
    points: int = Field(300, ge=3, le=1000)
    start: float | None = Field(None, alias="from", allow_inf_nan=False)
    stop: float | None = Field(None, alias="to", allow_inf_nan=False)

    def curves(self, runs: int) -> CurvesQuery:
        within = None if self.start is None or self.stop is None else (self.start, self.stop)
        return CurvesQuery(self.axis, self.points, MOST_VALUES // runs, within)


@router.get("/ui/compare/series", dependencies=[SearchSlot])
async def read_series(app_state: AppStateDep, query: Annotated[SeriesQuery, Query()]) -> Response:
    """Send the metrics of some runs as lines of JSON, a run each, as soon as they are read."""
    ids = list(dict.fromkeys(query.ids.split(",")))[:MOST_RUNS]
    read = partial(_read_lines, app_state, query.curves(len(ids)))

    async def lines() -> AsyncIterator[bytes]:
        for first in range(0, len(ids), _RUNS_AT_ONCE):
            yield await app_state.lanes.reading.run(read, ids[first : first + _RUNS_AT_ONCE])

    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=PRIVATE)


def _read_lines(app_state: AppState, query: CurvesQuery, ids: Sequence[str]) -> bytes:
    with app_state.database.read() as session:
        counts, none = metrics.count_own_rows(session, ids), metrics.OwnCount()
        jobs = _in_order(session, ids)
        return b"".join(app_state.metrics.get_curves(session, job, counts.get(job.id, none), query) for job in jobs)


def _find_jobs(session: Session, app_state: AppState, caller_id: str, shown: RunsQuery) -> list[Job]:
    """Return the jobs in the order of their ids, or those of the query, newest first."""
    if shown.q:
        wanted = ListJobs.model_validate({"q": shown.q, "limit": MOST_RUNS})
        return queries.page(session, read_filter(session, app_state, caller_id, wanted), limit=MOST_RUNS).jobs
    given = dict.fromkeys(part.strip() for part in shown.ids.split(",") if part.strip())
    arrays = {
        given_id: [job.id for job in queries.members(session, given_id)] for given_id in given if is_array_id(given_id)
    }
    ids = [job_id for given_id in given for job_id in arrays.get(given_id, [given_id])]
    if len(ids) > MOST_RUNS:
        raise SpecInvalid(f"{len(ids)} jobs were given; at most {MOST_RUNS} can be compared at once.", field="ids")
    return _in_order(session, ids)


def _in_order(session: Session, ids: Sequence[str]) -> list[Job]:
    by_id = {job.id: job for job in queries.by_ids(session, ids) if job.deleted_at is None}
    return [by_id[job_id] for job_id in ids if job_id in by_id]


def _choices(views: Sequence[JobView]) -> list[RunColumn]:
    """Return the options and parameters in which the runs differ, a command only if its parameters do not say how."""
    rows = [comparable_options(view) for view in views]
    names = dict.fromkeys(name for row in rows for name in row if name not in _NOT_COLUMNS)
    columns = {name: [row.get(name) for row in rows] for name in names}
    differing = [name for name, cells in columns.items() if len({json.dumps(cell) for cell in cells}) > 1]
    chosen = sorted(name for name in differing if name.startswith(_CHOSEN))
    others = [name for name in differing if name not in chosen and not (chosen and name == "command")]
    return [
        RunColumn(
            name.removeprefix("params.").removeprefix("envVars."),
            [Cell(_text(cell), cell) for cell in columns[name]],
            param=name in chosen,
        )
        for name in (*chosen, *others)
    ]


def _text(value: object) -> str:
    if value is None or value in ("", []):
        return NO_VALUE
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    text = value if isinstance(value, str) else json.dumps(value)
    most = 12 if _DIGEST.fullmatch(text) else _CHARACTERS
    return f"{text[:most]}…" if len(text) > most else text


def _metrics(session: Session, views: Sequence[JobView]) -> list[RunColumn]:
    """Return the last values of the metrics, those of most runs first."""
    last = metrics.last_values(session, [view.id for view in views])
    names = sorted({name for values in last.values() for name in values})
    names.sort(key=lambda name: -sum(name in values for values in last.values()))
    return [_metric(name, [last.get(view.id, {}) for view in views]) for name in names[:_METRICS]]


def _metric(name: str, rows: Sequence[Mapping[str, float]]) -> RunColumn:
    goal = "" if _NO_RESULT.match(name) else expected_goal(name)
    finite = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
    best = (min if goal == "min" else max)(finite) if goal and len(finite) > 1 else None
    values = [value if (value := row.get(name)) is not None and math.isfinite(value) else None for row in rows]
    cells = [
        Cell(format_number(row.get(name)), value, value == best is not None)
        for row, value in zip(rows, values, strict=True)
    ]
    return RunColumn(name, cells, metric=True, goal=goal)
