"""A model with its optimizer: the computing part of a training."""

from collections.abc import Callable
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
    """Trains a model step by step and evaluates it, with each batch divided over the replicas of a strategy.

    Args:
        build: Creates the model, which takes float32 images in 0..255 and returns logits.
        strategy: The devices to compute on; batch sizes must be multiples of its number of replicas.
        peak_rate: The highest learning rate.
        total_steps: Steps of the whole training, after which the learning rate is zero.
    """

    def __init__(
        self,
        build: Callable[[], keras.Model],
        strategy: tf.distribute.Strategy,
        peak_rate: float,
        total_steps: int,
    ) -> None:
        self._strategy = strategy
        with strategy.scope():
            self.model = build()
            self._schedule = one_cycle(peak_rate, total_steps)
            self._optimizer = keras.optimizers.Adam(self._schedule)
            self._optimizer.build(self.model.trainable_variables)
        self._losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        self._seen: list[tf.Tensor] = []
        self._train_step = tf.function(self._compute_train_step)
        self._evaluate_step = tf.function(self._compute_evaluate_step)

    def train(self, images: Images, labels: Labels) -> None:
        """Train one step on a batch; all batches must have the same shape."""
        self._seen.append(self._train_step(self._split(images), self._split(labels)))

    def averages(self) -> tuple[float, float]:
        """Return loss and accuracy, averaged over the steps since the last call."""
        loss, accuracy = np.mean([values.numpy() for values in self._seen], axis=0)
        self._seen.clear()
        return float(loss), float(accuracy)

    def _split(self, whole: npt.NDArray[Any]) -> Any:  # noqa: ANN401 - TensorFlow's values by replica have no public type
        """Divide an array into one part for each replica."""
        parts = np.split(whole, self._strategy.num_replicas_in_sync)

        def part(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
            return tf.constant(parts[context.replica_id_in_sync_group])

        return self._strategy.experimental_distribute_values_from_function(part)

    def evaluate(self, images: Images, labels: Labels, examples: Indices, batch_size: int) -> tuple[float, float]:
        """Return loss and accuracy on the given examples, each counted once."""
        sums = np.zeros(2)
        for batch, weights in padded(examples, batch_size):
            inputs = (self._split(each) for each in (images[batch], labels[batch], weights))
            sums += self._evaluate_step(*inputs).numpy()
        loss, accuracy = sums / len(examples)
        return float(loss), float(accuracy)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return float(self._schedule(step))

    def arrays(self) -> Arrays:
        """Return every variable by name, including those of the optimizer and of random layers."""
        return {name: keras.ops.convert_to_numpy(variable) for name, variable in self._variables().items()}

    def load(self, arrays: Arrays) -> None:
        """Set every variable.

        Raises:
            OtherTrainingError: The arrays do not belong to this model.
        """
        variables = self._variables()
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        if shapes != {name: array.shape for name, array in arrays.items()}:
            raise OtherTrainingError(
                "the checkpoint's variables are not those of the model, which has changed since; "
                "choose another --output, or start from the beginning with --restart"
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def _variables(self) -> dict[str, Any]:
        every = [*self.model.variables, *self._optimizer.variables]
        # Two layers of a model may share a name, hence the number.
        return {f"{number:04d}/{variable.path}": variable for number, variable in enumerate(every)}

    def _compute_train_step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        parts = self._strategy.run(self._train_part, (images, labels))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

    def _train_part(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        # Gradients are summed over the replicas: each contributes its share of the mean over the whole batch.
        replicas = self._strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            logits = self.model(tf.cast(images, tf.float32), training=True)
            loss = (tf.reduce_mean(self._losses(labels, logits)) + sum(self.model.losses)) / replicas
        weights = self.model.trainable_variables
        self._optimizer.apply(tape.gradient(loss, weights), weights)
        return tf.stack([loss, tf.reduce_mean(_count_correct(labels, logits)) / replicas])

    def _compute_evaluate_step(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        parts = self._strategy.run(self._evaluate_part, (images, labels, weights))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None)

    def _evaluate_part(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        logits = self.model(tf.cast(images, tf.float32), training=False)
        of_each = tf.stack([self._losses(labels, logits), _count_correct(labels, logits)])
        return tf.reduce_sum(of_each * weights, axis=1)


def one_cycle(peak_rate: float, total_steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return a learning rate that rises linearly over a tenth of the steps, then falls as a cosine to 0."""
    warm_up = max(1, round(total_steps * WARM_UP_SHARE))
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=peak_rate * WARM_UP_START,
        decay_steps=max(1, total_steps - warm_up),
        warmup_target=peak_rate,
        warmup_steps=warm_up,
    )


def _count_correct(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.argmax(logits, axis=1, output_type=labels.dtype) == labels, tf.float32)
