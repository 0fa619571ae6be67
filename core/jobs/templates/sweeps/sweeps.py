"""Sweeps in the database. `service.submission.sweeps` begins their trials."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Select, SQLColumnExpression, and_, case, func, or_, select, update
from sqlalchemy import delete as delete_rows
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Job
from core.db.models.sweeps import Sweep, SweepTrial
from core.errors import SpecInvalid
from core.jobs import lifecycle
from core.jobs.costs.amounts import cost, duration, gpu_hours, seconds_between
from core.jobs.spec.params import Value
from core.jobs.templates import templates
from core.jobs.templates.sweeps.plan import Plan
from core.security.actor import record_change

_UNENDED = and_(SweepTrial.state == "running", SweepTrial.job_id.is_not(None))

get = partial(templates.get, Sweep)


class Spent(NamedTuple):
    hours: float  # for which the trials have run
    dollars: float
    gpu_hours: float  # dollars and GPU hours are of trials that are jobs


def new_trial(
    sweep_id: str,
    number: int,
    params: Mapping[str, Value],
    at: datetime,
    *,
    state: str = "running",
    **others: Any,  # noqa: ANN401 - column values
) -> SweepTrial:
    """Return a trial of which nothing has been logged, also in place of one with its number."""
    empty: dict[str, Any] = dict.fromkeys(
        ("job_id", "value", "step", "best", "key", "reported_at", "reason", "ended_at")
    )
    empty |= {"history": [], "judged": 0, "read_attempt": 0, "read_offsets": []}
    named = {"sweep_id": sweep_id, "number": number, "params": dict(params), "created_at": at, "state": state}
    return SweepTrial(**empty | named | others)


def find_active(session: Session) -> list[str]:
    """Return the ids of the sweeps that may begin a trial, or of which a job has not ended."""
    unended = select(SweepTrial.number).where(SweepTrial.sweep_id == Sweep.id, _UNENDED).exists()
    return list(session.scalars(select(Sweep.id).where(or_(Sweep.state == "running", unended)).order_by(Sweep.seq)))


def trials(session: Session, sweep_id: str) -> list[SweepTrial]:
    return list(session.scalars(select(SweepTrial).where(SweepTrial.sweep_id == sweep_id).order_by(SweepTrial.number)))


def counts(session: Session, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of trials of each of these sweeps in each state."""
    counts_by_sweep: dict[str, dict[str, int]] = {sweep_id: {} for sweep_id in ids}
    grouped = select(SweepTrial.sweep_id, SweepTrial.state, func.count()).where(SweepTrial.sweep_id.in_(ids))
    for sweep_id, state, count in session.execute(grouped.group_by(SweepTrial.sweep_id, SweepTrial.state)):
        counts_by_sweep[sweep_id][state] = count
    return counts_by_sweep


def best_trial(session: Session, sweep_id: str, plan: Plan) -> SweepTrial | None:
    """Return the trial with the best last value of the metric, whatever its state; of equal ones the first."""
    value = SweepTrial.value.asc() if plan.goal == "min" else SweepTrial.value.desc()
    valued = SweepTrial.sweep_id == sweep_id, SweepTrial.value.is_not(None)
    return session.scalar(select(SweepTrial).where(*valued).order_by(value, SweepTrial.number).limit(1))


def jobs(session: Session, some: Sequence[SweepTrial]) -> dict[str, Job]:
    """Return the jobs of trials, in the order in which they ended."""
    ids = [trial.job_id for trial in some if trial.job_id is not None]
    jobs_ended = session.scalars(select(Job).where(Job.id.in_(ids)).order_by(Job.finished_at, Job.seq))
    return {job.id: job for job in jobs_ended}


def spent(session: Session, sweep_id: str) -> Spent:
    """Return what the trials of a sweep have taken."""
    dialect = session.get_bind().dialect.name
    totals = select(func.sum(duration(dialect)), func.sum(cost(dialect)), func.sum(gpu_hours(dialect)))
    of_jobs, dollars, hours_of_gpus = session.execute(totals.where(Job.array_id == sweep_id)).one()
    of_programs = session.scalar(_ran_in_programs(dialect).where(SweepTrial.sweep_id == sweep_id))
    return Spent(((of_jobs or 0.0) + (of_programs or 0.0)) / 3600, dollars or 0.0, hours_of_gpus or 0.0)


def _ran_in_programs(dialect: str) -> Select[float]:
    """Return the query for the seconds of trials that programs evaluate."""
    ran = seconds_between(dialect, SweepTrial.created_at, func.coalesce(SweepTrial.ended_at, now()))
    return select(func.sum(ran)).where(SweepTrial.job_id.is_(None))


def orders(session: Session) -> dict[str, SQLColumnExpression[Any]]:
    """Return what a list of sweeps can be ordered by."""
    dialect = session.get_bind().dialect.name

    def total(amount: SQLColumnExpression[Any]) -> SQLColumnExpression[Any]:
        return func.coalesce(select(func.sum(amount)).where(Job.array_id == Sweep.id).scalar_subquery(), 0.0)

    of_programs = _ran_in_programs(dialect).where(SweepTrial.sweep_id == Sweep.id).scalar_subquery()
    of_sweep = SweepTrial.sweep_id == Sweep.id
    lowest, highest, trials = (
        select(value).where(of_sweep).scalar_subquery()
        for value in (func.min(SweepTrial.value), func.max(SweepTrial.value), func.count(SweepTrial.number))
    )
    return {
        "name": templates.shown_name(Sweep),
        "best": case((Sweep.plan["goal"].as_string() == "min", lowest), else_=highest),
        "time": total(duration(dialect)) + func.coalesce(of_programs, 0.0),
        "cost": total(cost(dialect)),
        "jobs": trials,
        "created": Sweep.seq,
    }


