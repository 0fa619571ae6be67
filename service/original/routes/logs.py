"""A job's log as rows; the last row is an end marker."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from core.db.models.jobs import Job
from core.formatting import iso_time
from core.jobs import queries
from service.auth.api_keys import Caller
from service.deps import OpenStores, Stores
from service.original.long_poll import hold
from service.original.params import Given, takes
from service.original.routing import OriginalRoute
from service.routes.logs import log_page
from service.schemas.jobs import MAX_LINE, LogPage

router = APIRouter(route_class=OriginalRoute)

END = "PSEOF"
"""The message of the end marker."""
_LIMIT = 2000
_MOST = 10_000


@router.get("/jobs/logs", name="original_read_log", openapi_extra=takes("jobId", "line", "limit"))
async def read_log(stores: Stores, caller: Caller, given: Given) -> list[dict[str, Any]]:
    """Rows after row `line`; held back for a while if there are none yet."""
    job_id = given.required("jobId")
    line = given.number("line", 0, 0, MAX_LINE)
    limit = given.number("limit", _LIMIT, 1, _MOST)
    return await hold(stores, caller.id, job_id, lambda: _rows(stores, job_id, line, limit), bool)


def _rows(stores: OpenStores, job_id: str, after: int, limit: int) -> list[dict[str, Any]]:
    with stores.database.read() as session:
        job = queries.get(session, job_id)
        page = log_page(session, stores, job, after, limit)
    rows = [_row(job, one.line, one.timestamp, _told(one.message)) for one in page.lines]
    if page.complete:
        rows += _end(job, page, rows[-1]["line"] if rows else after)
    return rows[:limit]


def _end(job: Job, page: LogPage, last: int) -> list[dict[str, Any]]:
    """Build the last rows. Their numbers have no gaps: one client counts the rows instead of reading the numbers."""
    at = iso_time(job.finished_at or datetime.now(UTC))
    told = [page.removed.message] if page.removed is not None and last == 0 else []
    return [_row(job, last + number, at, message) for number, message in enumerate((*told, END), 1)]


def _row(job: Job, line: int, timestamp: str, message: str) -> dict[str, Any]:
    return {"jobId": job.id, "line": line, "timestamp": timestamp, "message": message}


def _told(message: str) -> str:
    """Change output that equals the end marker, so that it does not end the log."""
    return f"{END} " if message == END else message
