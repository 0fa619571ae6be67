"""The table of a comparison: figures, dollars and ranks of machines of known speeds and prices."""

from dataclasses import replace

import pytest

from core.comparison.measurement import Arrival, Pace
from core.comparison.run_figures import RunFigures
from core.comparison.table import Member, Spread, build_table

HOUR = 3600


def member(machine_type, price, pace, seconds, best=0.9, **fields):
    """A job that succeeded on a machine of this price and pace, and reached its target after these seconds."""
    made = Member(
        job_id=f"j{machine_type}{seconds}",
        machine_type=machine_type,
        simulated=False,
        state="succeeded",
        price_per_hour=price,
        seconds=seconds * 2,
        pace=pace and Pace(pace, pace, pace),
        best=best,
        arrival=Arrival(seconds, 100),
        memory_bytes=100,
        gpu_memory_bytes=None,
        figures=RunFigures(),
    )
    return replace(made, **fields)


CPU = member("CPU", price=0.5, pace=10, seconds=7200, best=0.91)
V100 = member("V100", price=3.0, pace=500, seconds=144, best=0.91)
TPU = member("TPU", price=4.5, pace=1000, seconds=72, best=0.90)


def table(*members, goal="max", target=0.9, ranked=True):
    return {row.machine_type: row for row in build_table(members, goal, target, ranked=ranked)}


def ranks(rows):
    return {name: (row.fastest, row.cheapest, row.most_accurate) for name, row in rows.items()}


def test_machines_of_known_speed_and_price():
    rows = table(CPU, V100, TPU)
    assert {name: row.speedup for name, row in rows.items()} == {"CPU": 1, "V100": 50, "TPU": 100}
    assert {name: row.cost_to_target for name, row in rows.items()} == pytest.approx(
        {"CPU": 1.0, "V100": 0.12, "TPU": 0.09}
    )
    assert rows["V100"].cost_per_1000_steps == pytest.approx(3.0 * 2 / HOUR)
    assert ranks(rows) == {"CPU": (3, 3, 1), "V100": (2, 2, 1), "TPU": (1, 1, 3)}


def test_without_a_target_the_pace_decides():
    cheap = replace(CPU, price_per_hour=0.001)
    assert ranks(table(cheap, V100, TPU, target=None)) == {"CPU": (3, 1, 1), "V100": (2, 3, 1), "TPU": (1, 2, 3)}


def test_a_metric_that_should_fall_is_ranked_from_below():
    assert ranks(table(CPU, TPU, goal="min"))["TPU"][2] == 1


def test_repeats_give_median_least_and_largest():
    rows = table(V100, replace(V100, pace=Pace(520, 1, 999), arrival=Arrival(160, 1), best=0.95, memory_bytes=300))
    assert rows["V100"].steps_per_second == Spread(510, 500, 520)
    assert rows["V100"].seconds_to_target == Spread(152, 144, 160)
    assert rows["V100"].best == Spread(pytest.approx(0.93), 0.91, 0.95)
    assert rows["V100"].memory_bytes == 300


def test_of_one_job_the_spread_is_its_own():
    assert table(replace(V100, pace=Pace(500, 450, 550)))["V100"].steps_per_second == Spread(500, 450, 550)


def test_figures_within_the_spread_of_another_share_its_rank():
    near = replace(TPU, machine_type="V3", pace=Pace(990, 900, 1050), arrival=Arrival(72, 1), best=0.90)
    assert {name: row.fastest for name, row in table(TPU, near, CPU, target=None).items()} == {
        "TPU": 1,
        "V3": 1,
        "CPU": 3,
    }


def test_failed_and_unfinished_jobs_give_no_figures():
    rows = table(replace(CPU, state="failed", seconds=1, best=1.0), replace(CPU, state="unfinished"), TPU)
    assert [one.state for one in rows["CPU"].members] == ["failed", "unfinished"]
    assert (rows["CPU"].best, rows["CPU"].steps_per_second, rows["CPU"].fastest) == (None, None, None)
    assert rows["TPU"].fastest == 1


def test_a_target_that_a_repeat_missed_has_no_time():
    rows = table(V100, replace(V100, arrival=None), CPU)
    assert (rows["V100"].seconds_to_target, rows["V100"].cost_to_target, rows["V100"].fastest) == (None, None, None)
    assert rows["CPU"].fastest == 1


def test_simulated_machines_are_never_ranked_beside_real_ones():
    rows = build_table([replace(TPU, simulated=True), replace(V100, simulated=True), CPU], "max", 0.9, ranked=True)
    assert [(row.machine_type, row.fastest, row.speedup) for row in rows] == [
        ("CPU", 1, 1),
        ("TPU", 1, 2),
        ("V100", 2, 1),
    ]


def test_unlike_jobs_are_shown_and_not_ranked():
    rows = table(CPU, TPU, ranked=False)
    assert ranks(rows) == {"CPU": (None, None, None), "TPU": (None, None, None)}
    assert rows["TPU"].cost_to_target == pytest.approx(0.09)
