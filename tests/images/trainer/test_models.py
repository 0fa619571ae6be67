"""The models and recipes against the papers that their docstrings and comments name."""

from dataclasses import replace

import pytest
from support.keras_process_functions import describe_model, rates
from support.trainer_process import call_with_keras

from gradient_trainer.errors import OptionsError
from gradient_trainer.recipes import RECIPES, Recipe

pytestmark = pytest.mark.tensorflow

CIFAR10 = (32, 32, 3), 10
IMAGENET = (224, 224, 3), 1000


@pytest.mark.parametrize(
    ("name", "image_shape", "classes", "trainable", "multiply_adds"),
    [
        # 0.46 million in table 6 of the paper; 69 million multiply-adds in 6n + 2 = 32 layers.
        ("resnet32-cifar10", *CIFAR10, 464_154, 69e6),
        ("davidnet-cifar10", *CIFAR10, 6_573_120, 0.38e9),
        # 36.5 million in table 4.
        pytest.param("wide-resnet-cifar10", *CIFAR10, 36_479_194, 5.2e9, marks=pytest.mark.slow),
        # 3.8 billion in table 1, of the convolutions; 25,557,032 and Keras' 26,560 biases.
        pytest.param("resnet50", *IMAGENET, 25_557_032 + 26_560, 3.86e9, marks=pytest.mark.slow),
        ("mnist-cnn", (28, 28, 1), 10, 458_730, 6.05e6),
    ],
)
def test_a_model_has_the_size_of_its_paper(name, image_shape, classes, trainable, multiply_adds):
    found = call_with_keras(describe_model, name, image_shape, classes)
    assert found["trainable"] == trainable
    assert found["output"] == (None, classes)
    assert found["multiply_adds"] == pytest.approx(multiply_adds, rel=0.02)
    assert name != "resnet32-cifar10" or found["convolutions"] == 31, "and one dense layer"


@pytest.mark.parametrize(
    ("recipe", "per_epoch", "total", "expected"),
    [
        (RECIPES["resnet32-cifar10"], 390, 64_000, {0: 0.1, 31_999: 0.1, 32_000: 0.01, 47_999: 0.01, 48_000: 0.001}),
        (
            Recipe(learning_rate=0.1, schedule="piecewise", warm_up="0", milestones="40000,60000,80000"),
            390,
            90_000,
            {39_999: 0.1, 40_000: 0.01, 60_000: 0.001, 79_999: 0.001, 80_000: 0.0001},
        ),
        (
            replace(RECIPES["resnet32-cifar10"], milestones="40%,60%,80%"),
            371,
            100_000,
            {39_999: 0.1, 40_000: 0.01, 59_999: 0.01, 60_000: 0.001, 79_999: 0.001, 80_000: 0.0001, 99_999: 0.0001},
        ),
        (
            RECIPES["wide-resnet-cifar10"],
            10,
            2000,
            {0: 0.1, 599: 0.1, 600: 0.02, 1200: 0.004, 1599: 0.004, 1600: 0.0008},
        ),
        # Page: [0, 5, 24] epochs -> [0, 0.4, 0].
        (RECIPES["davidnet-cifar10"], 97, 24 * 97, {0: 0, 5 * 97: 0.4, 291: 0.24, 1455: 0.4 * 9 / 19, 24 * 97: 0}),
        (RECIPES["resnet50"], 10, 900, {0: 0, 25: 0.05, 50: 0.1, 299: 0.1, 300: 0.01, 600: 0.001, 800: 0.0001}),
        (Recipe(learning_rate=1, schedule="one-cycle", warm_up="25%"), 10, 400, {0: 0.04, 50: 0.52, 100: 1, 400: 1e-5}),
        (Recipe(learning_rate=1, schedule="constant", warm_up="4"), 10, 40, {0: 0, 1: 0.25, 4: 1, 39: 1}),
        (Recipe(learning_rate=1), 10, 100, {0: 0.1, 5: 0.55, 10: 1, 55: 0.5, 100: 0}),
    ],
)
def test_the_learning_rate_follows_its_schedule(recipe, per_epoch, total, expected):
    found = call_with_keras(rates, recipe, per_epoch, total, list(expected))
    assert found == pytest.approx(list(expected.values()), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("recipe", "complaint"),
    [
        (Recipe(warm_up="200"), "--warm-up 200 is 200 steps, more than the training's 100"),
        (Recipe(schedule="piecewise", warm_up="20", milestones="10,50"), "come after the warm-up of 20 steps"),
        (Recipe(schedule="piecewise", warm_up="0", milestones="50,5e"), "must rise"),
    ],
)
def test_a_schedule_that_is_impossible_is_refused(recipe, complaint):
    with pytest.raises(OptionsError, match=complaint):
        call_with_keras(rates, recipe, 10, 100, [0])
