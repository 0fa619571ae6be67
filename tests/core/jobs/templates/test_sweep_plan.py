"""Values that a sweep tries, plans that are refused, and the search in memory."""

import math

import pytest

from core.db.models.sweeps import SweepTrial
from core.errors import SpecInvalid
from core.jobs.templates.sweeps.plan import Plan, make_plan
from core.jobs.templates.sweeps.search import Search
from core.jobs.templates.sweeps.space import Range, grid_point, grid_size, parse_space

DEFAULTS = {
    "space": {"lr": "log:1e-5..1e-1"},
    "method": "tpe",
    "metric": "loss:min",
    "stop": None,
    "stop_after": 1,
    "seed": 0,
    "trials": 20,
    "parallel": 4,
    "max_hours": None,
    "max_dollars": None,
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
        ("true,false", (True, False)),
        ("../data,../other", ("../data", "../other")),
        (["a,b", "c"], ("a,b", "c")),
        (3, (3,)),
    ],
)
def test_what_is_tried_of_a_parameter(text, expected):
    assert parse_space({"x": text}) == {"x": expected}


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"space": {}}, "space", "0 parameters"),
        ({"space": {"lr": "1..1"}}, "space.lr", "'1..1' is empty"),
        ({"space": {"lr": "2..1"}}, "space.lr", "2 is not below 1"),
        ({"space": {"lr": "log:0..1"}}, "space.lr", "0 has no logarithm"),
        ({"space": {"lr": "log:-1..1"}}, "space.lr", "-1 has no logarithm"),
        ({"space": {"lr": "log:adam"}}, "space.lr", "'log:adam' is no range"),
        ({"space": {"lr": "1e-5..high"}}, "space.lr", "is no range"),
        ({"space": {"lr": "1..9/1"}}, "space.lr", "has 1 values"),
        ({"space": {"lr": "1e999..1"}}, "space.lr", "is empty"),
        ({"space": {"lr": "-1e308..1e308"}}, "space.lr", "is too wide"),
        ({"space": {"lr": " , "}}, "space.lr", "has 0 values"),
        ({"space": {"lr rate": "1..2"}}, "space.lr rate", "'lr rate' is not a name"),
        ({"space": {"lr": ["x" * 600]}}, "space.lr", "printable characters"),
        ({"metric": "loss"}, "metric", "'loss' does not say whether low or high is good. Write NAME:min"),
        ({"metric": "loss:lowest"}, "metric", "loss:min"),
        ({"metric": None}, "metric", "tpe chooses parameters by a metric"),
        ({"metric": None, "method": "random", "stop": "asha"}, "metric", "stopped by asha"),
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
            "more than the 6 combinations",
        ),
        ({"method": "random", "space": {"a": "1,2"}, "trials": 3}, "trials", "more than the 2 combinations"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(fields, field, said):
    with pytest.raises(SpecInvalid) as refusal:
        plan_of(**fields)
    assert refusal.value.field == field
    assert said in refusal.value.message


def test_a_grid_has_each_combination_once():
    space = parse_space({"a": "1,2", "b": "x,y,z"})
    points = [grid_point(space, number) for number in range(grid_size(space))]
    assert points[:4] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "z"}, {"a": 2, "b": "x"}]
    assert len({tuple(point.values()) for point in points}) == 6
    assert plan_of(method="grid", space={"a": "1,2", "b": "x,y,z"}, trials=None).trials == 6
    assert Plan.from_json(plan_of().to_json()) == plan_of()


def sweep_in_memory(plan, count, values=27):
    """Run trials one after the other; their values fall towards the distance of `lr` from 1e-3."""
    trials = []
    for number in range(count):
        params = Search(plan, trials).suggest(number)
        trial = SweepTrial(number=number, params=params, state="running", history=[])
        trials.append(trial)
        search = Search(plan, trials)
        distance = abs(math.log10(params["lr"]) + 3)
        whys = (search.judge(trial, distance + 1 / place) for place in range(1, values + 1))
        trial.reason = next((why for why in whys if why), None)
        trial.state = "pruned" if trial.reason else "complete"
        trial.value = trial.history[-1]
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


def test_tpe_comes_near_the_best_value():
    trials = sweep_in_memory(plan_of(), 30)
    late = sorted(abs(math.log10(trial.params["lr"]) + 3) for trial in trials[15:])
    assert late[0] < 0.1
    assert late[7] < 1, "half of the later ones are within a factor of ten"


@pytest.mark.parametrize("goal", ["min", "max"])
def test_asha_keeps_the_best_third(goal):
    plan = plan_of(metric=f"score:{goal}", stop="asha")
    sign = 1 if goal == "min" else -1
    trials = [SweepTrial(number=n, params={"lr": 1e-3}, state="running", history=[]) for n in range(9)]
    whys = {}
    for trial in trials:
        search = Search(plan, trials)
        whys[trial.number] = search.judge(trial, sign * float(trial.number))
    assert [number for number, why in whys.items() if why is None] == [0], "each is judged as it comes"
    assert whys[8] == f"its value 1 of score, {sign * 8.0:g}, is not in the best third of 9"
    better = SweepTrial(number=9, params={"lr": 1e-3}, state="running", history=[])
    assert Search(plan, [*trials, better]).judge(better, sign * 0.5) is None, "the second of ten"
    assert Search(plan, [*trials, better]).judge(better, sign * 99.0) is None, "no rung at the second value"
    assert Search(plan, [*trials, better]).judge(better, None) == "its value 3 of score is not a finite number"


def test_median_waits_for_five_complete_trials():
    plan = plan_of(stop="median", stop_after=2)
    trials = [
        SweepTrial(number=n, params={"lr": 1e-3}, state="complete", history=[float(n)] * 3, value=float(n))
        for n in range(5)
    ]
    bad = SweepTrial(number=5, params={"lr": 1e-3}, state="running", history=[])
    assert Search(plan, [*trials[:4], bad]).judge(bad, 9.0) is None
    bad.history = []
    assert Search(plan, [*trials, bad]).judge(bad, 9.0) is None, "not before its value 2"
    assert Search(plan, [*trials, bad]).judge(bad, 9.0) == (
        "loss is 9 at its value 2, worse than the median of 6 trials"
    )
