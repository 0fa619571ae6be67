"""The first page: what runs, what waits, what failed since yesterday, and what today costs."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fastapi import Depends
from fastapi.responses import Response
from sqlalchemy.orm import Session

from core.db.models.jobs import IS_FAILED, Job
from core.jobs import queries
from core.jobs.costs.report import report
from core.jobs.queries import JobFilter
from core.jobs.reasons import CANNOT_START
from core.jobs.states import JobState
from core.jobs.tracking import metrics
from service.app_state import AppState
from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.charts import draw_sparkline
from service.dashboard.job.progress import Progress, read_progress
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.presenters.jobs import job_views
from service.presenters.outputs.explanations import explanation_of
from service.presenters.workers import worker_views
from service.schemas.jobs import JobView

router = Router(dependencies=[Depends(require_key_or_session)])

_RUNNING_JOBS = 8
_FAILED_JOBS = 10
_QUEUED_JOBS = 50
"""First of the queue, among which those are shown that cannot start."""
_MOST_COUNTED = 10_000
_POINTS = 60
_WEEK = 7
_MAIN_METRICS = (r"(val|test|eval)\W?_?.*acc", r"acc", r"(val|test|eval).*loss", r"loss", r"")
"""Patterns of the metric that a row shows, the best first."""


@dataclass(frozen=True, slots=True)
class Spark:
    """The last value of a metric and its curve."""

    name: str
    value: float
    points: str  # of a polyline in a drawing 120 wide and 24 high


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job: its main metric, if it has one, its progress, and the seconds left by a limit."""

    job: JobView
    spark: Spark | None
    progress: Progress | None
    most_seconds_left: float | None


@router.get("/ui")
def show_now(session: ReadSession, app_state: AppStateDep, caller: PageCaller, part: str = "") -> Response:
    """Show running jobs, the queue by machine type, failures since yesterday, GPUs in use and today's cost.

    `part=live` leaves out the costs, which are summed over all jobs of a week.
    """
    current = datetime.now(UTC)
    yesterday = current - timedelta(days=1)
    runs = JobFilter(states=[JobState.RUNNING, JobState.FINISHING, JobState.KEPT])
    running = queries.page(session, runs, limit=_RUNNING_JOBS)
    failed = queries.failed_since(session, yesterday, limit=_FAILED_JOBS)
    failures = JobFilter(conditions=(Job.finished_at >= yesterday, IS_FAILED))
    gpus = [
        gpu
        for worker in worker_views(session)
        for gpu in worker.gpus or []
        if worker.state not in {"silent", "refusing"} or gpu.job_id  # jobs run on while their worker restarts
    ]
    queued = job_views(session, app_state, queries.queued(session, limit=_QUEUED_JOBS))
    stuck = [job for job in queued if job.reason in CANNOT_START]
    failed_views = job_views(session, app_state, failed)
    return render_page(
        "lists/now.html",
        caller=caller,
        running=_running(session, app_state, running.jobs),
        n_running=_count(session, runs, len(running.jobs), _RUNNING_JOBS),
        n_failed=_count(session, failures, len(failed), _FAILED_JOBS),
        queues=_queues(session, stuck),
        stuck=stuck,
        queue_is_longer=len(queued) == _QUEUED_JOBS,
        failed=failed_views,
        explanations={job.id: explanation_of(app_state.logs, job) for job in failed_views},
        gpus=len(gpus),
        busy_gpus=sum(bool(gpu.job_id or gpu.taken_by) for gpu in gpus),
        week=[] if part == "live" else report(session, "day", _WEEK),
        draw_sparkline=draw_sparkline,
        any_jobs=queries.last_seq(session) > 0,
        public_url=app_state.settings.public_url,
    )


def _queues(session: Session, stuck: Sequence[JobView]) -> list[tuple[str, int, datetime]]:
    """Return the number of jobs that wait for each machine type, and since when, without those that cannot start."""
    stuck_by_type = Counter(job.machine_type for job in stuck)
    queues = [(name, count - stuck_by_type[name], since) for name, count, since in queries.queue_sizes(session)]
    return [queue for queue in queues if queue[1]]


def _count(session: Session, wanted: JobFilter, listed: int, limit: int) -> str:
    """Return the number of jobs of which up to `limit` are listed."""
    count = listed if listed < limit else queries.count(session, wanted, most=_MOST_COUNTED)
    return f"{count:,}{'+' if count == _MOST_COUNTED else ''}"


def _running(session: Session, app_state: AppState, jobs: Sequence[Job]) -> list[RunningJob]:
    last = metrics.last_values(session, [job.id for job in jobs])
    return [
        RunningJob(
            view,
            _spark(session, app_state, job, last.get(job.id, {})),
            *read_progress(session, app_state, job, view.params),
        )
        for job, view in zip(jobs, job_views(session, app_state, jobs), strict=True)
    ]


def main_metric(names: Iterable[str]) -> str | None:
    """Return the name of the metric that says most of a job."""
    named = sorted(names)
    return next((name for kind in _MAIN_METRICS for name in named if re.search(kind, name, re.IGNORECASE)), None)


def _spark(session: Session, app_state: AppState, job: Job, values: dict[str, float]) -> Spark | None:
    name = main_metric(values)
    if name is None:
        return None
    body = json.loads(app_state.metrics.get(session, job, name, _POINTS).body)
    heights = [
        value
        for series in body["series"]
        if series["source"] == "job"
        for point in series["points"]
        if math.isfinite(value := float(point["value"]))
    ]
    return Spark(name, values[name], draw_sparkline(heights))
