"""Predictions for other machines, and hyper-parameters carried over to them."""

from dataclasses import replace

import pytest

from core.catalogue.machine_types import Catalogue
from core.comparison.corrections import Correction, Experience
from core.comparison.hyperparameter_carry_over import carry_over, missing_hyperparameters
from core.comparison.measurement import RunFigures
from core.comparison.peaks import SINGLE, peaks_of
from core.comparison.prediction import Source, decline, predict

MACHINES = Catalogue.load()
T4, V100, TPU = (MACHINES.get(name) for name in ("T4", "V100", "TPU"))
SOURCE = Source("T4", peaks_of(T4, SINGLE))
UNKNOWN = Source(None, None)
RUN = RunFigures(
    seconds=1030,
    steps_per_second=1.0,
    input_wait_share=0.0,
    startup_seconds=10,
    compile_seconds=20,
    flops_per_step=4e12,
    bytes_per_step=2e10,
    compute_bits=SINGLE,
    peak_device_bytes=10e9,
    gpu_busy_share=1.0,
)
REACHED = (4 / 8.1 + 20 / 320) / 0.6
RATIO = (4 / 15.7 + 20 / 900) / (4 / 8.1 + 20 / 320)
"""Share that a T4 reaches of what large networks reach, and the least time of a step on a V100 over that on a T4."""


def test_start_up_takes_as_long_and_steps_scale():
    found = predict(RUN, SOURCE, V100)
    part = 1 - REACHED + REACHED * RATIO
    step = (RATIO + part) / 2
    assert found.step_seconds.value == pytest.approx(step)
    assert (found.step_seconds.low, found.step_seconds.high) == pytest.approx((RATIO / 2, part * 2))
    assert found.seconds.value == pytest.approx(30 + 1000 * step)
    assert (found.seconds.low, found.seconds.high) == pytest.approx((15 + 500 * RATIO, 60 + 2000 * part))
    assert found.cost.value == pytest.approx(found.seconds.value * 3.06 / 3600)
    assert found.notes == ()


def test_what_lies_outside_of_the_steps_takes_as_long_though_no_start_up_was_reported():
    run = replace(RUN, startup_seconds=None, compile_seconds=None, stepping_seconds=100)
    found, step = predict(run, SOURCE, V100).seconds, predict(run, SOURCE, V100).step_seconds
    assert found.value == pytest.approx(930 + 100 * step.value)
    assert (found.low, found.high) == pytest.approx((1030 * step.low, 2 * 930 + 100 * step.high))


@pytest.mark.parametrize("busy", [None, 1.0])
@pytest.mark.parametrize("idle", [0.2, 0.5, 0.8])
def test_the_interval_has_all_that_may_be_no_work_of_the_device(busy, idle):
    """A program that sleeps for a share of each step, and otherwise reaches the peak or 0.6 of it."""
    reaches = 0.6 if busy else 1.0
    least = SOURCE.peaks.seconds(RUN.flops_per_step, RUN.bytes_per_step) / reaches
    run = replace(RUN, steps_per_second=(1 - idle) / least, gpu_busy_share=busy)
    fast = MACHINES.get("H100")
    shorter = peaks_of(fast, SINGLE).seconds(RUN.flops_per_step, RUN.bytes_per_step) / reaches
    truth = idle / run.steps_per_second + shorter
    found = predict(run, SOURCE, fast).step_seconds
    assert found.low <= truth <= found.high


@pytest.mark.parametrize("wait", [0.02, 0.1])
def test_no_small_wait_for_input_hides_the_interval(wait):
    waiting, fast = replace(RUN, input_wait_share=wait), MACHINES.get("H200")
    # A correction leaves almost nothing of this step but the wait, and in the interval what may be no work of a device.
    found = predict(waiting, SOURCE, fast, correction=Correction(1e-6, 1)).step_seconds
    rest = max(0, 1 - wait - REACHED)
    assert (found.low, found.value, found.high) == pytest.approx(
        (wait / 2, wait, 2 * (wait + rest)), rel=1e-3, abs=1e-5
    )


def test_a_prediction_of_its_own_machine_is_the_run():
    found = predict(RUN, SOURCE, T4, correction=Correction(2.0, 3))
    assert (found.step_seconds.value, found.step_seconds.low, found.step_seconds.high) == (1, 1, 1)
    assert found.seconds.value == pytest.approx(1030)
    assert found.correction is None
    assert "Measured" in found.notes[0]
    assert predict(RUN, SOURCE, T4, bits=16).step_seconds.value < 1
    assert predict(RUN, replace(UNKNOWN, peaks=SOURCE.peaks), T4).step_seconds.high > 1, "another machine"


@pytest.mark.parametrize("changed", [{}, {"flops_per_step": None}, {"steps_per_second": None}, {"replicas": 64}])
@pytest.mark.parametrize("source", [Source("T4", None), Source("host", None, "overhead", stand_in_for="T4")])
def test_its_own_machine_took_what_was_measured_whatever_is_known(changed, source):
    found = predict(replace(RUN, **changed), source, T4)
    assert (found.seconds.low, found.seconds.value, found.seconds.high) == (1030, 1030, 1030)
    assert decline(RUN, source, V100) is not None


