"""Sweeps find what Optuna alone finds, with its sampler and its pruner, and lose no trial on the way."""

import math
from statistics import mean, variance

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from service.schemas.sweeps import ReportTrial
from service.submission import trials
from service.submission.sweeps import advance

TRIALS, AT_ONCE, VALUES = 24, 4, 4
SEEDS = 5
SPACE = {"x": "-5..5.0", "y": "-5..5.0"}

DISTRIBUTIONS = {
    "-5..5.0": FloatDistribution(-5, 5),
    "log:1e-5..1e-1": FloatDistribution(1e-5, 1e-1, log=True),
    "log:1e-5..10": FloatDistribution(1e-5, 10, log=True),
    "1..64": IntDistribution(1, 64),
    "adam,sgd,lion": CategoricalDistribution(["adam", "sgd", "lion"]),
}
FUNCTIONS = {
    "sphere": (SPACE, lambda x, y: (x - 1) ** 2 + (y + 2) ** 2),
    "booth": (SPACE, lambda x, y: (x + 2 * y - 7) ** 2 + (2 * x + y - 5) ** 2),
    "himmelblau": (SPACE, lambda x, y: (x * x + y - 11) ** 2 + (x + y * y - 7) ** 2),
    "rosenbrock": (SPACE, lambda x, y: (1 - x) ** 2 + 10 * (y - x * x) ** 2),
    "rastrigin": (SPACE, lambda x, y: 20 + sum(v * v - 10 * math.cos(2 * math.pi * v) for v in (x, y))),
    "matyas": (SPACE, lambda x, y: 0.26 * (x * x + y * y) - 0.48 * x * y),
    "rate": ({"lr": "log:1e-5..1e-1"}, lambda lr: (math.log10(lr) + 3) ** 2),
    "mixed": (
        {"lr": "log:1e-5..1e-1", "opt": "adam,sgd,lion"},
        lambda lr, opt: (math.log10(lr) + 2) ** 2 + {"adam": 0, "sgd": 1, "lion": 2}[opt],
    ),
    "integers": ({"n": "1..64", "m": "1..64"}, lambda n, m: abs(n - 40) + abs(m - 7)),
    "diverging": (
        {"lr": "log:1e-5..10"},
        lambda lr: math.nan if lr > 0.1 else (math.log10(lr) + 2.5) ** 2,
    ),
}


def values_of(function, params):
    """Return what a trial logs: it falls to its value."""
    end = function(**params)
    return [end + 4 / place - 4 / VALUES for place in range(1, VALUES + 1)]


def run_sweep(app_state, client, name, seed):
    """Evaluate the trials of a sweep, so many at once; return the last value of each."""
    space, function = FUNCTIONS[name]
    body = {"space": space, "metric": "loss:min", "stop": "asha", "trials": TRIALS, "seed": seed}
    made = client.post("/sweeps", json=body).json()
    for start in range(0, TRIALS, AT_ONCE):
        keys = [f"{number:016}" for number in range(start, start + AT_ONCE)]
        running = [trials.request(app_state, made["id"], key).trial for key in keys]
        assert [trial.number for trial in running] == list(range(start, start + AT_ONCE))
        logged = {trial.number: values_of(function, trial.params) for trial in running}
        for place in range(VALUES):
            for trial, key in zip(running, keys, strict=True):
                value = logged[trial.number][place]
                told = {"step": place, "value": value if math.isfinite(value) else None}
                end = "complete" if place + 1 == VALUES else None
                report = ReportTrial(key=key, before=place, values=[told], end=end)
                said = trials.report(app_state, made["id"], trial.number, report)
                if said.state == "running" and said.reason:
                    trials.report(app_state, made["id"], trial.number, ReportTrial(key=key, end="complete"))
    advance(app_state, made["id"])
    ended = client.get(f"/sweeps/{made['id']}").json()
    assert (ended["state"], sum(ended["counts"].values())) == ("finished", TRIALS)
    assert set(ended["counts"]) <= {"complete", "pruned"}, "none is lost"
    best = min(trial["value"] for trial in ended["trials"] if trial["value"] is not None)
    assert ended["best"]["value"] == best
    return best


def run_optuna(name, seed):
    """Do the same by Optuna alone."""
    space, function = FUNCTIONS[name]
    study = optuna.create_study(
        sampler=TPESampler(seed=seed, constant_liar=True),
        pruner=SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    )
    last = {}
    for _ in range(TRIALS // AT_ONCE):
        running = [study.ask({name: DISTRIBUTIONS[text] for name, text in space.items()}) for _ in range(AT_ONCE)]
        logged = {trial.number: values_of(function, trial.params) for trial in running}
        for place in range(VALUES):
            for trial in list(running):
                last[trial.number] = value = logged[trial.number][place]
                trial.report(value, place + 1)
                if trial.should_prune() or (place + 1 == VALUES and math.isnan(value)):
                    study.tell(trial, state=TrialState.PRUNED)
                    running.remove(trial)
                elif place + 1 == VALUES:
                    study.tell(trial, value)
    return min(value for value in last.values() if math.isfinite(value))


@pytest.mark.integration
def test_the_best_values_are_those_of_optuna_alone_but_for_chance(stores, client):
    differences, variances = [], []
    for name in FUNCTIONS:
        theirs = [math.log10(run_optuna(name, seed) + 0.01) for seed in range(SEEDS)]
        ours = math.log10(run_sweep(stores, client, name, seed=0) + 0.01)
        differences.append(ours - mean(theirs))
        variances.append(variance(theirs) * (1 + 1 / SEEDS))
    noise = math.sqrt(sum(variances))
    assert abs(sum(differences)) < 2 * noise, dict(zip(FUNCTIONS, differences, strict=True))
