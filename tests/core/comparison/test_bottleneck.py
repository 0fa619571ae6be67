"""Judgements of runs of known figures."""

from dataclasses import replace

import pytest

from core.catalogue.machine_types import Catalogue
from core.comparison.bottleneck import judge
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


def test_peaks_that_the_program_was_given_count_first():
    run = replace(RUN, peak_flops_share=0.5, peak_bandwidth_share=0.1)
    machine = Catalogue.load().get("V100")
    given = peaks_of_run(run, machine, simulated=True)
    assert (given.flops, given.bandwidth) == pytest.approx((8e12, 2e11))
    assert judge(run, given).kind == "compute"
    assert peaks_of_run(RUN, machine, simulated=True) is None
    assert peaks_of_run(RUN, machine, simulated=False).flops == 15.7e12


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


def test_of_several_runs_each_figure_is_the_median():
    runs = [replace(RUN, input_wait_share=share) for share in (0.1, 0.9, 0.2)] + [RunFigures()]
    assert middle_figures(runs).input_wait_share == 0.2
    assert middle_figures([RunFigures()]).flops_per_step is None
