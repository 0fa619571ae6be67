"""Predictions for other machines, and hyper-parameters carried over to them."""

from dataclasses import replace

import pytest

from core.catalogue.machine_types import Catalogue
from core.comparison.hyperparameter_carry_over import carry_over, missing_hyperparameters
from core.comparison.peaks import SINGLE, peaks_of
from core.comparison.prediction import Correction, predict
from core.comparison.run_figures import RunFigures

MACHINES = Catalogue.load()
T4, V100, TPU = (MACHINES.get(name) for name in ("T4", "V100", "TPU"))
SOURCE = peaks_of(T4, SINGLE)
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
)


def test_start_up_takes_as_long_and_steps_scale():
    found = predict(RUN, SOURCE, V100)
    step = (4 / 15.7 + 20 / 900) / (4 / 8.1 + 20 / 320)
    assert found.step_seconds.value == pytest.approx(step)
    assert found.step_seconds.low == pytest.approx(320 / 900 / 1.25)
    assert found.step_seconds.high == pytest.approx(8.1 / 15.7 * 1.25)
    assert found.seconds.value == pytest.approx(30 + 1000 * step)
    assert found.cost.value == pytest.approx(found.seconds.value * 3.06 / 3600)
    assert found.notes == ()


def test_a_starved_run_is_not_faster_elsewhere():
    found = predict(replace(RUN, input_wait_share=0.9), SOURCE, V100)
    assert (found.step_seconds.value, found.step_seconds.low, found.step_seconds.high) == (1, 1, 1)
    assert "waits for its input" in found.notes[0]


def test_without_the_peaks_of_its_machine_the_interval_is_wide():
    found = predict(RUN, None, V100)
    assert found.step_seconds.high / found.step_seconds.low == pytest.approx(6)
    assert "not known" in found.notes[0]


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
    found = predict(replace(RUN, **changed), SOURCE, T4, bits=bits)
    assert (found.fits, found.memory_bytes) == (fits, most)


def test_measured_comparisons_correct_the_estimate():
    plain = predict(RUN, SOURCE, V100).step_seconds
    once = predict(RUN, SOURCE, V100, correction=Correction.of([2.0])).step_seconds
    assert (once.value, once.low) == pytest.approx((2 * plain.value, 2 * plain.low))
    often = predict(RUN, SOURCE, V100, correction=Correction.of([1.0, 2.0, 4.0])).step_seconds
    assert often.value == pytest.approx(2 * plain.value)
    assert (often.low, often.high) == pytest.approx((plain.value / 1.25, 4 * plain.value * 1.25))


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
