"""Judgements of runs of known figures."""

from dataclasses import replace

import pytest

from core.catalogue.machine_types import Catalogue
from core.comparison.bottleneck import judge, judge_device
from core.comparison.measurement import RunFigures, middle_figures, read_values
from core.comparison.peaks import HALF, SINGLE, peaks_of, peaks_of_run

T4 = peaks_of(Catalogue.load().get("T4"), SINGLE)
RUN = RunFigures(
    seconds=3600,
    steps_per_second=1.0,
    input_wait_share=0.02,
    startup_seconds=10,
    compile_seconds=20,
    flops_per_step=4e12,
    bytes_per_step=2e10,
    replicas=1,
)
"""A run on a T4 at half of its peak."""


@pytest.mark.parametrize(
    ("changed", "kind", "advice"),
    [
        ({}, "compute", "mixed precision"),
        ({"flops_per_step": 1e11, "bytes_per_step": 2e11}, "memory", "mixed precision"),
        ({"compute_bits": 16}, "compute", "higher peak"),
        ({"input_wait_share": 0.8}, "input", "Cache the prepared examples"),
        ({"seconds": 40}, "startup", "Run longer"),
        ({"replicas": 8, "communication_share": 0.7}, "communication", "larger batch"),
        ({"flops_per_step": 1e10, "bytes_per_step": 1e9}, "overhead", "larger batch"),
        ({"gpu_busy_share": 0.49}, "overhead", "larger batch"),
        ({"gpu_busy_share": 0.98}, "compute", "mixed precision"),
        ({"gpu_busy_share": 0.49, "seconds": 32}, "startup", "Run longer"),
    ],
)
def test_the_part_that_takes_most_of_the_time(changed, kind, advice):
    found = judge(replace(RUN, **changed), T4)
    assert (found.kind, found.missing) == (kind, ())
    assert advice in found.advice[0]
    assert found.summary.startswith("Bound by")


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"input_wait_share": None}, "input_wait_share"),
        ({"flops_per_step": None}, "flops_per_step"),
        ({"steps_per_second": None}, "steps_per_second"),
        ({"replicas": 8}, "communication_share"),
        ({"replicas": None}, "replicas"),
    ],
)
def test_nothing_is_guessed(changed, missing):
    found = judge(replace(RUN, **changed), T4)
    assert (found.kind, found.missing) == (None, (missing,))
    assert found.summary == f"Not measured: the job's metrics lack {missing}."


def test_without_peaks_only_the_other_parts_are_judged():
    assert judge(RUN, None).missing == ("peaks",)
    assert judge(RUN, None).kind is None
    assert judge(replace(RUN, input_wait_share=0.8), None).kind == "input"
    assert judge(replace(RUN, input_wait_share=0.8, flops_per_step=None), None).kind == "input"


@pytest.mark.parametrize(
    "changed",
    [{"flops_per_step": 1e18}, {"bytes_per_step": 1e15}, {"steps_per_second": 1e6}, {"input_wait_share": 1.0}],
)
def test_what_no_machine_can_do_is_not_judged_as_work_of_the_device(changed):
    assert judge_device(replace(RUN, **changed), T4) is None
    if "input_wait_share" not in changed:
        found = judge(replace(RUN, **changed), T4)
        assert found.kind is None
        assert "flops_per_step or bytes_per_step is wrong" in found.summary


@pytest.mark.parametrize(("busy", "limit", "kind"), [(8, None, "compute"), (4, None, "overhead"), (4, 4, "compute")])
def test_cpus_that_are_idle_for_much_of_the_time_are_bound_by_overhead(busy, limit, kind):
    machine = Catalogue.load().get("CPU")
    run = replace(RUN, flops_per_step=1e11, bytes_per_step=1e9, busy_cpus=busy, cpu_limit=limit)
    peaks = peaks_of_run(run, machine)
    assert judge(run, peaks).kind == kind
    assert peaks.flops == 0.294e12 * (limit or 8) / 8
    assert peaks_of_run(run, None) is None


def test_double_precision_has_its_own_peak():
    machines = Catalogue.load()
    assert peaks_of(machines.get("V100"), 64).flops == 7.8e12
    assert peaks_of(machines.get("TPU"), 64) is None


def test_only_devices_with_matrix_units_gain_from_half_precision():
    catalogue = Catalogue.load()
    gains = {
        name: peaks_of(catalogue.get(name), HALF).flops / peaks_of(catalogue.get(name), SINGLE).flops
        for name in ("P100", "T4", "TPU")
    }
    assert gains == {"P100": 1, "T4": pytest.approx(65 / 8.1), "TPU": 1}
    assert peaks_of(catalogue.get("TPU"), HALF, replicas=1).flops == 180e12 / 8


def test_values_that_a_figure_cannot_have_are_left_out():
    given = {"input_wait_share": 1.5, "flops_per_step": 0.0, "replicas": -1.0, "weight_decay": 0.0, "loss": 1.0}
    assert read_values(given | {"compute_bits": None, "batch_size": 1e300}) == {"weight_decay": 0.0}
    assert read_values({"replicas": 1e-6, "batch_size": 2.5, "compute_bits": 1, "flops_per_step": float("nan")}) == {}


def test_of_several_runs_each_figure_is_the_median():
    runs = [replace(RUN, input_wait_share=share) for share in (0.1, 0.9, 0.2)] + [RunFigures()]
    assert middle_figures(runs).input_wait_share == 0.2
    assert middle_figures([RunFigures()]).flops_per_step is None