@pytest.mark.parametrize("kind", ["overhead", "startup", "communication"])
def test_what_no_device_makes_shorter_is_not_predicted(kind):
    bound = replace(SOURCE, bound_by=kind)
    for machine in MACHINES:
        if machine.name != "T4":
            assert predict(RUN, bound, machine) is None
            assert decline(RUN, bound, machine).startswith("About as fast")
    assert predict(RUN, bound, T4).step_seconds.value == 1


def test_many_replicas_are_not_perfect():
    one, eight = (MACHINES.get(name) for name in ("TPU v6e-1", "TPU v6e-8"))
    run = replace(RUN, steps_per_second=3, batch_size=1024)
    alone, together = (predict(run, SOURCE, machine) for machine in (one, eight))
    assert alone.step_seconds.value / together.step_seconds.value < 8 * 0.9**3 + 0.001
    assert "90 %" in together.notes[0]


def test_a_batch_that_does_not_divide_is_refused():
    for batch, reason in ((12, "cannot be divided evenly among 8"), (None, "batch_size was not reported")):
        run = replace(RUN, batch_size=batch)
        assert predict(run, SOURCE, TPU) is None
        assert reason in decline(run, SOURCE, TPU)
    assert decline(replace(RUN, batch_size=16), SOURCE, TPU) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"flops_per_step": 51200, "bytes_per_step": 1e3}, "overhead"),
        ({"flops_per_step": 51200, "bytes_per_step": 1e3, "input_wait_share": None}, "overhead"),
        ({"input_wait_share": 0.8}, "waits for its input 80% of a step"),
        ({"input_wait_share": 1.0}, "waits for its input"),
        ({"gpu_busy_share": 0.5}, "overhead"),
        ({"flops_per_step": 1e20}, "is wrong"),
        ({"bytes_per_step": 1e20}, "is wrong"),
        ({"steps_per_second": 1e6}, "is wrong"),
    ],
)
def test_what_says_nothing_of_another_machine_is_declined(changed, reason):
    for machine in (V100, MACHINES.get("H100"), MACHINES.get("K80")):
        run = replace(RUN, **changed)
        assert predict(run, SOURCE, machine, correction=Correction(0.1, 2)) is None
        assert reason in decline(run, SOURCE, machine)


def test_nothing_is_assumed_of_a_machine_that_is_not_known():
    assert predict(RUN, UNKNOWN, V100) is None
    assert "peaks of the machine that ran it are unknown" in decline(RUN, UNKNOWN, V100)


def test_what_lacks_a_figure_is_not_predicted():
    assert predict(replace(RUN, bytes_per_step=None), SOURCE, V100) is None
    no_peak = V100.model_copy(update={"tflops": {"int8": 1.0}})
    assert predict(RUN, SOURCE, no_peak) is None


@pytest.mark.parametrize(
    ("changed", "bits", "fits", "most"),
    [
        ({}, None, True, 10e9),
        ({"peak_device_bytes": 15e9}, None, False, 15e9),
        ({"peak_device_bytes": 20e9}, 16, None, 20e9),
        ({"peak_device_bytes": 40e9}, 16, False, 40e9),
        ({"peak_device_bytes": None}, None, None, None),
        ({"peak_device_bytes": None, "gpu_memory_bytes": 15.5e9}, None, None, 15.5e9),
        ({"peak_device_bytes": None, "peak_host_bytes": 2e9}, None, True, 2e9),
    ],
)
def test_memory(changed, bits, fits, most):
    found = predict(replace(RUN, **changed), replace(SOURCE, machine_type=None), T4, bits=bits)
    assert (found.fits, found.memory_bytes) == (fits, most)


def test_experience_fits_all_comparisons_by_least_squares_and_links_machines():
    found = Experience([{"A": 1.0, "B": 2.0}, {"A": 3.0, "B": 24.0}, {"B": 1.0, "C": 3.0}, {"D": 1.0, "E": 5.0}])
    assert found.correct("A", "B") == Correction(pytest.approx(4.0), 3)
    assert found.correct("A", "C").ratio == pytest.approx(12.0)
    assert found.correct("A", "E") is None, "never compared, also not over others"


def test_each_replica_takes_as_many_examples_as_before():
    on_tpu = RunFigures(batch_size=512, peak_learning_rate=0.4, weight_decay=0.000125, replicas=8)
    carried = carry_over(on_tpu, T4)
    assert (carried.batch_size, carried.learning_rate, carried.weight_decay) == (64, pytest.approx(0.05), 0.000125)
    assert len(carried.reasons) == 3
    back = carry_over(replace(on_tpu, batch_size=64, peak_learning_rate=0.05, replicas=1), TPU)
    assert (back.batch_size, back.learning_rate) == (512, pytest.approx(0.4))
    assert carry_over(on_tpu, TPU).learning_rate == 0.4
    assert carry_over(replace(on_tpu, replicas=None), T4) is None
    assert missing_hyperparameters(replace(on_tpu, replicas=None)) == ["replicas"]


def test_a_batch_that_leaves_few_steps_of_an_epoch_is_warned_of():
    run = RunFigures(batch_size=128, peak_learning_rate=0.1, replicas=1, steps_per_epoch=351)
    large = max(MACHINES, key=lambda one: one.replicas)
    found = carry_over(run, large)
    assert "warning: only about" in found.reasons[-1]
    assert "steps per epoch are left" in found.reasons[-1]
    assert not any("warning" in text for text in carry_over(run, TPU).reasons)
    assert not any("warning" in text for text in carry_over(replace(run, steps_per_epoch=None), large).reasons)
