"""DavidNet in plain Keras, as one would write it without the trainer, on the same images. Usage: `ZIP EPOCHS SEED`.

Model, data and validation split are the trainer's; loop, optimizer, schedule and order of the examples are Keras'.
Prints a line of JSON: the validation accuracy by step, and the test accuracy.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np

from gradient_trainer.datasets._files import load_files
from gradient_trainer.options import TrainOptions
from gradient_trainer.registry import MODELS
from gradient_trainer.training.batches import split_validation

BATCH, PEAK, WARM_UP_EPOCHS, DECAY = 512, 0.4, 5, 0.0005


class Triangle(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras has no types
    """A learning rate that rises along a line to its peak, and falls along one to 0."""

    def __init__(self, rise: int, total: int) -> None:
        self.rise, self.total = rise, total

    def __call__(self, step: object) -> object:
        """Return the learning rate of a step."""
        number = keras.ops.cast(step, "float32")
        falling = (self.total - number) / max(1, self.total - self.rise)
        return PEAK * keras.ops.minimum(number / max(1, self.rise), falling)


def main() -> None:
    """Train and print."""
    source, epochs, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    keras.utils.set_random_seed(seed)
    data = load_files(source, None, TrainOptions().cache_folder())
    chosen, kept = split_validation(len(data.x_train), TrainOptions().validation_split)
    per_epoch = len(chosen) // BATCH
    chosen = chosen[: per_epoch * BATCH]
    model = MODELS.get("davidnet-cifar10")(data.image_shape, data.classes)
    for weight in model.trainable_variables:
        weight.regularizer = keras.regularizers.L2(DECAY / 2)
    rate = Triangle(min(WARM_UP_EPOCHS, epochs) * per_epoch, epochs * per_epoch)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    images, labels = np.asarray(data.x_train), np.asarray(data.y_train)
    history = model.fit(
        *(images[chosen], labels[chosen]),
        batch_size=BATCH,
        epochs=epochs,
        validation_data=(images[kept], labels[kept]),
        verbose=0,
    )
    _, accuracy = model.evaluate(np.asarray(data.x_test), np.asarray(data.y_test), batch_size=BATCH, verbose=0)
    curve = [(per_epoch * number, value) for number, value in enumerate(history.history["val_accuracy"], 1)]
    print(json.dumps({"curve": curve, "test_accuracy": accuracy}))


if __name__ == "__main__":
    main()