def over_ceiling(session: Session, sweep: Sweep) -> str | None:
    """Return how the ceiling of a sweep is spent; None: it is not, or there is none."""
    if sweep.spec.max_cost is None and sweep.spec.max_gpu_hours is None:
        return None
    stopped = select(Job.id).where(Job.array_id == sweep.id, Job.reason == "cost_limit", Job.finished_at.is_not(None))
    ended = session.scalar(stopped.limit(1)) is not None
    totals, given = spent(session, sweep.id), sweep.spec
    if given.max_cost is not None and (ended or totals.dollars >= given.max_cost):
        return f"its trials have cost ${totals.dollars:.4g}, and maxCost is ${given.max_cost:g}"
    if given.max_gpu_hours is not None and (ended or totals.gpu_hours >= given.max_gpu_hours):
        return f"its trials have taken {totals.gpu_hours:.3g} GPU hours, and maxGpuHours is {given.max_gpu_hours:g}"
    return None


def next_index(session: Session, sweep_id: str) -> int:
    """Return the index of the next job: a trial that runs again has a job with another index."""
    last = session.scalar(select(func.max(Job.array_index)).where(Job.array_id == sweep_id))
    return 0 if last is None else last + 1


def take_turn(session: Session, sweep: Sweep, **values: Any) -> bool:  # noqa: ANN401 - column values
    """Change a sweep as it was read; False if another process has changed it, or one of its trials, meanwhile."""
    if values.get("state", "running") != "running":
        values["to_notify"] = True
    mine = update(Sweep).where(Sweep.id == sweep.id, Sweep.turn == sweep.turn).values(turn=Sweep.turn + 1, **values)
    taken = mine.returning(Sweep.seq)
    return session.scalar(taken, execution_options={"synchronize_session": False}) is not None


def pause(session: Session, sweep_id: str) -> Sweep:
    """Begin no more trials; those that run go on."""
    return _change(session, sweep_id, "paused", ("running",), "Paused by its owner.")


def resume(session: Session, sweep_id: str) -> Sweep:
    """Let a sweep go on; its trials that failed or were cancelled wait to run again."""
    sweep = get(session, sweep_id, lock=True)
    again = [trial for trial in trials(session, sweep_id) if trial.state in {"failed", "cancelled"}]
    if over := over_ceiling(session, sweep):
        raise SpecInvalid(f"The ceiling of sweep {sweep_id} is spent: {over}. Create another sweep.", field="sweepId")
    if sweep.state in {"running", "finished"} and not again:
        what = "has ended" if sweep.state == "finished" else "is running"
        raise SpecInvalid(
            f"Sweep {sweep_id} {what}, and none of its trials failed or was cancelled, so there is nothing to resume.",
            field="sweepId",
        )
    for trial in again:
        session.merge(new_trial(sweep_id, trial.number, trial.params, trial.created_at, state="waiting"))
    return _change(session, sweep_id, "running", ("running", "paused", "stopped", "finished"), None)


def stop(session: Session, sweep_id: str) -> Sweep:
    """Begin no more trials, and stop those that run."""
    sweep = _change(session, sweep_id, "stopped", ("running", "paused"), "Stopped by its owner.")
    for trial in trials(session, sweep_id):
        if trial.state == "running" and trial.job_id is not None:
            lifecycle.request_stop(session, trial.job_id)
        elif trial.state in {"running", "waiting"}:  # a program learns it when it next reports
            trial.state, trial.reason, trial.ended_at = "cancelled", sweep.reason, session.scalars(select(now())).one()
    session.flush()
    return sweep


def _change(session: Session, sweep_id: str, state: str, before: Sequence[str], reason: str | None) -> Sweep:
    sweep = get(session, sweep_id, lock=True)
    if sweep.state in before:
        sweep.state, sweep.reason, sweep.turn, sweep.failures = state, reason, sweep.turn + 1, 0
        sweep.to_notify = True if state == "stopped" else None
        record_change(session, f"sweep_{state}", sweep_id)
        session.flush()
    return sweep


def delete(session: Session, sweep_id: str) -> None:
    templates.delete(Sweep, session, sweep_id)
    session.execute(delete_rows(SweepTrial).where(SweepTrial.sweep_id == sweep_id))


def marked(session: Session) -> list[Sweep]:
    """Return the sweeps that have ended or paused, and of which receivers may have to be notified."""
    return list(session.scalars(select(Sweep).where(Sweep.to_notify.is_not(None)).order_by(Sweep.seq)))


def unmark(session: Session, sweep: Sweep) -> bool:
    """Take a sweep as it was read; False if it has changed, or another process took it, meanwhile."""
    mine = update(Sweep).where(Sweep.id == sweep.id, Sweep.turn == sweep.turn, Sweep.to_notify.is_not(None))
    taken = mine.values(to_notify=None).returning(Sweep.seq)
    return session.scalar(taken, execution_options={"synchronize_session": False}) is not None
