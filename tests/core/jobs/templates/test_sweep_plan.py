"""Values that a sweep tries, plans that are refused, and the search in memory."""

import json
import math

import pytest

from core.errors import SpecInvalid
from core.jobs.templates.sweeps.early_stops import judge
from core.jobs.templates.sweeps.plan import Plan, make_plan
from core.jobs.templates.sweeps.search import Search
from core.jobs.templates.sweeps.space import Range, combination, combination_key, count_combinations, parse_space
from core.jobs.templates.sweeps.sweeps import new_trial
from core.jobs.tracking.metric_limits import MAX_NAME

DEFAULTS = {
    "space": {"lr": "log:1e-5..1e-1"},
    "method": "tpe",
    "metric": "loss:min",
    "stop": None,
    "stop_after": 1,
    "seed": 0,
    "trials": 20,
    "parallel": 4,
    "has_ceiling": False,
}


def plan_of(**fields):
    return make_plan(**DEFAULTS | fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-5..1e-1", Range(1e-5, 0.1, log=False, whole=False)),
        ("log:1e-5..1e-1", Range(1e-5, 0.1, log=True, whole=False)),
        ("-1..4", Range(-1, 4, log=False, whole=True)),
        ("log:16..512", Range(16, 512, log=True, whole=True)),
        ("1..9/3", (1, 5, 9)),
        ("log:1e-4..1e-2/3", (1e-4, 1e-3, 1e-2)),
        ("adam, sgd,adam", ("adam", "sgd")),
        ("16,32,6.4e1", (16, 32, 64.0)),
        ('"2.10", 007,"a, b",x"y,""', ("2.10", 7, "a, b", 'x"y', "")),
        ("--lr,-v", ("--lr", "-v")),
        ("2 4,8 16", ("2 4", "8 16")),
        ("flag", (True, False)),
        (["2.10", "007", "true", "flag"], ("2.10", "007", "true", "flag")),
        ([1, True, 0, False, 1.0, 1], (1, True, 0, False, 1.0)),
        ("true,false", (True, False)),
        ("../data,../other", ("../data", "../other")),
        (["a,b", "c"], ("a,b", "c")),
        (3, (3,)),
    ],
)
def test_what_is_tried_of_a_parameter(text, expected):
    tried = parse_space({"x": text})["x"]
    assert tried == expected
    if isinstance(tried, tuple):
        assert list(map(type, tried)) == list(map(type, expected)), "True is not 1"


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"space": {}}, "space", "0 parameters"),
        ({"space": {"lr": "1..1"}}, "space.lr", "'1..1' is empty"),
        ({"space": {"lr": "2..1"}}, "space.lr", "2 is not below 1"),
        ({"space": {"lr": "log:0..1"}}, "space.lr", "0 has no logarithm"),
        ({"space": {"lr": "log:-1..1"}}, "space.lr", "-1 has no logarithm"),
        ({"space": {"lr": "log:adam"}}, "space.lr", "'log:adam' is not a range"),
        ({"space": {"lr": "1e-5..high"}}, "space.lr", "is not a range"),
        ({"space": {"lr": "1..9/1"}}, "space.lr", "has 1 values"),
        ({"space": {"lr": "1e999..1"}}, "space.lr", "is empty"),
        ({"space": {"lr": "-1e308..1e308"}}, "space.lr", "is too wide"),
        ({"space": {"lr": " , "}}, "space.lr", "has 0 values"),
        ({"space": {"lr rate": "1..2"}}, "space.lr rate", "'lr rate' is not a name"),
        ({"space": {"lr": ["x" * 600]}}, "space.lr", "printable characters"),
        ({"metric": "loss"}, "metric", "'loss' does not say whether low or high is good. Write NAME:min"),
        ({"metric": "loss:lowest"}, "metric", "loss:min"),
        ({"metric": "v :min"}, "metric", "No program can log a metric named 'v '"),
        ({"metric": "step:max"}, "metric", "and is not step, time or params"),
        ({"metric": "k" * (MAX_NAME + 1) + ":min"}, "metric", f"at most {MAX_NAME} printable characters"),
        ({"metric": None}, "metric", "tpe chooses parameters by a metric"),
        ({"metric": None, "method": "random", "stop": "asha"}, "metric", "asha stops trials by a metric"),
        ({"trials": None}, "trials", "Nothing ends this sweep"),
        ({"method": "grid"}, "space.lr", "lr=LOW..HIGH/5"),
        (
            {"method": "grid", "space": {"a": "1..99/99", "b": "1..99/99"}, "trials": None},
            "space",
            "9,801 combinations",
        ),
        (
            {"method": "grid", "space": {"a": "1,2", "b": "1,2,3"}, "trials": 7},
            "trials",
            "more than the grid's 6 combinations",
        ),
        ({"method": "random", "space": {"a": "1,2"}, "trials": 3}, "trials", "more than the grid's 2 combinations"),
        ({"space": {"layers": "1..4"}, "trials": 12}, "trials", "more than the grid's 4 combinations"),
        (
            {"space": {"a": "log:1..8", "b": "flag", "c": "x"}, "trials": 17},
            "trials",
            "more than the grid's 16 combinations",
        ),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(fields, field, said):
    with pytest.raises(SpecInvalid) as refusal:
        plan_of(**fields)
    assert refusal.value.field == field
    assert said in refusal.value.message


