"""Trials that programs of one's own evaluate: they ask for each, and report its values and its end.

Like the rounds of a sweep, each change takes the turn that it has read, and is made anew if another was quicker. The
key that a program asks with is its claim: who asks again with it gets the same trial, and once a trial has been given
to another program, since the first was silent, reports with the former key change nothing.
"""

import random
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import select

from core.db.database import now
from core.db.models.sweeps import Sweep, SweepTrial
from core.errors import StoreUnavailable, TrialNotFound
from core.jobs.templates.sweeps import sweeps
from core.jobs.templates.sweeps.trial_values import NewValue
from service.app_state import AppState
from service.schemas.sweeps import ReportTrial, RequestedTrial, TrialView
from service.submission.sweeps import Round

MAX_SILENCE = timedelta(seconds=90)  # without a report; the SDK makes one at least every 20 seconds
_TRIES = 30
_MAX_DELAY = 0.1  # seconds
_TURN = threading.Lock()  # of this process: of two changes at once, one would be made anew

T = TypeVar("T")


def request(app_state: AppState, sweep_id: str, key: str) -> RequestedTrial:
    """Return the trial of this key, one whose program is silent, or a new one; or none, if there is none now."""

    def change() -> RequestedTrial | None:
        with app_state.database.read() as session:
            sweep = sweeps.get(session, sweep_id)
            current = Round(session, sweep)
            at = session.scalars(select(now())).one()
        requested = [trial for trial in current.trials if trial.job_id is None]
        same = next((trial for trial in requested if trial.key == key), None)
        if same is not None or sweep.state != "running":
            return _requested(sweep, requested, same)
        free = (trial for trial in requested if trial.state == "waiting" or _is_silent(trial, at))
        given = next(free, None)  # which begins anew
        number = len(current.trials) if given is None else given.number
        if number >= current.plan.trials:
            return _requested(sweep, requested, None)
        params = current.search().suggest(number) if given is None else given.params
        trial = sweeps.new_trial(sweep_id, number, params, at, key=key, reported_at=at)
        with app_state.database.write() as session:
            if sweeps.take_turn(session, sweep, reason=None):
                return _requested(sweep, requested, session.merge(trial))
        return None

    return _take_turn(sweep_id, change)


def report(app_state: AppState, sweep_id: str, number: int, reported: ReportTrial) -> TrialView:
    def change() -> TrialView | None:
        with app_state.database.read() as session:
            sweep = sweeps.get(session, sweep_id)
            current = Round(session, sweep)
            at = session.scalars(select(now())).one()
        trial = next((trial for trial in current.trials if trial.number == number and trial.job_id is None), None)
        if trial is None:
            raise TrialNotFound(sweep_id, number)
        if trial.key != reported.key:
            return TrialView.of(
                trial, state="cancelled", reason="It was given to another program because this one was silent."
            )
        if trial.state != "running":
            return TrialView.of(trial)
        taken = trial.read_offsets[0] if trial.read_offsets else 0
        before = taken if reported.before is None else reported.before
        new = [NewValue(value.step, value.value) for value in reported.values[max(0, taken - before) :]]
        trial.read_offsets = [max(taken, before) + len(new)] if new else trial.read_offsets
        current.take_values(trial, new, judged=reported.end is None)
        trial.reported_at = at
        if reported.end is not None:
            outcome: tuple[str, str | None] = "failed", reported.reason or "Reported by its program."
            if trial.reason is not None:  # why it was told to stop
                outcome = "pruned", None
            elif reported.end == "complete":
                outcome = current.end_state(trial, {})
            current.outcome["failures"] = current.close(trial, outcome, at, sweep.failures)
        with app_state.database.write() as session:
            if sweeps.take_turn(session, sweep, **current.outcome):
                return TrialView.of(session.merge(trial))
        return None

    return _take_turn(sweep_id, change)


def _is_silent(trial: SweepTrial, at: datetime) -> bool:
    return trial.state == "running" and trial.reported_at is not None and trial.reported_at < at - MAX_SILENCE


def _requested(sweep: Sweep, requested: list[SweepTrial], trial: SweepTrial | None) -> RequestedTrial:
    others = sweep.state == "running" and any(other.state == "running" for other in requested)
    return RequestedTrial(
        trial=None if trial is None else TrialView.of(trial),
        retry=trial is None and (others or sweep.state == "paused"),
        state=sweep.state,
        reason=sweep.reason,
    )


def _take_turn(sweep_id: str, change: Callable[[], T | None]) -> T:
    """Make a change, anew while it returns None, since another process was quicker."""
    for number in range(_TRIES):
        if number:
            time.sleep(random.uniform(0, _MAX_DELAY))  # noqa: S311 - so that two do not meet again
        with _TURN:
            changed = change()
        if changed is not None:
            return changed
    raise StoreUnavailable(f"Sweep {sweep_id} is being changed by many other requests. Try again.")
