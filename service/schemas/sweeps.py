from typing import Annotated, Any, Literal

from pydantic import Field

from core.jobs.spec.params import Value
from core.jobs.templates.sweeps.plan import MAX_SEED, MAX_TRIALS
from service.schemas.base import RequestList, RequestModel, Time, View, single_error_message
from service.schemas.jobs import SubmitJob, TemplateView

_Method = Literal["tpe", "random", "grid"]
_Stop = Literal["asha", "median"]
_Tried = Annotated[
    Value | RequestList[Value], single_error_message("must be a string, a number, true, false, or a list of these")
]
_SPACE = (
    "values to try for each parameter: `1e-5..1e-1`, `log:1e-5..1e-1`, `1..8` (integers), `1..9/3` (3 values from "
    "that range), `adam,sgd`, `flag` (an option that is present or absent), or a list of values"
)
_METHOD = "how parameters are chosen: by TPE, at random, or every combination"
_METRIC = "metric that judges trials, with min or max as the better direction: `val_loss:min`"
_STOP = "stop trials early: `asha`: trials not in the best third; `median`: trials worse than the median"
_STOP_AFTER = "number of values of the metric after which a trial may first be stopped"


class SubmitSweep(SubmitJob):
    """A search for the best parameters of a job: each trial is a job with its own in $GRADIENT_PARAMS."""

    machine_type: str = Field("", max_length=200, description="name or alias from GET /machine-types")
    command: str = Field(
        "",
        description="command of each job; without a command, your own programs request trials and report their results",
    )
    space: Annotated[dict[str, _Tried], Field(fail_fast=True)] = Field(description=_SPACE)
    method: _Method = Field("tpe", description=_METHOD)
    metric: str | None = Field(None, max_length=300, description=_METRIC)
    stop: _Stop | None = Field(None, description=_STOP)
    stop_after: int = Field(1, ge=1, le=1000, description=_STOP_AFTER)
    seed: int = Field(
        0,
        ge=0,
        le=MAX_SEED,
        description="with the same seed, and trials that end in the same order, the same parameters are tried",
    )
    trials: int | None = Field(
        None, ge=1, le=MAX_TRIALS, description="number of trials; default for a grid: all combinations"
    )
    parallel: int = Field(4, ge=1, le=MAX_TRIALS, description="maximum jobs running at once")

    def plan_fields(self) -> dict[str, Any]:
        return self.model_dump(include=set(SubmitSweep.model_fields) - set(SubmitJob.model_fields))


class RequestTrial(RequestModel):
    """A request for a trial, which the caller evaluates."""

    key: str = Field(
        min_length=16,
        max_length=64,
        description="chosen by the caller, such as a UUID; repeating it returns the same trial",
    )


class _TrialValue(RequestModel):
    step: float | None = Field(None, allow_inf_nan=False)
    value: float | None = Field(allow_inf_nan=False, description="value of the metric; null: not a finite number")


class ReportTrial(RequestModel):
    """New values of a trial that the caller evaluates, and its end; without both: that the caller is alive."""

    key: str = Field(max_length=64, description="key with which the trial was requested")
    before: int | None = Field(
        None,
        ge=0,
        description="number of values reported before these, so that a repeated request does not count twice",
    )
    values: Annotated[list[_TrialValue], Field(fail_fast=True, max_length=1000)] = Field(default_factory=list)
    end: Literal["complete", "failed"] | None = None
    reason: str | None = Field(None, max_length=2000, description="why it failed")


class TrialView(View):
    """One combination of parameters."""

    number: int
    job_id: str | None = Field(description="null: evaluated by a program that is not a job")
    params: dict[str, Value]
    state: Literal["waiting", "running", "complete", "pruned", "failed", "cancelled"] = Field(
        description="waiting: it runs again soon; pruned: the sweep stopped it"
    )
    value: float | None = Field(description="the last value of the metric; null: none, or not finite")
    step: float | None = Field(description="the step of that value")
    best: float | None = Field(description="the best value of the metric")
    reason: str | None = Field(
        description="why it failed, was stopped or has no value; while it is running, why it should stop"
    )
    created_at: Time
    ended_at: Time | None


class RequestedTrial(View):
    """The trial that a program outside of jobs has to evaluate."""

    trial: TrialView | None = Field(description="null: there is none now")
    retry: bool = Field(
        description="if there is no trial: true if there may be one later, false if no more trials begin"
    )
    state: str = Field(description="of the sweep")
    reason: str | None = Field(description="why it is paused or has ended")


class SweepView(TemplateView):
    """A sweep, and the options of its jobs."""

    state: Literal["running", "paused", "stopped", "finished"]
    reason: str | None = Field(
        description="why it is paused, has ended, or is not starting trials; null: it is running"
    )
    space: dict[str, Any] = Field(description=_SPACE)
    method: _Method = Field(description=_METHOD)
    metric: str | None = Field(description="metric that judges trials")
    goal: Literal["min", "max"] = Field(description="whether low or high values of it are good")
    stop: _Stop | None = Field(description=_STOP)
    stop_after: int = Field(description=_STOP_AFTER)
    seed: int
    parallel: int
    max_trials: int
    hours: float = Field(description="total hours that its trials have run")
    dollars: float = Field(description="what they cost")
    gpu_hours: float = Field(description="hours that they have run times the GPUs of each")
    counts: dict[str, int] = Field(description="number of trials in each state")
    best: TrialView | None = Field(description="the trial with the best last value of the metric, in any state")


class SweepDetails(SweepView):
    """A sweep with its trials."""

    trials: list[TrialView]


class SweepsPage(View):
    """One page of sweeps, newest first."""

    sweeps: list[SweepView]
    next: str | None = Field(description="cursor of the next page, for `after`")
