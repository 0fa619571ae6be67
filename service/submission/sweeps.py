"""Sweeps: their creation, and their rounds. Each round takes what the trials have logged, and begins new ones."""

import json
import logging
import math
import shlex
from collections.abc import Mapping, Sequence
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
from core.jobs.spec.image_options import quoted
from core.jobs.spec.job_spec import JobSpec
from core.jobs.spec.params import Value
from core.jobs.states import JobState
from core.jobs.templates.sweeps import sweeps
from core.jobs.templates.sweeps.early_stops import judge
from core.jobs.templates.sweeps.plan import Plan, make_plan
from core.jobs.templates.sweeps.space import FLAG, parse_space
from core.jobs.templates.sweeps.trial_values import NewValue, read_new
from core.jobs.tracking import metrics
from service.app_state import AppState
from service.schemas.sweeps import SubmitSweep
from service.submission.create import log_submission
from service.submission.insert import insert
from service.submission.stages import InsertedJob, PreparedJob, RequestOrigin, ValidatedJob
from service.submission.templates import insert_new, prepare_first, prepare_next
from service.submission.validation import check_idempotency_key, check_project_name

if TYPE_CHECKING:
    from core.jobs.templates.sweeps.search import Search

logger = logging.getLogger(__name__)

MAX_FAILURES = 5  # trials that fail one after the other before a sweep pauses
MAX_HISTORY = 1000  # values of a trial by which it may be stopped
_NAMED = 5  # metrics in a message
_OF_SWEEPS = ("name", "project", "project_id", "command", "machine_type")  # what a sweep without jobs may have, too


def create(
    app_state: AppState, origin: RequestOrigin, request: SubmitSweep, upload: BinaryIO | None
) -> tuple[str, bool]:
    """Create a sweep, and begin it. Returns its id, and whether it was created now, not before with its key.

    `upload`: the archive of its workspace, or None; stored only if the rest is valid.
    """
    check_idempotency_key(origin.idempotency_key)
    plan = plan_of(request).to_json()
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


def plan_of(request: SubmitSweep) -> Plan:
    """Check what a new sweep tries."""
    fields = request.plan_fields() | ({} if request.command else {"parallel": 0})
    plan = make_plan(**fields, has_ceiling=bool(request.model_fields_set & {"max_cost", "max_gpu_hours"}))
    _check_words(request.command, request.space)
    return plan


