"""A model with its optimizer: the part of a training that computes."""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from .batches import Indices, padded
from .checkpoints import Arrays
from .errors import OtherTrainingError

WARM_UP_SHARE = 0.1
WARM_UP_START = 0.1

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]


class Learner:
    """Trains a model step by step and evaluates it.

    Args:
        model: Takes float32 images in 0..255, returns logits.
        peak_rate: The highest learning rate.
        total_steps: Steps of the whole training; the learning rate reaches zero there.
    """

    def __init__(self, model: keras.Model, peak_rate: float, total_steps: int) -> None:
        self.model = model
        self._schedule = one_cycle(peak_rate, total_steps)
        self._optimizer = keras.optimizers.Adam(self._schedule)
        self._optimizer.build(model.trainable_variables)
        self._losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        self._mean_loss = keras.metrics.Mean()
        self._mean_accuracy = keras.metrics.Mean()
        self._train_step = tf.function(self._compute_train_step)
        self._evaluate_step = tf.function(self._compute_evaluate_step)

    def train(self, images: Images, labels: Labels) -> None:
        """Do one step on a batch; every batch has to have the same shape."""
        self._train_step(tf.constant(images), tf.constant(labels))

    def averages(self) -> tuple[float, float]:
        """Loss and accuracy, averaged over the steps since the last call."""
        loss, accuracy = float(self._mean_loss.result()), float(self._mean_accuracy.result())
        self._mean_loss.reset_state()
        self._mean_accuracy.reset_state()
        return loss, accuracy

    def evaluate(self, images: Images, labels: Labels, examples: Indices, batch_size: int) -> tuple[float, float]:
        """Loss and accuracy on the given examples, each counted once."""
        sums = np.zeros(2)
        for batch, weights in padded(examples, batch_size):
            inputs = (tf.constant(images[batch]), tf.constant(labels[batch]), tf.constant(weights))
            sums += self._evaluate_step(*inputs).numpy()
        loss, accuracy = sums / len(examples)
        return float(loss), float(accuracy)

    def learning_rate(self, step: int) -> float:
        """The rate that a step, counted from 0, is done with."""
        return float(self._schedule(step))

    def arrays(self) -> Arrays:
        """Every variable, those of the optimizer and of random layers included, by name."""
        return {name: variable.numpy() for name, variable in self._variables().items()}

    def load(self, arrays: Arrays) -> None:
        """Set every variable.

        Raises:
            OtherTrainingError: The arrays are not those of this model.
        """
        variables = self._variables()
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        if shapes != {name: array.shape for name, array in arrays.items()}:
            raise OtherTrainingError(
                "the checkpoint's variables are not those of the model, which has changed since; "
                "choose another --output, or begin anew with --restart"
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def _variables(self) -> dict[str, Any]:
        every = [*self.model.variables, *self._optimizer.variables]
        # Two layers of a model may share a name, hence the number.
        return {f"{number:04d}/{variable.path}": variable for number, variable in enumerate(every)}

    def _compute_train_step(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = self.model(tf.cast(images, tf.float32), training=True)
            loss = tf.reduce_mean(self._losses(labels, logits)) + sum(self.model.losses)
        weights = self.model.trainable_variables
        self._optimizer.apply(tape.gradient(loss, weights), weights)
        self._mean_loss.update_state(loss)
        self._mean_accuracy.update_state(_recognized(labels, logits))

    def _compute_evaluate_step(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        logits = self.model(tf.cast(images, tf.float32), training=False)
        of_each = tf.stack([self._losses(labels, logits), _recognized(labels, logits)])
        return tf.reduce_sum(of_each * weights, axis=1)


def one_cycle(peak_rate: float, total_steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """A learning rate that rises linearly over the first tenth of the steps, then falls as a cosine to 0."""
    warm_up = max(1, round(total_steps * WARM_UP_SHARE))
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=peak_rate * WARM_UP_START,
        decay_steps=max(1, total_steps - warm_up),
        warmup_target=peak_rate,
        warmup_steps=warm_up,
    )


def _recognized(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.argmax(logits, axis=1, output_type=labels.dtype) == labels, tf.float32)
