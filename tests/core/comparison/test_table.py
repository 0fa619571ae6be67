"""The table of a comparison: figures, dollars and ranks of machines of known speeds and prices."""

from dataclasses import replace

import pytest

from core.comparison.measurement import Arrival, RunFigures, Spread
from core.comparison.table import Member, build_table

HOUR = 3600


def member(machine_type, price, pace, seconds, final=0.9, **fields):
    """A job that succeeded on a machine of this price and pace, and reached its target after these seconds."""
    made = Member(
        job_id=f"j{machine_type}{seconds}",
        machine_type=machine_type,
        simulated=False,
        state="succeeded",
        price_per_hour=price,
        gpus=0,
        seconds=seconds * 2,
        pace=pace and Spread(pace, pace, pace),
        final=final,
        arrival=Arrival(seconds, 100),
        memory_bytes=100,
        gpu_memory_bytes=None,
        figures=RunFigures(),
    )
    return replace(made, **fields)


CPU = member("CPU", price=0.5, pace=10, seconds=7200, final=0.91)
V100 = member("V100", price=3.0, pace=500, seconds=144, final=0.91)
TPU = member("TPU", price=4.5, pace=1000, seconds=72, final=0.90)


def table(*members, goal="max", target=0.9, ranked=True):
    return {row.machine_type: row for row in build_table(members, goal, target, ranked=ranked)}


def thrice(*members):
    """Three repeats of each, a thousandth apart."""
    return [
        replace(
            each,
            pace=each.pace and Spread(each.pace.median * factor, 1, 999),
            final=each.final and each.final * factor,
            arrival=each.arrival and Arrival(each.arrival.seconds * factor, 100),
        )
        for factor in (1.001, 1.0, 0.999)
        for each in members
    ]


def ranks(rows):
    return {name: (row.fastest.rank, row.cheapest.rank, row.most_accurate.rank) for name, row in rows.items()}


def test_machines_of_known_speed_and_price():
    rows = table(*thrice(CPU, V100, TPU))
    assert {name: row.speedup for name, row in rows.items()} == {"CPU": 1, "V100": 50, "TPU": 100}
    assert {name: row.cost_to_target for name, row in rows.items()} == pytest.approx(
        {"CPU": 1.0, "V100": 0.12, "TPU": 0.09}
    )
    assert rows["V100"].cost_per_1000_steps == pytest.approx(3.0 * 2 / HOUR)
    assert ranks(rows) == {"CPU": (3, 3, 1), "V100": (2, 2, 1), "TPU": (1, 1, 3)}
    assert {name: row.labels for name, row in rows.items()} == {
        "CPU": ("tied most accurate",),
        "V100": ("tied most accurate",),
        "TPU": ("fastest", "cheapest"),
    }
    assert rows["TPU"].fastest.to_best is None
    slower = rows["V100"].fastest.to_best
    assert slower.low < slower.value < slower.high
    assert slower.value == pytest.approx(1.0)
    assert slower.high < 1.01
    assert rows["TPU"].most_accurate.to_best.value == pytest.approx(0.01)


def test_without_a_target_the_pace_decides():
    rows = table(*thrice(replace(CPU, price_per_hour=0.001), V100, TPU), target=None)
    assert ranks(rows) == {"CPU": (3, 1, 1), "V100": (2, 3, 1), "TPU": (1, 2, 3)}


def test_of_one_job_the_spread_is_its_own():
    assert table(replace(V100, pace=Spread(500, 450, 550)))["V100"].steps_per_second == Spread(500, 450, 550)


def test_a_target_that_a_repeat_missed_has_no_time():
    rows = table(V100, replace(V100, arrival=None), *thrice(CPU))
    assert (rows["V100"].seconds_to_target, rows["V100"].cost_to_target, rows["V100"].fastest.rank) == (
        None,
        None,
        None,
    )
    assert rows["CPU"].fastest.rank == 1


def test_simulated_machines_are_never_ranked_beside_real_ones():
    stand_ins = [replace(TPU, simulated=True), replace(V100, simulated=True)]
    rows = build_table(thrice(*stand_ins, CPU), "max", 0.9, ranked=True)
    assert [(row.machine_type, row.fastest.rank, row.speedup) for row in rows] == [
        ("CPU", 1, 1),
        ("TPU", 1, 2),
        ("V100", 2, 1),
    ]
