"""The first page of a job: its metrics, last lines, outputs and cost; and the forms of its header."""

import heapq
import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from core.db.database import on_commit
from core.errors import SpecInvalid
from core.jobs import edits, kept_jobs, lifecycle
from core.jobs.guarded_updates import STOP_REQUESTED
from core.jobs.spec.arrays import is_array_id, is_sweep_id
from core.jobs.tracking import metrics
from core.storage.artifacts.store import ArtifactFile
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal, require_key_or_session
from service.auth.ownership import OwnerCheck
from service.dashboard.charts import draw_sparkline
from service.dashboard.forms.job_fields import format_tags, parse_tags
from service.dashboard.job.attempts import attempt_rows
from service.dashboard.job.header import JobHeader, read_header, render_job_page
from service.dashboard.job.timeline import phase_spans
from service.dashboard.lists.now_page import main_metric
from service.dashboard.login import HOME, FormTexts, SameOriginForm
from service.dashboard.rendering import (
    format_metric,
    format_number,
    format_percent,
    job_url,
    runs_url,
)
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.routing import Router, runs_in
from service.presenters.jobs import event_views
from service.presenters.outputs.artifacts import artifacts_page
from service.presenters.predictions import can_predict
from service.schemas.outputs import AttemptNumber

router = Router(dependencies=[Depends(require_key_or_session), OwnerCheck])

_LAST_LINES = 14
_LINE_BYTES = 2000
_POINTS = 120
_TILES = 12
_NEWEST = 4  # files that are listed
_LISTED_FILES = 1000  # of more, the newest are not looked for
_LOG_QUERY = frozenset({"line", "find"})
_CHART_QUERY = frozenset({"log", "smooth", "from", "to", "axis"})


@dataclass(frozen=True, slots=True)
class Tile:
    """The last value of a metric and its curve."""

    name: str
    shown: str
    points: str  # of a polyline in a drawing 120 wide and 24 high; empty: of one value
    spread: str  # its lowest and its highest value


class LastLines(NamedTuple):
    lines: list[str]  # with their colours
    total: int


@router.get("/ui/jobs/{job_id}")
def show_job(
    request: Request,
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    attempt: AttemptNumber = None,
) -> Response:
    if is_array_id(job_id):
        return RedirectResponse(runs_url(q=f"{'sweep' if is_sweep_id(job_id) else 'array'}:{job_id}"), 307)
    for rest, names in (("/log", _LOG_QUERY), ("/metrics", _CHART_QUERY)):
        if names & request.query_params.keys():  # parameters of that page
            return RedirectResponse(f"{job_url(job_id, rest)}?{request.url.query}", 307)
    return _overview(session, app_state, caller, read_header(session, app_state, caller, job_id, attempt))


def _overview(
    session: Session,
    app_state: AppState,
    caller: Principal,
    header: JobHeader,
    **shown: Any,  # noqa: ANN401 - what the template shows
) -> Response:
    gone = {removed.what: removed for removed in header.job.removed}
    events = event_views(session, header.row)
    return render_job_page(
        "job/overview.html",
        app_state,
        caller,
        header,
        tab="overview",
        gone=gone,
        stop=next((event for event in events if event.kind == STOP_REQUESTED), None),
        phase_spans=phase_spans(events, datetime.now(UTC), header.attempt),
        attempts=attempt_rows(session, app_state, header, events) if len(header.attempts) > 1 else [],
        outputs=(outputs := artifacts_page(session, app_state, header.row, limit=0, attempt=header.attempt)),
        newest=_newest_files(app_state, header) if 0 < outputs.total_files <= _LISTED_FILES else [],
        last_lines=None if "logs" in gone else _last_lines(app_state, header),
        tiles=_tiles(session, app_state, header),
        can_predict=can_predict(session, header.row),
        typed_tags=format_tags(header.row.spec.tags),
        **shown,
    )


@router.post("/ui/jobs/{job_id}", dependencies=[SameOriginForm])
def edit_job(
    session: WriteSession, app_state: AppStateDep, caller: PageCaller, job_id: str, texts: FormTexts
) -> Response:
    """Change the name, tags or note of a job; what is refused is shown again, with the reason."""
    values: dict[str, Any] = {name: texts[name].strip() or None for name in ("name", "note") if name in texts}
    if "tags" in texts:
        values["tags"] = parse_tags(texts["tags"])
    try:
        edits.edit(session, job_id, **values)
    except SpecInvalid as error:
        header = read_header(session, app_state, caller, job_id, None)
        return _overview(session, app_state, caller, header, status=400, edited={**texts, "error": error.message})
    return RedirectResponse(job_url(job_id), 303)


