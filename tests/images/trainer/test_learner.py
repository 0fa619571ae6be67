"""The optimization on one and on several replicas."""

import numpy as np
import pytest
from support.keras_process_functions import (
    one_cycled,
    optimized,
    replicas_in_use,
    train_on_replicas,
    trained_with_masters,
)
from support.trainer_process import call_with_keras

from gradient_trainer.errors import OptionsError
from gradient_trainer.recipes import Recipe

pytestmark = pytest.mark.tensorflow


# More than two replicas are those of a simulated TPU; the last execution of two steps is incomplete.
@pytest.mark.parametrize(
    ("optimizer", "replicas", "steps_per_execution"),
    [pytest.param("sgd", 2, 1, marks=pytest.mark.slow), ("adam", 4, 2)],
)
def test_replicas_change_neither_weight_decay_nor_evaluation(optimizer, replicas, steps_per_execution):
    recipe = Recipe(optimizer=optimizer, learning_rate=0.1, weight_decay=0.3)
    weights, loss, accuracy = call_with_keras(train_on_replicas, 1, recipe)
    divided = call_with_keras(train_on_replicas, replicas, recipe, steps_per_execution)
    assert divided[0] == pytest.approx(weights, rel=1e-4)
    assert divided[1:] == pytest.approx((loss, accuracy), rel=1e-4)
    without, _, _ = call_with_keras(train_on_replicas, 1, Recipe(optimizer=optimizer, learning_rate=0.1))
    assert sum(map(abs, weights)) < 0.95 * sum(map(abs, without))


def test_a_machine_without_so_many_devices_refuses():
    assert call_with_keras(replicas_in_use, 1) == 1
    with pytest.raises(OptionsError, match="--devices 2 is more than this machine has, which is 1"):
        call_with_keras(replicas_in_use, 2)


@pytest.mark.parametrize("name", ["torch-sgd", "torch-nesterov", "sgd", "nesterov"])
def test_the_momentum_of_the_papers_does_not_hold_the_learning_rate(name):
    rates, gradients = [0.1, 0.1, 0.01, 0.001], [1.0, -0.5, 0.25, 2.0]
    weight, summed, expected = 1.0, 0.0, []
    for rate, gradient in zip(rates, gradients, strict=True):
        if name.startswith("torch-"):  # torch.optim.SGD, as documented
            summed = 0.9 * summed + gradient
            weight -= rate * (gradient + 0.9 * summed if name.endswith("nesterov") else summed)
        else:  # keras.optimizers.SGD, as documented
            summed = 0.9 * summed - rate * gradient
            weight += 0.9 * summed - rate * gradient if name.endswith("nesterov") else summed
        expected.append(weight)
    assert call_with_keras(optimized, name, rates, gradients) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["adam", "sgd", "torch-nesterov"])
def test_the_momentum_of_one_cycle_falls_while_the_rate_rises(name):
    # A peak of 1 after 4 of 12 steps, each half along a cosine: fastai's fit_one_cycle with moms (0.95, 0.85, 0.95).
    half = (1 - 0.5**0.5) / 2
    rising, falling = [0, half, 0.5, 1 - half], [1, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060, 0]
    momenta = [0.95 - 0.1 * share for share in (*rising, *falling)]
    rates = [0.04 + 0.96 * share for share in rising] + [1e-5 + (1 - 1e-5) * share for share in falling]
    gradients = [1.0, -0.5, 0.25, 2.0, -1.0, 0.5, 0.125, -0.75, 1.0, 0.5, -0.25, 0.5, 1.0]
    weight, first, second, expected = 1.0, 0.0, 0.0, []
    for step, (rate, momentum, gradient) in enumerate(zip(rates, momenta, gradients, strict=True), 1):
        if name == "adam":
            first = momentum * first + (1 - momentum) * gradient
            second = 0.999 * second + 0.001 * gradient**2
            weight -= rate * (first / (1 - momentum**step)) / ((second / (1 - 0.999**step)) ** 0.5 + 1e-7)
        elif name == "sgd":
            first = momentum * first - rate * gradient
            weight += first
        else:
            first = momentum * first + gradient
            weight -= rate * (gradient + momentum * first)
        expected.append(weight)
    recipe = Recipe(optimizer=name, learning_rate=1, schedule="one-cycle", warm_up="4")
    found = call_with_keras(one_cycled, recipe, 12, gradients)
    assert found["momenta"] == pytest.approx(momenta, abs=1e-5)
    assert found["weights"] == pytest.approx(expected, rel=1e-3)


def test_the_momentum_of_other_schedules_stays():
    assert call_with_keras(one_cycled, Recipe(schedule="cosine"), 12, [1.0] * 13)["momenta"] is None


@pytest.mark.parametrize("name", ["torch-sgd", "sgd"])
def test_half_weights_follow_single_masters(name):
    rate, gradients = 0.001, [0.125, -0.0625, 0.25, 0.125, 0.5]
    master, summed, masters = 1.0, 0.0, []
    for gradient in gradients:  # at a constant rate the two forms are one
        summed = 0.9 * summed + gradient
        master -= rate * summed
        masters.append(master)
    found = call_with_keras(trained_with_masters, name, rate, gradients)
    assert found["types"] == ["float16", "float32", "float32", "float32", "float32"], "normalization is float32, too"
    assert found["masters"] == pytest.approx(masters, abs=1e-7)
    assert found["weights"] == [float(np.float16(each)) for each in found["masters"]]
    assert found["weights"][0] == 1.0, "a first step of 0.000125 is lost without a master"
    assert found["weights"][-1] < 1.0
