"""Sweeps: their creation, and their rounds. Each round takes what the trials have logged, and begins new ones."""

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic.alias_generators import to_camel
from sqlalchemy import select
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Job
from core.db.models.sweeps import Sweep, SweepTrial
from core.errors import GradientError, LimitReached, SpecInvalid, StorageFull, StoreUnavailable
from core.ids import new_id
from core.jobs import lifecycle, queries, submission
from core.jobs.reasons import reason_message
from core.jobs.spec.arrays import ArrayMember
from core.jobs.spec.job_spec import JobSpec
from core.jobs.spec.params import Value
from core.jobs.states import JobState
from core.jobs.templates.sweeps import sweeps
from core.jobs.templates.sweeps.plan import Plan, make_plan
from service.deps import AppState
from service.schemas.sweeps import SubmitSweep
from service.submission.create import log_submission
from service.submission.insert import InsertedJob, PreparedJob, RequestOrigin, insert
from service.submission.templates import insert_new, prepare_first, prepare_next
from service.submission.validation import ValidatedJob, check_idempotency_key, check_project_name

if TYPE_CHECKING:
    from core.jobs.templates.sweeps.search import Search

logger = logging.getLogger(__name__)

MAX_FAILURES = 5  # trials that fail one after the other before a sweep pauses
MAX_HISTORY = 1000  # values of a trial by which it may be stopped
_OF_SWEEPS = ("name", "project", "project_id", "command", "machine_type")  # what a sweep without jobs may have, too


def create(
    app_state: AppState, origin: RequestOrigin, request: SubmitSweep, upload: BinaryIO | None
) -> tuple[str, bool]:
    """Create a sweep, and begin it. Returns its id, and whether it was created now, not before with its key.

    `upload`: the archive of its workspace, or None; stored only if the rest is valid.
    """
    check_idempotency_key(origin.idempotency_key)
    fields = request.plan_fields() | ({} if request.command else {"parallel": 0})
    plan = make_plan(**fields).to_json()
    valid: ValidatedJob | None = None
    if request.command:
        valid = prepare_first(app_state, origin, request, upload, "sweep")
        spec = valid.spec.to_json()
    else:
        spec = _spec_without_jobs(app_state, request, uploaded=upload is not None)
    identity = json.dumps([plan, request.project, request.project_id, spec], sort_keys=True)
    with app_state.database.write() as session:
        made = Sweep(
            id=new_id("s"),
            submitted_by=origin.key_id,
            idempotency_key=origin.idempotency_key,
            request_sha256=submission.request_digest(b"sweep", identity.encode()),
            plan=plan,
            spec_json=spec,
            created_at=session.scalars(select(now())).one(),
            state="running",
        )
        sweep_id, created = insert_new(session, app_state, request, made, valid)
    if created:
        advance(app_state, sweep_id)
    return sweep_id, created


def _spec_without_jobs(app_state: AppState, request: SubmitSweep, *, uploaded: bool) -> dict[str, Any]:
    """Check a sweep whose trials are evaluated by programs of one's own."""
    of_jobs = request.model_fields_set - {*request.plan_fields(), *_OF_SWEEPS} | request.model_fields_set & {"parallel"}
    if of_jobs or uploaded:
        name = to_camel(min(of_jobs, default="workspace"))
        raise SpecInvalid(
            f"{name} is for trials that are jobs, and without a command none is. Give command and machineType, or "
            f"leave {name} out.",
            field=name,
        )
    if request.project is not None:
        check_project_name(request.project)
    if request.project_id is not None:
        with app_state.database.read() as session:
            queries.project(session, request.project_id)
    return JobSpec(machine_type="", command="", name=request.name).to_json()


def advance_all(app_state: AppState) -> int:
    """Make a round of each active sweep, and return their number. Safe in any number of processes at once."""
    with app_state.database.read() as session:
        active = sweeps.find_active(session)
    for sweep_id in active:
        try:
            advance(app_state, sweep_id)
        except StoreUnavailable:
            raise
        except Exception:  # one sweep must not stop the others
            logger.exception("sweep_failed", extra={"sweep_id": sweep_id})
    return len(active)


def advance(app_state: AppState, sweep_id: str) -> bool:
    """Make a round of a sweep; False if nothing was to do, or another process was quicker.

    All that it changes is one transaction, for which it takes the turn that it has read: killed anywhere, and with
    any number of processes, no trial is lost or has two jobs.
    """
    with app_state.database.read() as session:
        sweep = sweeps.get(session, sweep_id)
        current = Round(session, sweep)
        current.observe(session)
    current.decide()
    if not current.changed:
        return False
    prepared = current.prepare(app_state)
    with app_state.database.write() as session:
        if not sweeps.take_turn(session, sweep, **current.outcome):
            return False
        inserted = current.store(session, app_state, prepared)
    for each in inserted:
        log_submission(each)
    return True


