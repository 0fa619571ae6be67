from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.storage.retention import OutputKind
from service.app_state import AppState
from service.log_stream.feed import log_row
from service.presenters.outputs.removed import find_removed
from service.schemas.outputs import LogPage, LogRow

SEARCH_SECONDS = 1.0  # longest time of one search in a log


def read_log_page(session: Session, app_state: AppState, job: Job, after: int, limit: int) -> LogPage:
    """Read the lines after `after`. The job's row was read before the log, so `complete` cannot be set too early."""
    if removed := find_removed(session, job, OutputKind.LOGS):
        return LogPage(lines=[], total=0, complete=True, removed=removed)
    section = app_state.logs.reader(job.id).section(after, limit, final=job.ended)
    last = section.lines[-1].line if section.lines else after
    partial = section.partial if section.total == last else ""  # else it does not belong after these lines
    rows = [LogRow(**log_row(line)) for line in section.lines]
    complete = job.ended and last >= section.total
    return LogPage(lines=rows, total=section.total, complete=complete, partial=partial or None)
