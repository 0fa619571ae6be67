"""Logs of jobs: page by page, followed live, or as raw bytes."""

from typing import Annotated, Any

from fastapi import Header, Query, Request, Response

from core.db.models.jobs import Job
from core.jobs import queries
from core.storage.retention import OutputKind
from service.app_state import AppState
from service.auth.authentication import PageCaller, SearchSlot
from service.deps import AppStateDep, ReadSession
from service.http.errors import problem
from service.http.responses import file_responses
from service.http.routing import api_router
from service.log_stream.follower import LogStream
from service.presenters.outputs.logs import SEARCH_SECONDS, read_log_page
from service.presenters.outputs.removed import REMOVED_RESPONSE, check_not_removed
from service.schemas.jobs import MAX_LINE
from service.schemas.outputs import TEXT_BYTES, LogMatches, LogPage, ReadLog, SearchLog

router = api_router(prefix="/jobs/{job_id}/logs", tags=["logs"], reads_in=lambda lanes: lanes.files)

_EVENT_STREAM = "text/event-stream"
_LOG_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": (
            "Lines. With `Accept: text/event-stream`: events `line`, `partial`, `phase` and `end`, followed until "
            "the job has ended; `Last-Event-ID` resumes the stream after a line. With `maxBehind`, an event `gap` "
            "names skipped lines, which can still be read as pages. If a policy deleted the log, the only event "
            "before `end` is `removed`. If the key or session becomes invalid, the last event is `error`."
        ),
        "content": {_EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}

_RAW_RESPONSES = {**file_responses.RESPONSES, **REMOVED_RESPONSE}


@router.get("", response_model=LogPage, responses=_LOG_RESPONSES)
def read_log(
    request: Request,
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    wanted: Annotated[ReadLog, Query()],
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> LogPage | Response:
    """Read lines of a job's log: one page, or all as they are written."""
    job = queries.get(session, job_id)
    if _EVENT_STREAM in request.headers.get("accept", ""):
        seen = _parse_last_event_id(last_event_id)
        after = _start_line(app_state, job, wanted) if seen is None else seen
        return LogStream(app_state, job_id, after, caller, max_behind=wanted.max_behind)
    return read_log_page(session, app_state, job, _start_line(app_state, job, wanted), wanted.limit)


@router.get("/search", dependencies=[SearchSlot])
def search_log(
    session: ReadSession, app_state: AppStateDep, job_id: str, wanted: Annotated[SearchLog, Query()]
) -> LogMatches:
    """Find the lines that contain a text, or look like errors; without `matchCase`, ASCII letters match in any case.

    Searches for at most a second: a larger log is searched in several requests.
    """
    job = queries.get(session, job_id)
    check_not_removed(session, job, OutputKind.LOGS)
    reader = app_state.logs.reader(job.id)
    matches = reader.search(
        wanted.text(),
        after=wanted.line,
        limit=wanted.most(),
        final=job.ended,
        match_case=wanted.match_case,
        seconds=SEARCH_SECONDS,
    )
    texts = None
    if wanted.texts:
        rows = (reader.lines(line - 1, 1, final=job.ended, max_line_bytes=TEXT_BYTES) for line in matches.lines)
        texts = [row.message for page in rows for row in page]
    return LogMatches.of(matches, texts=texts)


@router.get(
    "/raw",
    response_class=Response,
    responses=_RAW_RESPONSES,
    openapi_extra=file_responses.declare_request_headers("Range", "If-Range"),
)
def read_raw_log(
    request: Request,
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    inline: Annotated[bool, Query(description="display the log in the browser")] = False,  # noqa: FBT002 - a query parameter
) -> Response:
    """Read the raw bytes of a job's output, or a range of them."""
    job = queries.get(session, job_id)
    check_not_removed(session, job, OutputKind.LOGS)
    reader = app_state.logs.reader(job.id)
    byte_range = file_responses.parse_range(request, reader.size, None)
    blocks = reader.raw_blocks(byte_range.start, byte_range.length)
    return file_responses.range_response(
        blocks, byte_range, file_responses.user_content_headers(f"{job_id}.log", inline=inline)
    )


def _start_line(app_state: AppState, job: Job, wanted: ReadLog) -> int:
    if wanted.tail is None:
        return wanted.line
    return max(wanted.line, app_state.logs.reader(job.id).tail(wanted.tail, final=job.ended))


def _parse_last_event_id(last_event_id: str | None) -> int | None:
    if not last_event_id:
        return None
    number = last_event_id if len(last_event_id) <= len(str(MAX_LINE)) else ""
    if not (number.isascii() and number.isdecimal() and int(number) <= MAX_LINE):
        raise problem(("header", "Last-Event-ID"), "must be the number of the last line seen")
    return int(number)