@pytest.mark.parametrize("method", ["grid", "tpe", "random"])
@pytest.mark.parametrize(
    "space",
    [
        {"a": "1,2,3", "b": "x,y,z"},
        {"layers": "1..4", "amp": "flag"},
        {"n": "log:1..9", "v": [1, True, 1.0]},
        {"one": "7"},
    ],
)
def test_a_small_space_is_tried_whole_beside_trials_that_run(method, space):
    size = count_combinations(parse_space(space))
    plan = plan_of(method=method, space=space, trials=None, has_ceiling=True)
    assert plan.trials == size
    trials = []
    while len(trials) < size:  # three at once, which have no values when the next are chosen
        search = Search(plan, trials)
        trials += [
            new_trial("s", number, search.suggest(number), None)
            for number in range(len(trials), min(size, len(trials) + 3))
        ]
        for trial in trials[:-2]:
            trial.state, trial.value = "complete", float(len(json.dumps(trial.params)))
    assert len({combination_key(trial.params) for trial in trials}) == size


def test_the_last_parameter_of_a_grid_changes_first():
    space = parse_space({"a": "1,2", "b": "x,y,z"})
    points = [combination(space, number) for number in range(count_combinations(space))]
    assert points[:4] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "z"}, {"a": 2, "b": "x"}]
    assert count_combinations(parse_space({"a": "1,2", "b": "0..1.0"})) is None
    assert Plan.from_json(plan_of().to_json()) == plan_of()


def sweep_in_memory(plan, count):
    """Run trials one after the other; their values fall towards the distance of `lr` from 1e-3."""
    trials = []
    for number in range(count):
        params = Search(plan, trials).suggest(number)
        trial = new_trial("s", number, params, None)
        trials.append(trial)
        distance = abs(math.log10(params["lr"]) + 3)
        for place in range(1, 28):
            trial.value = distance + 1 / place
            trial.history = [*trial.history, trial.value]
            trial.reason = judge(plan, trial, trials, place - 1)
            if trial.reason:
                break
        trial.state = "pruned" if trial.reason else "complete"
    return trials


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_the_same_seed_and_history_make_the_same_trials(method):
    plan = plan_of(method=method, space=DEFAULTS["space"] | {"opt": "adam,sgd", "layers": "1..8"}, stop="asha")
    params = [trial.params for trial in sweep_in_memory(plan, 16)]
    assert params == [trial.params for trial in sweep_in_memory(plan, 16)]
    assert all(1e-5 <= each["lr"] <= 1e-1 and each["opt"] in {"adam", "sgd"} for each in params)
    assert all(isinstance(each["layers"], int) and 1 <= each["layers"] <= 8 for each in params)
    assert len({each["lr"] for each in params}) == 16
    other = plan_of(method=method, space=plan.space, stop="asha", seed=1)
    assert params[0] != sweep_in_memory(other, 1)[0].params


