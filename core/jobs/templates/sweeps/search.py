"""The search of a sweep: Optuna chooses parameters, over a study that is built anew from the stored trials.

To import this module takes half a second and 40 MB, so it is imported where a sweep runs.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from core.db.models.sweeps import SweepTrial
from core.jobs.spec.params import Value
from core.jobs.templates.sweeps.plan import MAX_SEED, Plan
from core.jobs.templates.sweeps.space import Range, combination, combination_key, count_combinations

_STATES = {"running": TrialState.RUNNING, "complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
_PROPOSALS = 8  # that may repeat a trial, before one that does not is drawn

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Search:
    """The trials of a sweep as a study in memory."""

    def __init__(self, plan: Plan, trials: Sequence[SweepTrial]) -> None:
        self._plan = plan
        self._space = plan.parsed_space()
        self._combinations = count_combinations(self._space)
        self._tried = {combination_key(trial.params) for trial in trials}
        self._distributions = {name: _distribution(values) for name, values in self._space.items()}
        self._study = optuna.create_study(direction="minimize" if plan.goal == "min" else "maximize")
        self._study.add_trials([self._frozen(trial) for trial in trials])

    def suggest(self, number: int) -> dict[str, Value]:
        """Choose the parameters of a new trial: by the seed, its number, and the trials before it alone.

        None is repeated while there are combinations that no trial has.
        """
        params = combination(self._space, number) if self._plan.method == "grid" else self._propose(number)
        self._tried.add(combination_key(params))
        return params

    def _propose(self, number: int) -> dict[str, Value]:
        seed = (self._plan.seed + number * 7919) % MAX_SEED
        self._study.sampler = _sampler(self._plan, seed)
        for _ in range(_PROPOSALS):
            params = self._decode(self._study.ask(self._distributions).params)
            if self._combinations is None or combination_key(params) not in self._tried:
                return params
        return self._draw_untried(random.Random(seed), self._combinations or 1)  # noqa: S311 - repeatable on purpose

    def _draw_untried(self, numbers: random.Random, combinations: int) -> dict[str, Value]:
        index = numbers.randrange(combinations)
        while combination_key(params := combination(self._space, index)) in self._tried:
            index = (index + 1) % combinations
        return params

    def _frozen(self, trial: SweepTrial) -> FrozenTrial:
        state, values = _STATES.get(trial.state, TrialState.FAIL), trial.history
        if state is TrialState.COMPLETE and trial.value is None and self._plan.metric is not None:
            state, values = TrialState.PRUNED, [None]  # worse than any number
        return create_trial(
            state=state,
            value=(trial.value or 0.0) if state is TrialState.COMPLETE else None,  # without a metric none counts
            params=self._encode(trial.params),
            distributions=self._distributions,
            intermediate_values={step: math.nan if value is None else value for step, value in enumerate(values, 1)},
        )

    def _encode(self, params: Mapping[str, Value]) -> dict[str, Any]:
        # To Optuna, true and 1 and 1.0 are one choice. Their JSON differs.
        return {name: value if self._is_range(name) else json.dumps(value) for name, value in params.items()}

    def _decode(self, params: Mapping[str, Any]) -> dict[str, Value]:
        return {name: value if self._is_range(name) else json.loads(value) for name, value in params.items()}

    def _is_range(self, name: str) -> bool:
        return isinstance(self._space[name], Range)


def _distribution(values: Range | tuple[Value, ...]) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution([json.dumps(value) for value in values])
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def _sampler(plan: Plan, seed: int) -> BaseSampler:
    # With the constant liar, trials that still run count as bad ones, so that others are tried beside them.
    return TPESampler(seed=seed, constant_liar=True) if plan.method == "tpe" else RandomSampler(seed=seed)
