"""The input of a training: examples in memory or on disk → augmented batches, prepared while the device computes."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gradient_trainer.datasets import EncodedImages, Images

from .batches import Batches, Indices, padded

Labels = npt.NDArray[np.int32]
PADDING_SHARE = 8
"""An image is padded by an eighth of its height and width before it is cropped: 4 pixels of 32, as in the papers."""
CUTOUT_SHARE = 4  # the side of the square that `cutout` removes: 8 pixels of 32, as DavidNet has it
SEEDS = 8  # seeds of a step that `augment` may derive from the one it gets


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
    read: Callable[..., Any] = lambda chosen, weight: (*examples.read(chosen), weight)  # noqa: E731 - one of two, chosen below
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


def augment(images: tf.Tensor, names: Sequence[str], seed: tf.Tensor) -> tf.Tensor:
    """Return changed images, each in its own way.

    Args:
        images: uint8, shape (batch, height, width, channels), of a known height and width.
        names: `crop` (pad by reflection, cut the original size out), `crop-zeros` (pad by the batch's mean, which is 0
            once it is subtracted, as in He 2016), `flip` (left to right, every second image), `cutout` (a square of
            that mean, as in DeVries and Taylor 2017: black would shift what the network sees on average).
        seed: Shape (2,), int64; the second number is a multiple of SEEDS.
    """
    mean = tf.cast(tf.round(tf.reduce_mean(tf.cast(images, tf.float32), axis=[0, 1, 2])), images.dtype)
    if "crop" in names or "crop-zeros" in names:
        images = _crop(images, seed, None if "crop" in names else mean)
    if "flip" in names:
        chosen = _positions(images, 2, _derive(seed, 3))[:, :, tf.newaxis, tf.newaxis] == 0
        images = tf.where(chosen, tf.reverse(images, [2]), images)
    return _cut_out(images, seed, mean) if "cutout" in names else images


def _crop(images: tf.Tensor, seed: tf.Tensor, fill: tf.Tensor | None) -> tf.Tensor:
    height, width = images.shape[1:3]
    rows, columns = height // PADDING_SHARE, width // PADDING_SHARE
    paddings = [[0, 0], [rows, rows], [columns, columns], [0, 0]]
    padded = tf.pad(images, paddings, "REFLECT")
    if fill is not None:
        padded = tf.where(tf.pad(tf.ones_like(images, tf.bool), paddings), padded, fill)
    top = _positions(images, 2 * rows + 1, _derive(seed, 1))
    left = _positions(images, 2 * columns + 1, _derive(seed, 2))
    padded = tf.gather(padded, top + tf.range(height)[tf.newaxis], axis=1, batch_dims=1)
    return tf.gather(padded, left + tf.range(width)[tf.newaxis], axis=2, batch_dims=1)


def _cut_out(images: tf.Tensor, seed: tf.Tensor, fill: tf.Tensor) -> tf.Tensor:
    height, width = images.shape[1:3]
    rows, columns = height // CUTOUT_SHARE, width // CUTOUT_SHARE
    row = tf.range(height)[tf.newaxis] - _positions(images, height - rows + 1, _derive(seed, 4))
    column = tf.range(width)[tf.newaxis] - _positions(images, width - columns + 1, _derive(seed, 5))
    in_rows, in_columns = (row >= 0) & (row < rows), (column >= 0) & (column < columns)
    return tf.where((in_rows[:, :, tf.newaxis] & in_columns[:, tf.newaxis])[..., tf.newaxis], fill, images)


def _positions(images: tf.Tensor, choices: int, seed: tf.Tensor) -> tf.Tensor:
    """Return a random number below `choices` for each image, shape (batch, 1)."""
    return tf.random.stateless_uniform([tf.shape(images)[0], 1], seed, maxval=choices, dtype=tf.int32)


def _derive(seed: tf.Tensor, number: int) -> tf.Tensor:
    return tf.stack([seed[0], seed[1] + number])