class Round:
    """The changes of one round of a sweep; until they are stored, in memory alone."""

    def __init__(self, session: Session, sweep: Sweep) -> None:
        self.sweep = sweep
        self.plan = Plan.from_json(sweep.plan)
        self.trials = sweeps.trials(session, sweep.id)
        for trial in self.trials:
            session.expunge(
                trial
            )  # else a query would first write what this round changes, in a transaction that reads
        self.outcome: dict[str, Any] = {}  # new values of the sweep's columns
        self._updated: dict[int, SweepTrial] = {}
        self._stops: dict[str, str] = {}  # why jobs are stopped, by their ids
        self._new: dict[int, dict[str, Value]] = {}
        self._search: Search | None = None

    @property
    def changed(self) -> bool:
        return bool(self.outcome or self._updated or self._stops or self._new)

    def search(self) -> "Search":
        if self._search is None:
            from core.jobs.templates.sweeps.search import Search  # noqa: PLC0415 - it loads Optuna, which only sweeps need

            self._search = Search(self.plan, self.trials)
        return self._search

    def observe(self, session: Session) -> None:
        """Take the values and the ends of the trials that run."""
        running = {trial.job_id: trial for trial in self.trials if trial.state == "running" and trial.job_id}
        jobs = sweeps.jobs(session, list(running.values()))  # before the values, so that those of an ended job are all
        complete = {job_id: self._read(session, trial) for job_id, trial in running.items()}
        failures = self.sweep.failures
        for job_id, job in jobs.items():
            if job.ended and complete[job_id]:
                failures = self._end(running[job_id], job, failures)
        if failures != self.sweep.failures:
            self.outcome["failures"] = failures
        if self.plan.max_hours or self.plan.max_dollars:
            at = session.scalars(select(now())).one()
            self._check_budget(*sweeps.spent(session, self.sweep.id), at)

    def _read(self, session: Session, trial: SweepTrial) -> bool:
        """Take the new values of a trial; False if there are more."""
        count = 0
        for attempt, offset, step, value in (
            sweeps.new_values(session, trial, self.plan.metric) if self.plan.metric is not None else ()
        ):
            count += 1
            trial.read_attempt, trial.read_offset = attempt, offset
            if step is None or trial.step is None or step > trial.step:  # else an attempt repeats it
                self.take_value(trial, step, value)
        return count < sweeps.MOST_READ

    def take_value(self, trial: SweepTrial, step: float | None, value: float | None) -> None:
        self._updated[trial.number] = trial
        value = value if value is not None and math.isfinite(value) else None
        trial.step, trial.value, trial.best = step, value, self.plan.better(trial.best, value)
        if self.plan.stop is None or trial.reason is not None or len(trial.history) >= MAX_HISTORY:
            return
        trial.reason = self.search().judge(trial, value)
        if trial.reason is not None and trial.job_id is not None:
            self._stops[trial.job_id] = trial.reason

    def _end(self, trial: SweepTrial, job: Job, failures: int) -> int:
        """Close a trial whose job has ended; return how many trials have now failed one after the other."""
        state, why = "cancelled", None
        if job.state is JobState.SUCCEEDED:
            state, why = self.end_state(trial)
        elif trial.reason is not None:
            state = "pruned"
        elif job.state is JobState.FAILED:
            state, why = "failed", reason_message(job.reason or "internal_error", job.reason_detail)
        return self.close(trial, (state, why), job.finished_at, failures)

    def close(self, trial: SweepTrial, outcome: tuple[str, str | None], at: datetime | None, failures: int) -> int:
        """Close a trial with a state and a reason; return how many have now failed one after the other."""
        state, why = outcome
        trial.state, trial.reason, trial.ended_at = state, why or trial.reason, at
        self._updated[trial.number] = trial
        if state == "failed" and failures + 1 >= MAX_FAILURES and self.sweep.state == "running":
            last = f"trial {trial.number}" if trial.job_id is None else f"job {trial.job_id}"
            self.outcome |= {
                "state": "paused",
                "reason": f"{failures + 1} trials failed one after the other; the last is {last}: {why} Mend the "
                "cause, then resume the sweep, or create another.",
            }
        return failures + 1 if state == "failed" else failures if state == "cancelled" else 0

    def end_state(self, trial: SweepTrial) -> tuple[str, str | None]:
        """Return the state of a trial that has succeeded, and why it counts as failed."""
        metric = self.plan.metric
        call = f"gradient_jobs.log(step, {{{metric!r}: …}})" if trial.job_id else "trial.report(value)"
        if metric is None or trial.value is not None:
            return "complete", None
        if trial.best is not None:
            return "failed", f"Its last value of {metric} is not a finite number."
        return "failed", f"It logged no finite value of {metric}. Log it: {call}."

    def _check_budget(self, hours: float, dollars: float, at: datetime) -> None:
        plan = self.plan
        over = None
        if plan.max_hours is not None and hours >= plan.max_hours:
            over = f"its trials have run for {hours:.3g} hours, and {plan.max_hours:g} were allowed"
        if plan.max_dollars is not None and dollars >= plan.max_dollars:
            over = f"its trials have cost ${dollars:.4g}, and ${plan.max_dollars:g} were allowed"
        if over is None or self.sweep.state != "running":
            return
        self.outcome |= {"state": "finished", "reason": f"The budget is spent: {over}."}
        for trial in self.trials:
            if trial.state == "running" and trial.job_id is None:  # its program learns it when it next reports
                self.close(trial, ("pruned", f"the budget is spent: {over}"), at, 0)
            elif trial.state == "running" and trial.job_id not in self._stops:
                trial.reason = trial.reason or f"the budget is spent: {over}"
                self._updated[trial.number] = trial
                self._stops[trial.job_id or ""] = trial.reason

    def decide(self) -> None:
        """Choose the parameters of new trials, or end the sweep."""
        if self.outcome.get("state", self.sweep.state) != "running":
            return
        running = [trial.job_id for trial in self.trials if trial.state == "running"]
        left = self.plan.trials - len(self.trials)
        if left <= 0 and not running:
            self.outcome |= {"state": "finished", "reason": f"All {len(self.trials):,} trials have ended."}
        free = min(left, self.plan.parallel - sum(job_id is not None for job_id in running))
        if free > 0:
            self._search = None  # with what this round has found
            for number in range(len(self.trials), len(self.trials) + free):
                self._new[number] = self.search().suggest(number)
            self.outcome["reason"] = None  # what refused trials before is over

    def prepare(self, app_state: AppState) -> list[PreparedJob]:
        """Check the jobs of the new trials; none, and the sweep pauses, if they are refused."""
        if not self._new:
            return []
        spec, found = self.sweep.spec, []
        try:
            first = prepare_next(app_state, self.sweep, spec, idempotency_key="")
        except StoreUnavailable:
            raise
        except GradientError as error:
            self._refuse(error)
            return []
        for number, params in self._new.items():
            changed = replace(spec, params=spec.params | params, name=spec.name and f"{spec.name}[{number}]")
            origin = replace(first.origin, idempotency_key=f"{self.sweep.id} {number}")
            member = ArrayMember(self.sweep.id, number, _as_options(params), None)
            found.append(replace(first, origin=origin, array=member, valid=replace(first.valid, spec=changed)))
        return found

    def _refuse(self, error: GradientError) -> None:
        self._new = {}
        passes = isinstance(error, LimitReached | StorageFull)
        self.outcome |= {"state": "running" if passes else "paused", "reason": error.message}

    def take_reported(self, trial: SweepTrial, values: Iterable[tuple[float, float | None]]) -> None:
        """Take the steps and values that a program of one's own reports; those of steps before were taken already."""
        for step, value in values:
            if trial.step is None or step > trial.step:
                self.take_value(trial, step, value)

    def store(self, session: Session, app_state: AppState, prepared: list[PreparedJob]) -> list[InsertedJob]:
        for trial in self._updated.values():
            session.merge(trial)
        session.flush()
        for job_id, cause in self._stops.items():
            lifecycle.request_stop(session, job_id, sweep_cause=cause)
        try:
            with session.begin_nested():
                inserted = [insert(session, app_state, each) for each in prepared]
        except (GradientError, DataError) as error:
            self._refuse(error if isinstance(error, GradientError) else GradientError(str(error.orig)))
            late = sweeps.get(session, self.sweep.id)
            late.state, late.reason = self.outcome["state"], self.outcome["reason"]
            return []
        for (number, params), each in zip(self._new.items(), inserted, strict=True):
            session.add(new_trial(self.sweep.id, number, params, each.job.created_at, job_id=each.job.id))
        return inserted


def new_trial(
    sweep_id: str, number: int, params: Mapping[str, Value], at: datetime, **others: str | datetime
) -> SweepTrial:
    return SweepTrial(
        sweep_id=sweep_id, number=number, params=dict(params), state="running", history=[], created_at=at, **others
    )


def _as_options(params: Mapping[str, Value]) -> str:
    """Return parameters as the options of a command: `--lr=0.01 --opt=adam`."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in params.items()}
    return " ".join(f"--{name}={text}" for name, text in texts.items())
