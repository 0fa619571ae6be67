"""The optimization on one and on several replicas."""

import pytest
from support.keras_process_functions import train_on_replicas
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
