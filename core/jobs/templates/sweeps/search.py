"""The search of a sweep by Optuna, whose study is built anew from the stored trials.

To import this module takes half a second and 40 MB, so it is imported where a sweep runs.
"""

import math
from collections.abc import Sequence

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from core.db.models.sweeps import SweepTrial
from core.jobs.spec.params import Value
from core.jobs.templates.sweeps.plan import MAX_SEED, Plan
from core.jobs.templates.sweeps.space import Range, grid_point

REDUCTION = 3  # of the trials that come to a rung of ASHA, the best third goes on; the next rung is three times as far
_STATES = {"running": TrialState.RUNNING, "complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Search:
    """The trials of a sweep as a study in memory."""

    def __init__(self, plan: Plan, trials: Sequence[SweepTrial]) -> None:
        self._plan = plan
        self._space = plan.parsed_space()
        self._distributions = {name: _distribution(values) for name, values in self._space.items()}
        self._trials = {trial.number: trial for trial in trials}
        self._study = optuna.create_study(
            direction="minimize" if plan.goal == "min" else "maximize", pruner=_pruner(plan)
        )
        self._study.add_trials([self._frozen(trial) for trial in trials])
        self._places = {trial.number: place for place, trial in enumerate(trials)}

    def suggest(self, number: int) -> dict[str, Value]:
        """Choose the parameters of a new trial: by the seed, its number, and the trials before it alone."""
        if self._plan.method == "grid":
            return grid_point(self._space, number)
        self._study.sampler = _sampler(self._plan, (self._plan.seed + number * 7919) % MAX_SEED)
        return self._study.ask(self._distributions).params

    def judge(self, trial: SweepTrial, value: float | None) -> str | None:
        """Add the next value of the metric to a trial's history; return why the trial is to be stopped, or None."""
        trial.history = [*trial.history, value]
        count = len(trial.history)
        frozen = self._study.get_trials(deepcopy=False)[self._places[trial.number]]
        frozen.intermediate_values[count] = math.nan if value is None else value
        if not self._study.pruner.prune(self._study, frozen):
            return None
        if value is None:
            return f"its value {count} of {self._plan.metric} is not a finite number"
        peers = sum(len(other.history) >= count for other in self._trials.values())
        if self._plan.stop == "asha":
            return f"its value {count} of {self._plan.metric}, {value:g}, is not in the best third of {peers}"
        return f"{self._plan.metric} is {value:g} at its value {count}, worse than the median of {peers} trials"

    def _frozen(self, trial: SweepTrial) -> FrozenTrial:
        state = _STATES.get(trial.state, TrialState.FAIL)
        values = {place: math.nan if value is None else value for place, value in enumerate(trial.history, 1)}
        return create_trial(
            state=state,
            value=(trial.value or 0.0) if state is TrialState.COMPLETE else None,  # without a metric none counts
            params=trial.params,
            distributions=self._distributions,
            intermediate_values=values,
            system_attrs=dict(self._rungs(values)) if self._plan.stop == "asha" else {},
        )

    def _rungs(self, values: dict[int, float]) -> list[tuple[str, float]]:
        """Return the rungs that a trial has come to, as Optuna's pruner stores them."""
        found: list[tuple[str, float]] = []
        place = self._plan.stop_after
        while place in values:
            found.append((f"completed_rung_{len(found)}", values[place]))
            place *= REDUCTION
        return found


def _distribution(values: Range | tuple[Value, ...]) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution(values)
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def _sampler(plan: Plan, seed: int) -> BaseSampler:
    # With the constant liar, trials that still run count as bad ones, so that others are tried beside them.
    return TPESampler(seed=seed, constant_liar=True) if plan.method == "tpe" else RandomSampler(seed=seed)


def _pruner(plan: Plan) -> BasePruner:
    if plan.stop == "asha":
        return SuccessiveHalvingPruner(min_resource=plan.stop_after, reduction_factor=REDUCTION)
    if plan.stop == "median":
        return MedianPruner(n_warmup_steps=plan.stop_after)
    return NopPruner()