@router.post("/ui/jobs/{job_id}/stop", dependencies=[SameOriginForm])
@runs_in(lambda lanes: lanes.urgent)
def stop_job(session: WriteSession, app_state: AppStateDep, job_id: str) -> Response:
    lifecycle.request_stop(session, job_id)
    on_commit(session, app_state.wake)
    return RedirectResponse(job_url(job_id), 303)


@router.post("/ui/jobs/{job_id}/release", dependencies=[SameOriginForm])
@runs_in(lambda lanes: lanes.urgent)
def release_job(session: WriteSession, app_state: AppStateDep, job_id: str) -> Response:
    kept_jobs.release(session, job_id)
    on_commit(session, app_state.wake)
    return RedirectResponse(job_url(job_id), 303)


@router.post("/ui/jobs/{job_id}/delete", dependencies=[SameOriginForm])
def delete_job(session: WriteSession, app_state: AppStateDep, job_id: str) -> Response:
    lifecycle.delete(session, job_id)
    on_commit(session, app_state.wake)
    return RedirectResponse(HOME, 303)


def _newest_files(app_state: AppState, header: JobHeader) -> list[ArtifactFile]:
    files = app_state.artifacts.walk(header.row.id, header.number)
    return heapq.nlargest(_NEWEST, files, key=lambda file: file.mtime_ms)


def _last_lines(app_state: AppState, header: JobHeader) -> LastLines:
    reader = app_state.logs.reader(header.row.id)
    total = reader.tail(0, final=header.row.ended)
    last, after = total, max(0, total - _LAST_LINES)
    if header.attempt is not None:
        next_one = reader.first_line(header.attempt + 1)
        last = total if next_one is None else next_one - 1
        after = max(0, last - _LAST_LINES, (reader.first_line(header.attempt) or last + 1) - 1)
    lines = (
        reader.lines(after, last - after, final=header.row.ended, max_line_bytes=_LINE_BYTES) if last > after else []
    )
    texts = [line.message for line in lines]
    if not header.row.ended and header.attempt is None and (partial := reader.partial(max_line_bytes=_LINE_BYTES)):
        texts.append(partial)
    return LastLines(texts, total)


def _tiles(session: Session, app_state: AppState, header: JobHeader) -> list[Tile]:
    """Return the first metrics: the job's main one, those with curves, those with one value, the system's."""
    body = app_state.metrics.get(session, header.row, None, _POINTS, attempt=header.attempt).body
    system, of_job = (
        {series["name"]: series for series in json.loads(body)["series"] if (series["source"] == "system") is of_system}
        for of_system in (True, False)
    )
    # The series may be sampled: the last value of a metric that few rows have is not among them.
    last = {} if header.attempt else metrics.last_values(session, [header.row.id]).get(header.row.id, {})
    for name, value in last.items():
        metric = of_job.setdefault(name, {"name": name, "source": "job", "points": [], "last": value})
        metric["last"] = value
    main = main_metric(name for name, series in of_job.items() if series["points"][1:])
    ordered = sorted(of_job.values(), key=lambda series: (series["name"] != main, not series["points"][1:]))
    return [_tile(series) for series in [*ordered, *system.values()][:_TILES]]


def _tile(series: dict[str, Any]) -> Tile:
    name, last = series["name"], None if series["last"] is None else float(series["last"])
    if series["source"] == "system" and last is not None:
        title = re.sub(r"_(bytes|percent)$", "", name).replace("_", " ")
        shown = format_percent(last) if name.endswith("_percent") else format_metric(last, name)
        return Tile(re.sub(r"\b(cpu|gpu|tpu)\b", lambda word: word[0].upper(), title), shown, "", "")
    heights = [value for point in series["points"] if math.isfinite(value := float(point["value"]))]
    if not heights[1:]:
        return Tile(name, format_number(last), "", "")
    spread = f"lowest {format_number(series['min'])}, highest {format_number(series['max'])}"
    return Tile(name, format_number(last), draw_sparkline(heights), spread)
