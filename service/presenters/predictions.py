from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.catalogue.machine_types import MachineType
from core.comparison.bottleneck import judge
from core.comparison.corrections import Experience, find_experience
from core.comparison.hyperparameter_carry_over import carry_over, missing_hyperparameters
from core.comparison.measurement import RunFigures, measure_run
from core.comparison.peaks import HALF, SINGLE, Peaks, peaks_of_run
from core.comparison.prediction import METHOD, Estimate, Prediction, Source, decline, missing_figures, predict
from core.db.database import now
from core.db.models.jobs import Job
from core.formatting import format_dollars, format_duration
from core.jobs.tracking import metrics
from service.app_state import AppState
from service.schemas.comparisons import BottleneckView, EstimateView, PredictedMachine, PredictionView

_FEWEST_TO_CHOOSE, _NAMED = 2, 3

Precision = Literal["float32", "mixed"]
_BITS: dict[Precision, int] = {"float32": SINGLE, "mixed": HALF}


def bottleneck_view(app_state: AppState, run: RunFigures, machine_type: str, *, simulated: bool) -> BottleneckView:
    run, peaks, _ = _with_peaks(app_state, run, machine_type, simulated=simulated)
    return BottleneckView.model_validate(judge(run, peaks))


def can_predict(session: Session, job: Job) -> bool:
    """Return whether a job has reported what its estimates on other machines are made from."""
    reported = metrics.last_values(session, [job.id]).get(job.id, {}).keys()
    if not reported >= {"flops_per_step", "bytes_per_step"}:  # of most jobs, which are not measured for this
        return False
    return not missing_figures(measure_run(session, job, session.scalars(select(now())).one()))


def prediction_view(
    session: Session, app_state: AppState, job: Job, wanted: Sequence[str], precision: Precision | None
) -> PredictionView:
    """Measure a job, and predict it on machine types; `precision`: None: that of the job."""
    bits = None if precision is None else _BITS[precision]
    targets = [app_state.catalogue.get(name) for name in wanted] or list(app_state.catalogue)
    measured = measure_run(session, job, session.scalars(select(now())).one())
    run, peaks, ran_on = _with_peaks(app_state, measured, job.machine_type, simulated=job.simulated)
    bottleneck = BottleneckView.model_validate(judge(run, peaks))
    stands_for = job.machine_type if job.simulated else None
    source = Source(ran_on.name if ran_on else None, peaks, bottleneck.kind, stands_for)
    missing = missing_figures(run)
    experience = Experience([]) if missing else find_experience(session, app_state.catalogue)
    machines = [_machine_view(run, source, target, bits, experience) for target in targets]
    machines.sort(key=lambda machine: machine.seconds.value if machine.seconds else float("inf"))
    reasons = [] if missing else _join_reasons(machines)
    return PredictionView.of(
        job,
        job_id=job.id,
        steps_per_second=run.steps_per_second,
        seconds=run.seconds,
        cost=run.seconds * job.price_per_hour / 3600,
        estimated=True,
        method=METHOD,
        bottleneck=bottleneck,
        missing=missing,
        missing_hyperparameters=missing_hyperparameters(run),
        machines=machines,
        results=list(_results(machines, stands_for)),
        notes=[
            *_old_prices(machines),
            *dict.fromkeys(text for machine in machines for text in machine.notes),
            *reasons,
        ],
    )


def _results(machines: Iterable[PredictedMachine], stand_in_for: str | None) -> Iterator[str]:
    """Say which machine type is probably first in time and in cost, and how many may be instead.

    What costs nothing has no place by cost, and one with too little memory none; nor has one that was simulated.
    """
    estimates = [
        (machine, machine.seconds, machine.cost)
        for machine in machines
        if machine.seconds and machine.cost and machine.fits is not False and machine.machine_type != stand_in_for
    ]
    by_time = [(seconds, machine, format_duration) for machine, seconds, _ in estimates]
    by_cost = [(cost, machine, format_dollars) for machine, _, cost in estimates if cost.value]
    cheapest = "Cheapest" if len(by_cost) == len(estimates) else "Cheapest with a known price"
    for word, judged in (("Fastest", by_time), (cheapest, by_cost)):
        if len(judged) < _FEWEST_TO_CHOOSE:
            continue
        estimate, first, form = min(judged, key=lambda estimated: estimated[0].value)
        others = [
            machine.machine_type for other, machine, _ in judged if machine is not first and other.low <= estimate.high
        ]
        rest = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        sure = f"could also be {', '.join(others[:_NAMED])}{rest}" if others else "all others are outside its interval"
        interval = f"{form(estimate.low)} to {form(estimate.high)}"
        yield f"{word} by estimate: {first.machine_type}, {form(estimate.value)} ({interval}); {sure}."


def _join_reasons(machines: Iterable[PredictedMachine]) -> list[str]:
    """Return each reason for which nothing is estimated once, with the names of its machine types."""
    declined: dict[str, list[str]] = {}
    for machine in machines:
        if machine.declined is not None:
            declined.setdefault(machine.declined, []).append(machine.machine_type)
    return [f"Not estimated for {', '.join(names)}: {reason}" for reason, names in declined.items()]


def _old_prices(machines: Iterable[PredictedMachine]) -> list[str]:
    priced = [machine for machine in machines if machine.cost and machine.price_per_hour]
    old = [machine.machine_type for machine in priced if machine.price_is_old]
    which = "all" if len(old) == len(priced) > 1 else ", ".join(old)
    return [f"Prices older than six months, set your own: {which}."] if old else []


def _with_peaks(
    app_state: AppState, run: RunFigures, machine_type: str, *, simulated: bool
) -> tuple[RunFigures, Peaks | None, MachineType | None]:
    """Return the run, with its replicas where its machine can only have one, the peaks that it had, and its machine.

    A simulated machine is the CPUs of this host.
    """
    machines = {machine.name: machine for machine in app_state.catalogue}
    machine = machines.get(machine_type)
    if machine is not None and machine.replicas == 1 and run.replicas is None:
        run = replace(run, replicas=1)
    if simulated:
        host = machines.get(app_state.settings.machines.host or "")
        machine = host if host and host.kind == "cpu" else None
    return run, peaks_of_run(run, machine), machine


def _machine_view(
    run: RunFigures, source: Source, target: MachineType, bits: float | None, experience: Experience
) -> PredictedMachine:
    correction = experience.correct(source.machine_type, target.name)
    prediction = predict(run, source, target, bits=bits, correction=correction)
    carried = carry_over(run, target)
    return PredictedMachine.of(
        target,
        machine_type=target.name,
        declined=decline(run, source, target, bits=bits),
        **_estimates(run, prediction),
        carry_over=carried,
    )


def _estimates(run: RunFigures, prediction: Prediction | None) -> dict[str, Any]:
    names = ("step_seconds", "seconds", "cost", "fits", "memory_bytes", "correction")
    if prediction is None:
        return {**dict.fromkeys(names), "speedup": None, "notes": []}
    values = {name: getattr(prediction, name) for name in (*names, "notes")}
    return {**values, "speedup": _speedup(run, prediction.step_seconds)}


def _speedup(run: RunFigures, step: Estimate | None) -> EstimateView:
    if step is None or not run.steps_per_second:  # its own machine
        return EstimateView(value=1, low=1, high=1)
    measured = 1 / run.steps_per_second
    return EstimateView(value=measured / step.value, low=measured / step.high, high=measured / step.low)
