"""A job's log as rows; the last row is an end marker."""

from datetime import UTC, datetime
from typing import Any

from core.db.models.jobs import Job
from core.formatting import iso_time
from core.jobs import queries
from service.app_state import AppState
from service.auth.authentication import Caller
from service.deps import AppStateDep
from service.http.routing import Router
from service.original.error_messages import OriginalRoute
from service.original.long_poll import poll_until_done
from service.original.params import OriginalParams, openapi_params
from service.presenters.outputs.logs import read_log_page
from service.schemas.jobs import MAX_LINE
from service.schemas.outputs import LogPage

router = Router(route_class=OriginalRoute, reads_in=lambda lanes: lanes.files)

END_MARKER = "PSEOF"  # the message of the end marker
_DEFAULT_ROWS = 2000
_MAX_ROWS = 10_000


@router.get("/jobs/logs", name="original_read_log", openapi_extra=openapi_params("jobId", "line", "limit"))
async def read_log(app_state: AppStateDep, caller: Caller, given: OriginalParams) -> list[dict[str, Any]]:
    """Return the rows after row `line`; wait for a while if there are none yet."""
    job_id = given.required("jobId")
    line = given.number("line", 0, 0, MAX_LINE)
    limit = given.number("limit", _DEFAULT_ROWS, 1, _MAX_ROWS)
    return await poll_until_done(app_state, caller.id, job_id, lambda: _rows(app_state, job_id, line, limit), bool)


def _rows(app_state: AppState, job_id: str, after: int, limit: int) -> list[dict[str, Any]]:
    with app_state.database.read() as session:
        job = queries.get(session, job_id)
        page = read_log_page(session, app_state, job, after, limit)
    rows = [
        _row(job, row.line, row.timestamp, f"{END_MARKER} " if row.message == END_MARKER else row.message)
        for row in page.lines
    ]
    if page.complete:
        rows += _end_rows(job, page, rows[-1]["line"] if rows else after)
    return rows[:limit]


def _end_rows(job: Job, page: LogPage, last: int) -> list[dict[str, Any]]:
    """Build the last rows. Their numbers have no gaps: one client counts the rows instead of reading the numbers."""
    at = iso_time(job.finished_at or datetime.now(UTC))
    rows = [page.removed.message] if page.removed is not None and last == 0 else []
    return [_row(job, last + number, at, message) for number, message in enumerate((*rows, END_MARKER), 1)]


def _row(job: Job, line: int, timestamp: str, message: str) -> dict[str, Any]:
    return {"jobId": job.id, "line": line, "timestamp": timestamp, "message": message}
