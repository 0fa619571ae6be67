"""The Pareto front: of bare points, and of machines of known speeds, prices and accuracies."""

from dataclasses import replace

import pytest

from core.comparison.measurement import Arrival, RunFigures, Spread
from core.comparison.ranking import find_front
from core.comparison.table import Member, build_table


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(1, 3), (2, 2), (3, 1)], [True, True, True]),
        ([(1, 3), (2, 2), (3, 2.5)], [True, True, False]),
        ([(1, 1), (2, 2)], [True, False]),
        ([(1, 2), (1, 1)], [False, True]),
        ([(1, 1), (2, 1)], [True, False]),
        ([(1, 1), (1, 1), (2, 2)], [True, True, False]),
        ([(0, 0), (1, 1), (1, 1)], [True, False, False]),
        ([(1, 3), None, (2, 2)], [True, None, True]),
        ([None, (1, 1)], [None, None]),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_a_point_is_on_the_front_unless_another_is_better_in_one_figure_and_as_good_in_the_other(points, front):
    assert find_front(points) == front


def member(machine_type, price, seconds, final, to_target, **fields):
    """A job that succeeded after these seconds, and reached its target after others."""
    made = Member(
        job_id=f"j{machine_type}",
        machine_type=machine_type,
        simulated=False,
        state="succeeded",
        price_per_hour=price,
        gpus=0,
        seconds=seconds,
        pace=Spread(1, 1, 1),
        final=final,
        arrival=None if to_target is None else Arrival(to_target, 100),
        memory_bytes=None,
        gpu_memory_bytes=None,
        figures=RunFigures(),
    )
    return replace(made, **fields)


# Costs of the whole runs: CPU $1, T4 $0.50, V100 $1.50, A100 $2, K80 $3. Until the target: $0.80, $0.40, $0.30, ...
CPU = member("CPU", price=0.5, seconds=7200, final=0.97, to_target=5760)
T4 = member("T4", price=1.0, seconds=1800, final=0.92, to_target=1440)
V100 = member("V100", price=3.0, seconds=1800, final=0.95, to_target=360)
A100 = member("A100", price=8.0, seconds=900, final=0.95, to_target=300)
K80 = member("K80", price=1.2, seconds=9000, final=0.91, to_target=7200)
MACHINES = [CPU, T4, V100, A100, K80]
NOWHERE = (None, None, None)


def fronts(*members, goal="max", target=0.9, ranked=True):
    """For each machine type: on the front of metric and time, of metric and cost, and of time and cost."""
    return {
        row.machine_type: (row.on_metric_time_front, row.on_metric_cost_front, row.on_time_cost_front)
        for row in build_table(members, goal, target, ranked=ranked)
    }


def test_repeats_count_by_their_median():
    other = replace(T4, final=0.99)
    found = fronts(T4, other, replace(T4, final=0.9), V100)
    assert found["V100"] == (True, True, True), "the best of three repeats on T4 is 0.99, their median 0.92"


@pytest.mark.parametrize("state", ["failed", "unfinished"])
def test_what_did_not_succeed_is_on_no_front_and_beats_nothing(state):
    perfect = member("TPU", price=0.1, seconds=1, final=1.0, to_target=1, state=state)
    assert fronts(perfect, *MACHINES) == {"TPU": NOWHERE, **fronts(*MACHINES)}


def test_simulated_machines_have_a_front_of_their_own():
    stand_ins = [replace(T4, simulated=True, seconds=1), replace(K80, simulated=True, seconds=2)]
    found = fronts(*stand_ins, CPU, V100)
    assert {name: found[name] for name in ("CPU", "V100")} == fronts(CPU, V100)
    assert (found["T4"][0], found["K80"][0]) == (True, False)
    assert fronts(stand_ins[0], CPU, V100)["T4"] == NOWHERE, "compared with nothing"
