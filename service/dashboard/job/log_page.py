from typing import Annotated

from fastapi import Depends, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from core.storage.joblogs.reader import LogReader
from core.storage.joblogs.search import FoundLines
from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.job.header import JobHeader, read_header, render_job_page
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.presenters.outputs.logs import SEARCH_SECONDS, read_log_page
from service.schemas.jobs import MAX_LINE
from service.schemas.outputs import AttemptNumber

router = Router(dependencies=[Depends(require_key_or_session)], reads_in=lambda lanes: lanes.files)

LOG_BYTES_IN_TAB = 4 * 1024 * 1024
"""Largest log that a page links to as one text; a browser may not survive a larger one."""
LINES_WITHOUT_SCRIPT = 500
FOUND_LINES = 100  # most lines that a search finds for browsers without scripts


class LinesQuery(BaseModel):
    """The lines that a page shows to browsers without scripts."""

    part: str = ""
    line: int | None = Field(None, ge=1, le=MAX_LINE, description="first line to show; None: the last lines")
    find: str = Field("", max_length=200, description="text to find")


@router.get("/ui/jobs/{job_id}/log")
def show_log(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    job_id: str,
    shown: Annotated[LinesQuery, Query()],
    attempt: AttemptNumber = None,
) -> Response:
    """Show a job's log; `part=live` leaves out the lines for browsers without scripts."""
    header = read_header(session, app_state, caller, job_id, attempt)
    reader = app_state.logs.reader(job_id)
    whole = shown.part != "live"
    starts = {
        attempt.attempt: line for attempt in header.attempts if (line := reader.first_line(attempt.attempt)) is not None
    }
    line = shown.line or (starts.get(header.attempt) if header.attempt else None)
    last = reader.tail(LINES_WITHOUT_SCRIPT, final=header.row.ended)
    after = last if line is None else max(0, min(line - 1, reader.line_count))
    return render_job_page(
        "job/log.html",
        app_state,
        caller,
        header,
        tab="log",
        gone={removed.what: removed for removed in header.job.removed},
        starts=starts,
        log=read_log_page(session, app_state, header.row, after, LINES_WITHOUT_SCRIPT) if whole else None,
        find=shown.find,
        found=_find(reader, header, shown.find) if whole and shown.find.strip() else None,
        page_lines=LINES_WITHOUT_SCRIPT,
        log_bytes=reader.size,
        log_bytes_in_tab=LOG_BYTES_IN_TAB,
    )


def _find(reader: LogReader, header: JobHeader, text: str) -> FoundLines:
    return reader.search(
        text, after=0, limit=FOUND_LINES, final=header.row.ended, match_case=False, seconds=SEARCH_SECONDS
    )
