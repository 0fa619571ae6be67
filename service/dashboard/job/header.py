"""The header that all pages of a job share: its state and why, its actions, its tabs and its attempts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from core.db.models.jobs import Attempt, Job
from core.errors import ExecDisabled, JobNotEnterable, SpecInvalid
from core.jobs import queries
from core.jobs.exec import audit
from service.app_state import AppState
from service.auth.authentication import Principal
from service.auth.ownership import changeable
from service.dashboard.job.progress import Progress, read_progress
from service.dashboard.rendering import render_page
from service.presenters.jobs import job_view, views_with_waits
from service.presenters.outputs.explanations import explanation_of
from service.schemas.jobs import JobView
from service.tensorboard.routes import unavailable

LIVE = frozenset({"Pending", "Running", "Kept"})  # states in which the pages of a job refresh themselves

_WALLS = {
    "sandboxed": "No sandbox: this job runs as the server's user and can read its files and keys.",
    "own_network": "No separate network: this job can reach every service on its machine, and other jobs its ports.",
    "leads_out": "No network but localhost: its machine cannot give jobs networks of their own, and more than one API "
    "key is valid.",
}


@dataclass(frozen=True, slots=True)
class JobHeader:
    """A job as the header of its pages shows it."""

    row: Job
    job: JobView
    attempts: Sequence[Attempt]  # its attempts if there are, or may be, several; oldest first
    attempt: int | None  # number of the earlier attempt that is shown; None: the latest
    may_change: bool
    progress: Progress | None
    most_seconds_left: float | None  # by its time limit, ceiling or budget
    no_terminal: str | None  # why the caller gets no terminal in it; None: it can be opened

    @property
    def number(self) -> int:
        """Number of the attempt that is shown; 0 before the first."""
        return self.attempt or self.row.attempt

    @property
    def not_isolated(self) -> str | None:
        """The wall that is missing around the job, in words; None: none is."""
        handle = self.row.handle or {}
        return next((text for wall, text in _WALLS.items() if handle.get(wall) is False), None)

    @property
    def began_at(self) -> datetime | None:
        """Start of the first attempt; None before it."""
        return next((attempt.started_at for attempt in self.attempts if attempt.started_at), self.row.started_at)


def read_header(
    session: Session, app_state: AppState, caller: Principal, job_id: str, attempt: int | None, *, waits: bool = True
) -> JobHeader:
    """Read a job for its header; `waits`: with its place in the queue."""
    row = queries.get(session, job_id)
    view = job_view(session, app_state, row) if waits else views_with_waits(session, app_state, [row], {})[0]
    if attempt is not None and attempt > row.attempt:
        raise SpecInvalid(f"There is no attempt {attempt}; the latest is attempt {row.attempt}.", field="attempt")
    several = row.attempt > 1 or row.spec.max_attempts > 1
    attempts = queries.attempts(session, row.id) if several else []
    earlier = attempt if attempt != row.attempt else None
    may_change = bool(changeable(session, app_state, caller.id, [(row.submitted_by, row.project_id)]))
    progress, most = read_progress(session, app_state, row, view.params)
    no_terminal = _why_no_terminal(session, app_state, row, may_change=may_change)
    return JobHeader(row, view, attempts, earlier, may_change, progress, most, no_terminal)


def _why_no_terminal(session: Session, app_state: AppState, row: Job, *, may_change: bool) -> str | None:
    if not app_state.settings.exec.enabled:
        return ExecDisabled().message
    if not may_change:
        return "Only the owner of the job and administrators can enter it."
    try:
        audit.enterable_job(session, row.id)
    except JobNotEnterable as error:
        return error.message
    return None


def render_job_page(
    template: str,
    app_state: AppState,
    caller: Principal,
    header: JobHeader,
    *,
    edited: Mapping[str, str] | None = None,  # what was typed into a form of the header and refused, and the `error`
    **values: Any,  # noqa: ANN401 - what the template shows
) -> HTMLResponse:
    job = header.job
    return render_page(
        template,
        caller=caller,
        job=job,
        edited=edited or {},
        given_name=header.row.name or "",
        live=job.state in LIVE,
        may_change=header.may_change,
        not_isolated=header.not_isolated,
        attempt=header.attempt,
        job_attempts=header.attempts,
        began_at=header.began_at,
        progress=header.progress,
        most_seconds_left=header.most_seconds_left,
        no_terminal=header.no_terminal,
        no_tensorboard=unavailable(app_state.settings),
        explanation=explanation_of(app_state.logs, job),
        **values,
    )