def _spec_without_jobs(app_state: AppState, request: SubmitSweep, *, uploaded: bool) -> dict[str, Any]:
    """Check a sweep whose trials are evaluated by programs of one's own."""
    of_jobs = request.model_fields_set - {*request.plan_fields(), *_OF_SWEEPS} | request.model_fields_set & {"parallel"}
    if of_jobs or uploaded:
        name = to_camel(min(of_jobs, default="workspace"))
        raise SpecInvalid(
            f"{name} applies to trials that are jobs, but without a command trials are not jobs. Give command and "
            f"machineType, or leave {name} out.",
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
    for insertion in inserted:
        log_submission(insertion)
    return True


class Round:
    """The changes of one round of a sweep; until they are stored, in memory alone."""

    def __init__(self, session: Session, sweep: Sweep) -> None:
        self.sweep = sweep
        self.plan = Plan.from_json(sweep.plan)
        self.trials = sweeps.trials(session, sweep.id)
        for trial in self.trials:
            # Otherwise a query would first write what this round changes, in a transaction that reads.
            session.expunge(trial)
        self.outcome: dict[str, Any] = {}  # new values of the sweep's columns
        self._updated: dict[int, SweepTrial] = {}
        self._stops: dict[str, str] = {}  # why jobs are stopped, by their ids
        self._starting: list[SweepTrial] = []  # whose jobs this round inserts
        self._search: Search | None = None

    @property
    def changed(self) -> bool:
        return bool(self.outcome or self._updated or self._stops or self._starting)

    @property
    def state(self) -> str:
        return str(self.outcome.get("state", self.sweep.state))

    def search(self) -> "Search":
        if self._search is None:
            from core.jobs.templates.sweeps.search import Search  # noqa: PLC0415 - it loads Optuna, which only sweeps need

            self._search = Search(self.plan, self.trials)
        return self._search

    def observe(self, session: Session) -> None:
        """Take the values and the ends of the trials that run."""
        running = {trial.job_id: trial for trial in self.trials if trial.state == "running" and trial.job_id}
        jobs = sweeps.jobs(session, list(running.values()))  # before the values, so that those of an ended job are all
        failures = self.sweep.failures
        for job_id, job in jobs.items():
            trial, more = running[job_id], False
            if self.plan.metric is not None:
                values, more = read_new(session, trial, self.plan.metric)
                self.take_values(trial, values, judged=not (job.ended or more))
            if job.ended and not more:
                failures = self._end(session, trial, job, failures)
        if failures != self.sweep.failures:
            self.outcome["failures"] = failures
        over = sweeps.over_ceiling(session, self.sweep)
        if over is not None and self.state == "running":
            self._end_by_ceiling(over, session.scalars(select(now())).one())

    def take_values(self, trial: SweepTrial, values: Sequence[NewValue], *, judged: bool) -> None:
        """Take new values of a trial; `judged`: it may be stopped for them."""
        if not values:
            return
        self._updated[trial.number] = trial
        finite = [new.value if new.value is not None and math.isfinite(new.value) else None for new in values]
        trial.step, trial.value = values[-1].step, finite[-1]
        for value in finite:
            trial.best = self.plan.better(trial.best, value)
        if self.plan.stop is None:
            return
        seen = len(trial.history)
        taken = [value for value, new in zip(finite, values, strict=True) if not new.repeated]
        trial.history = [*trial.history, *taken][:MAX_HISTORY]
        if judged and trial.reason is None:
            trial.reason = judge(self.plan, trial, self.trials, seen)
            if trial.reason is not None and trial.job_id is not None:
                self._stops[trial.job_id] = trial.reason

    def _end(self, session: Session, trial: SweepTrial, job: Job, failures: int) -> int:
        """Close a trial whose job has ended; return how many trials have now failed one after the other."""
        state, why = "cancelled", None
        if job.state is JobState.SUCCEEDED:
            state, why = self.end_state(trial, metrics.last_values(session, [job.id]).get(job.id, {}))
        elif job.reason == "cost_limit":
            state, why = "pruned", reason_message(job.reason, job.reason_detail)
        elif trial.reason is not None:
            state = "pruned"
        elif job.state is JobState.FAILED:
            state, why = "failed", reason_message(job.reason or "internal_error", job.reason_detail)
        return self.close(trial, (state, why), job.finished_at, failures)

    def close(self, trial: SweepTrial, outcome: tuple[str, str | None], at: datetime | None, failures: int) -> int:
        """Close a trial with a state and a reason; return how many have now failed one after the other."""
        state, why = outcome
        if why is not None or state == "complete":
            trial.reason = why
        trial.state, trial.ended_at = state, at
        self._updated[trial.number] = trial
        if state == "failed" and failures + 1 >= MAX_FAILURES and self.sweep.state == "running":
            last = f"trial {trial.number}" if trial.job_id is None else f"job {trial.job_id}"
            self.outcome |= {
                "state": "paused",
                "reason": (
                    f"{failures + 1} consecutive trials failed, the last one being {last}: {why} Fix the cause, "
                    "then resume the sweep, which runs them again, or create another."
                ),
            }
        return failures + 1 if state == "failed" else failures if state == "cancelled" else 0

    def end_state(self, trial: SweepTrial, logged: Mapping[str, float]) -> tuple[str, str | None]:
        """Return the state of a trial that has succeeded, and why it has no value; `logged`: all its metrics."""
        metric = self.plan.metric
        if metric is None or trial.value is not None:
            return "complete", None
        if trial.read_offsets:
            return "complete", f"Its last value of {metric} is not a finite number."
        if trial.job_id is None:
            return "failed", f"It reported no value of {metric}. Report one with trial.report(value)."
        others = ", ".join(list(logged)[:_NAMED]) + (", …" if len(logged) > _NAMED else "")
        why = f"It logged no value of {quoted(metric)}, the sweep's metric; it logged {others or 'no metrics'}."
        if not logged:
            named = f"{metric}=…" if metric.isidentifier() else f"**{{{metric!r}: …}}"
            why = f"{why} Log it with gradient_jobs.log(step=…, {named})."
        if self.state == "running" and not any(trial.read_offsets for trial in self.trials):
            self.outcome["reason"] = f"No trial has logged {quoted(metric)} so far. Trial {trial.number}: {why}"
        return "failed", why

    def _end_by_ceiling(self, over: str, at: datetime) -> None:
        self.outcome |= {"state": "finished", "reason": f"The ceiling is spent: {over}."}
        why = f"the ceiling is spent: {over}"
        for trial in self.trials:
            if trial.state == "waiting":
                self.close(trial, ("cancelled", why), at, 0)
            elif trial.state == "running" and trial.job_id is None:  # its program learns it when it next reports
                self.close(trial, ("pruned", why), at, 0)
            elif trial.state == "running" and trial.job_id not in self._stops:
                trial.reason = trial.reason or why
                self._updated[trial.number] = trial
                self._stops[trial.job_id or ""] = trial.reason

    def decide(self) -> None:
        """Choose the trials that begin now, or end the sweep."""
        waiting = [trial for trial in self.trials if trial.state == "waiting"]
        running = [trial.job_id for trial in self.trials if trial.state == "running"]
        count = len(self.trials)
        if count >= self.plan.trials and not running and not waiting and self.state in {"running", "paused"}:
            failed = sum(trial.state == "failed" for trial in self.trials)
            again = (
                f" {failed:,} failed: `gradient-cli sweeps resume {self.sweep.id}` runs them again." if failed else ""
            )
            self.outcome |= {"state": "finished", "reason": f"All {count:,} trials have ended.{again}"}
        if self.state != "running":
            return
        free = self.plan.parallel - sum(job_id is not None for job_id in running)
        self._starting = waiting[: max(0, free)]
        self._search = None  # with what this round has found
        for number in range(count, min(self.plan.trials, count + free - len(self._starting))):
            params = self.search().suggest(number)
            self._starting.append(sweeps.new_trial(self.sweep.id, number, params, self.sweep.created_at))
        if self._starting:
            self.outcome.setdefault("reason", None)  # what refused trials before is over

    def prepare(self, app_state: AppState) -> list[PreparedJob]:
        """Check the jobs of the trials that begin; none, and the sweep pauses, if they are refused."""
        if not self._starting:
            return []
        spec, prepared = self.sweep.spec, []
        try:
            first = prepare_next(app_state, self.sweep, spec, idempotency_key="")
        except StoreUnavailable:
            raise
        except GradientError as error:
            self._refuse(error)
            return []
        with app_state.database.read() as session:
            index = sweeps.next_index(session, self.sweep.id)
        for number, trial in enumerate(self._starting, index):
            changed = replace(spec, params=spec.params | trial.params, name=spec.name and f"{spec.name}[{number}]")
            key = f"{self.sweep.id} {number}"
            member = ArrayMember(self.sweep.id, number, as_options(trial.params, self.plan.space), None)
            prepared.append(replace(first, idempotency_key=key, array=member, spec=changed))
        return prepared

    def _refuse(self, error: GradientError) -> None:
        self._starting = []
        passes = isinstance(error, LimitReached | StorageFull)
        self.outcome |= {"state": "running" if passes else "paused", "reason": error.message}

    def store(self, session: Session, app_state: AppState, prepared: list[PreparedJob]) -> list[InsertedJob]:
        for trial in self._updated.values():
            session.merge(trial)
        session.flush()
        for job_id, cause in self._stops.items():
            lifecycle.request_stop(session, job_id, sweep_cause=cause)
        try:
            with session.begin_nested():
                inserted = [insert(session, app_state, job) for job in prepared]
        except (GradientError, DataError) as error:
            self._refuse(error if isinstance(error, GradientError) else GradientError(str(error.orig)))
            late = sweeps.get(session, self.sweep.id)
            late.state, late.reason = self.outcome["state"], self.outcome["reason"]
            return []
        for trial, insertion in zip(self._starting, inserted, strict=True):
            trial.job_id, trial.created_at, trial.state = insertion.job.id, insertion.job.created_at, "running"
            session.merge(trial)
        return inserted


def as_options(params: Mapping[str, Value], space: Mapping[str, object]) -> str:
    """Return parameters as the options of a command: `--lr=0.01 --opt=adam --amp --no-bias`."""
    options = []
    for name, value in params.items():
        if not isinstance(value, bool):
            options.append(f"--{name}={value}")
        elif value or str(space[name]).strip() != FLAG:
            options.append(f"--{name}" if value else f"--no-{name}")
    return (shlex.join if any(" " in option for option in options) else " ".join)(options)


def _check_words(command: str, space: Mapping[str, Any]) -> None:
    """Refuse values that a shell would split in the command."""
    for name, values in parse_space(space).items():
        split = (
            [value for value in values if isinstance(value, str) and " " in value] if isinstance(values, tuple) else []
        )
        if split and "GRADIENT_ARRAY_VALUE" in command:
            raise SpecInvalid(
                f"{quoted(split[0])} has a space, so the shell would split $GRADIENT_ARRAY_VALUE there. Leave "
                "$GRADIENT_ARRAY_VALUE out of the command, and let the program read $GRADIENT_PARAMS, which is "
                "JSON.",
                field=f"space.{name}",
            )
