"""The optimization on one and on several replicas."""

import numpy as np
import pytest
from support.keras_process_functions import optimized, train_on_replicas, trained_with_masters
from support.trainer_process import call_with_keras

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