def test_tpe_comes_near_the_best_value_and_leaves_where_values_are_not_finite():
    space = {"lr": "log:1e-5..10"}
    trials = []
    for number in range(40):
        lr = Search(plan_of(space=space), trials).suggest(number)["lr"]
        value = None if lr > 0.1 else (math.log10(lr) + 2.5) ** 2
        trials.append(new_trial("s", number, {"lr": lr}, None, state="complete", value=value))
    assert sum(trial.value is None for trial in trials[:10]) >= 2
    assert sum(trial.value is None for trial in trials[20:]) <= 3
    assert min(trial.value for trial in trials if trial.value is not None) < 0.01


def logged(number, *values, state="running"):
    return new_trial("s", number, {"lr": 1e-3}, None, state=state, history=list(values))


@pytest.mark.parametrize("goal", ["min", "max"])
def test_asha_stops_what_is_not_in_the_best_third(goal):
    plan = plan_of(metric=f"score:{goal}", stop="asha")
    sign = 1 if goal == "min" else -1
    done = logged(0, *[sign * 0.5] * 9, state="complete")
    trials = [done, *(logged(number, sign * float(number)) for number in range(1, 9))]
    whys = {trial.number: judge(plan, trial, trials[: trial.number + 1], 0) for trial in trials[1:]}
    assert whys[1] is None, "two are too few to have a best third"
    assert whys[2] == f"value 1 of score, {sign * 2.0:g}, is not in the best third of 3"
    assert None not in [whys[number] for number in range(3, 9)]
    assert judge(plan, trials[8], trials, 1) is None, "what was judged once is not judged again"
    assert judge(plan, logged(9, sign * 0.4), [*trials, logged(9, sign * 0.4)], 0) is None, "the best"


def judged(*values, seen=0, complete=27, peers=(1.0, 2.0, 3.0, 4.0, 5.0), stop="asha"):
    """Return why a trial is stopped beside others that are better throughout."""
    trial = logged(9, *values)
    others = [logged(number, *[value] * 27) for number, value in enumerate(peers)]
    for other in others:
        other.history = other.history[: complete or 27]
        other.state = "complete" if complete else "running"
    return judge(plan_of(stop=stop), trial, [*others, trial], seen)


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([9.0], {}, "value 1 of loss, 9, is not in the best third of 6"),
        ([9.0] * 2, {"seen": 1}, "value 1 of loss, 9, is not in the best third of 6"),
        ([9.0] * 10, {}, "value 9 of loss, 9, is not in the best third of 6"),  # the newest rung, not the first
        ([99.0, 99.0, *[0.5] * 10], {}, None),  # bad only at rungs that it has passed
        ([*[9.0] * 9, 0.5], {}, None),  # bad at its rung, and good since
        ([9.0] * 10, {"complete": 10}, None),  # it has as many values as a complete trial
        ([9.0] * 27, {}, None),
        ([9.0] * 10, {"complete": None}, None),  # none is complete: this may be all
        ([9.0] * 11, {"complete": None, "seen": 10}, "value 9 of loss, 9, is not in the best third of 6"),
        ([9.0], {"peers": [1.0]}, None),  # too few for a best third
        ([9.0, None], {"seen": 1}, "value 2 of loss is not a finite number"),
        ([9.0] * 2, {"stop": "median"}, "value 2 of loss is 9, worse than the median of 5 complete trials"),
        ([0.5, 9.0], {"stop": "median"}, None),  # its best value so far counts
        ([9.0] * 27, {"stop": "median"}, None),
        ([9.0] * 2, {"stop": "median", "peers": [1.0] * 4}, None),
        ([9.0] * 2, {"stop": "median", "complete": None}, None),
    ],
)
def test_the_newest_place_is_judged_and_never_a_trial_that_may_be_done(values, options, expected):
    assert judged(*values, **options) == expected
