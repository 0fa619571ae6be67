"""DavidNet in plain Keras, as one would write it without the trainer, on the same images.

Usage: `ZIP EPOCHS BATCH RATE WARM-UP SEED LOG-STEPS`.

Model, data and validation split are the trainer's; loop, optimizer and schedule are Keras', and the order of the
examples is TensorFlow's: Keras' own is the same in every epoch once a seed is set, which cost about one point of
accuracy in four epochs.
Prints a line of JSON: training loss and validation accuracy by step, and the test accuracy.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from gradient_trainer.datasets._files import load_files
from gradient_trainer.options import TrainOptions
from gradient_trainer.recipes import span_steps
from gradient_trainer.registry import MODELS
from gradient_trainer.training.batches import split_validation

DECAY = 0.0005
LOSS = "cross_entropy"


class Triangle(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras has no types
    """A learning rate that rises along a line to its peak, and falls along one to 0."""

    def __init__(self, peak: float, rise: int, total: int) -> None:
        self.peak, self.rise, self.total = peak, rise, total

    def __call__(self, step: object) -> object:
        """Return the learning rate of a step."""
        number = keras.ops.cast(step, "float32")
        falling = (self.total - number) / max(1, self.total - self.rise)
        return self.peak * keras.ops.minimum(number / max(1, self.rise), falling)


class Losses(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Keeps the loss since the last report, without the weight decay, every few steps and at an epoch's end."""

    def __init__(self, every: int, per_epoch: int) -> None:
        super().__init__()
        self.every, self.per_epoch = every, per_epoch
        self.step, self.found = 0, list[tuple[int, float]]()
        self.before = (0, 0.0)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:  # noqa: ARG002 - Keras' signature
        """Begin new sums, as Keras does."""
        self.before = (0, 0.0)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Count a step."""
        self.step += 1
        count = batch + 1
        if self.step % self.every == 0 or count == self.per_epoch:
            total = (logs or {})[LOSS] * count
            self.found.append((self.step, (total - self.before[1]) / (count - self.before[0])))
            self.before = (count, total)


def main() -> None:
    """Train and print."""
    source, (epochs, batch) = Path(sys.argv[1]), map(int, sys.argv[2:4])
    peak, warm_up, (seed, log_steps) = float(sys.argv[4]), sys.argv[5], map(int, sys.argv[6:])
    keras.utils.set_random_seed(seed)
    data = load_files(source, None, TrainOptions().cache_folder())
    chosen, kept = split_validation(len(data.x_train), TrainOptions().validation_split)
    per_epoch = len(chosen) // batch
    chosen = chosen[: per_epoch * batch]
    model = MODELS.get("davidnet-cifar10")(data.image_shape, data.classes)
    for weight in model.trainable_variables:
        weight.regularizer = keras.regularizers.L2(DECAY / 2)
    rate = Triangle(peak, span_steps(warm_up, per_epoch, epochs * per_epoch), epochs * per_epoch)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(LOSS, from_logits=True)],
        jit_compile=False,
    )
    images, labels = np.asarray(data.x_train), np.asarray(data.y_train)
    examples = tf.data.Dataset.from_tensor_slices((images[chosen], labels[chosen]))
    losses = Losses(log_steps, per_epoch)
    history = model.fit(
        examples.shuffle(len(chosen), seed).batch(batch).prefetch(tf.data.AUTOTUNE),
        epochs=epochs,
        validation_data=(images[kept], labels[kept]),
        validation_batch_size=batch,
        verbose=0,
        callbacks=[losses],
    )
    accuracy = model.evaluate(
        np.asarray(data.x_test), np.asarray(data.y_test), batch_size=batch, verbose=0, return_dict=True
    )["accuracy"]
    curve = [(per_epoch * number, value) for number, value in enumerate(history.history["val_accuracy"], 1)]
    print(json.dumps({"curve": curve, "losses": losses.found, "test_accuracy": accuracy}))


if __name__ == "__main__":
    main()
