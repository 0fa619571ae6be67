"""What the form makes: one job, or a sweep, a schedule or a comparison, which have jobs like it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from core.jobs.templates import schedules
from service.app_state import AppState
from service.dashboard.rendering import job_url
from service.schemas.comparisons import SubmitComparison
from service.schemas.jobs import SubmitJob
from service.schemas.schedules import SubmitSchedule
from service.schemas.sweeps import SubmitSweep
from service.submission import compare, create, sweeps
from service.submission import schedules as schedule_submission
from service.submission.stages import RequestOrigin
from service.submission.templates import job_of
from service.submission.withheld import Withheld

_SHOWN_TIMES = 5


@dataclass(frozen=True, slots=True)
class Preview:
    """The jobs that a request leads to."""

    jobs: Sequence[SubmitJob]  # one for each machine type
    each: int | None = 1  # how many of each; None: without an end
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that the form makes. `submit` returns the address of its page."""

    title: str
    model: type[SubmitJob]
    command: str  # of gradient-cli
    preview: Callable[[Any], Preview]  # refuses what the submission would refuse before it looks at a job
    submit: Callable[[AppState, RequestOrigin, Any, Withheld | None], str]


def _submit_job(app_state: AppState, origin: RequestOrigin, request: SubmitJob, withheld: Withheld | None) -> str:
    parent_id = None if withheld is None else withheld.job_id
    notes = () if withheld is None else withheld.notes(request.env_vars or {})
    return job_url(create.submit(app_state, origin, request, None, parent_id=parent_id, withheld=notes).job.id)


def _preview_sweep(request: SubmitSweep) -> Preview:
    plan = sweeps.plan_of(request)
    at_once = f", {request.parallel} at once" if request.parallel < plan.trials else ""
    return Preview([job_of(request, "sweep")], plan.trials, {"Trials": [f"{plan.trials:,}{at_once}"]})


def _preview_schedule(request: SubmitSchedule) -> Preview:
    schedules.check(request.cron, request.timezone)
    zone = ZoneInfo(request.timezone)
    times = schedules.next_times(request.cron, request.timezone, datetime.now(UTC), _SHOWN_TIMES)
    shown = [f"{at.astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for at in times]
    return Preview([job_of(request, "schedule")], None, {"Next times": shown})


def _preview_comparison(request: SubmitComparison) -> Preview:
    jobs = compare.split(request)
    return Preview(jobs[: len(jobs) // request.repeats], request.repeats, {"Jobs": [f"{len(jobs)}"]})


KINDS = {
    "job": Kind("Once", SubmitJob, "jobs create", lambda request: Preview([request]), _submit_job),
    "sweep": Kind(
        "Sweep",
        SubmitSweep,
        "sweeps create",
        _preview_sweep,
        lambda app_state, origin, request, _: f"/ui/sweeps/{sweeps.create(app_state, origin, request, None)[0]}",
    ),
    "schedule": Kind(
        "Schedule",
        SubmitSchedule,
        "schedules create",
        _preview_schedule,
        lambda app_state, origin, request, _: (
            f"/ui/schedules/{schedule_submission.create(app_state, origin, request, None)[0]}"
        ),
    ),
    "comparison": Kind(
        "Compare machines",
        SubmitComparison,
        "compare create",
        _preview_comparison,
        lambda app_state, origin, request, _: f"/ui/comparisons/{compare.submit(app_state, origin, request, None)[0]}",
    ),
}
