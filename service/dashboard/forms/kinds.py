"""Kinds of what the form makes: one job, or a sweep, a schedule or a comparison, which have jobs like it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from core.jobs.templates.schedules import check, next_times
from service.schemas.comparisons import SubmitComparison
from service.schemas.jobs import SubmitJob
from service.schemas.schedules import SubmitSchedule
from service.schemas.sweeps import SubmitSweep
from service.submission import compare, sweeps
from service.submission.templates import job_of

_SHOWN_TIMES = 5


@dataclass(frozen=True, slots=True)
class Preview:
    """The jobs that a request leads to."""

    jobs: Sequence[SubmitJob]  # one for each machine type
    each: int = 1  # how many of each
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that the form makes."""

    title: str
    model: type[SubmitJob]
    command: str  # of gradient-cli
    preview: Callable[[Any], Preview]  # refuses what the submission would refuse before it looks at a job


def _preview_sweep(request: SubmitSweep) -> Preview:
    plan = sweeps.plan_of(request)
    at_once = f", {request.parallel} at once" if request.parallel < plan.trials else ""
    return Preview([job_of(request, "sweep")], plan.trials, {"Trials": [f"{plan.trials:,}{at_once}"]})


def _preview_schedule(request: SubmitSchedule) -> Preview:
    check(request.cron, request.timezone)
    times = next_times(request.cron, request.timezone, datetime.now(UTC), _SHOWN_TIMES)
    zone = ZoneInfo(request.timezone)
    shown = [f"{at.astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for at in times]
    return Preview([job_of(request, "schedule")], facts={"Next times": shown})


def _preview_comparison(request: SubmitComparison) -> Preview:
    jobs = compare.split(request)
    return Preview(jobs[: len(jobs) // request.repeats], request.repeats, {"Jobs": [f"{len(jobs)}"]})


KINDS = {
    "job": Kind("Once", SubmitJob, "jobs create", lambda request: Preview([request])),
    "sweep": Kind("Sweep", SubmitSweep, "sweeps create", _preview_sweep),
    "schedule": Kind("Schedule", SubmitSchedule, "schedules create", _preview_schedule),
    "comparison": Kind("Compare machines", SubmitComparison, "compare create", _preview_comparison),
}
