"""The input of a training: examples in memory or on disk → augmented batches, prepared while the device computes."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gradient_trainer.datasets import EncodedImages, Images

from .augmentation import SEEDS, augment
from .batches import Batches, Indices, padded

Labels = npt.NDArray[np.int32]


class Examples:
    """Labelled images that are read by their numbers.

    Args:
        images: Shape (examples, height, width, channels); may be a file mapped into memory, or encoded.
        labels: Shape (examples,).
        remote: Another machine prepares the input, so it gets a copy of all the images.
    """

    def __init__(self, images: Images, labels: Labels, *, remote: bool) -> None:
        self._encoded = images if isinstance(images, EncodedImages) else None
        with tf.device("CPU:0"):
            self._labels = tf.constant(labels)
            # TensorFlow needs memory that is aligned to 64 bytes; the cache's files are, other arrays may not be.
            if isinstance(images, EncodedImages):
                self._images = None
            elif isinstance(images, np.memmap) and not remote and images.ctypes.data % _ALIGNMENT == 0:
                # Shares the memory, so that a file larger than the memory is read page by page.
                self._images = tf.experimental.dlpack.from_dlpack(images.__dlpack__())
            else:
                self._images = tf.constant(images)

    def read(self, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return images and labels, in a graph of TensorFlow's input pipeline."""
        labels = tf.gather(self._labels, numbers)
        if self._encoded is None:
            return tf.gather(self._images, numbers), labels
        # Not stateful: TensorFlow would prepare one batch at a time, to be deterministic.
        images = tf.numpy_function(self._encoded.decode, [numbers], tf.uint8, stateful=False)
        return tf.ensure_shape(images, (*numbers.shape, *self._encoded.shape[1:])), labels


def training_batches(
    examples: Examples, batches: Batches, first: int, last: int, augmentations: Sequence[str]
) -> tf.data.Dataset:
    numbers = np.stack([batches.at(step) for step in range(first, last)])
    steps = np.arange(first, last, dtype=np.int64)

    def change(step: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seed = tf.stack([tf.constant(batches.seed, tf.int64), step * SEEDS])
        return augment(images, augmentations, seed), labels

    dataset = _dataset((steps, numbers)).map(lambda step, chosen: (step, *examples.read(chosen)), **_PARALLEL)
    dataset = dataset.map(change, **_PARALLEL) if augmentations else dataset.map(lambda _, *batch: batch)
    return dataset.prefetch(_PREFETCHED)


def evaluation_batches(examples: Examples, numbers: Indices, batch_size: int) -> tf.data.Dataset:
    """Return batches of one size, with weights that are 0 for the padding of the last one."""
    batches, weights = (np.stack(parts) for parts in zip(*padded(numbers, batch_size), strict=True))
    read: Callable[..., Any] = lambda chosen, weight: (*examples.read(chosen), weight)  # noqa: E731
    return _dataset((batches, weights)).map(read, **_PARALLEL).prefetch(_PREFETCHED)


def repeat_first(dataset: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """Return the first batch `steps` times, prepared once."""
    return dataset.take(1).cache().repeat(steps)


_PARALLEL: dict[str, Any] = {"num_parallel_calls": min(16, os.cpu_count() or 1), "deterministic": True}
_ALIGNMENT = 64
_PREFETCHED = 4  # batches prepared in advance
BUFFERED = _PREFETCHED + 2 * _PARALLEL["num_parallel_calls"]  # most batches that are prepared or in work at once


def _dataset(arrays: tuple[npt.NDArray[Any], ...]) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # Both would copy the images into the graph before they optimize it.
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices(arrays).with_options(options)
