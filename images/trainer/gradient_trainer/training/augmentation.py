"""Random changes of training images, in TensorFlow's input pipeline; a pure function of the seed and the step."""

from collections.abc import Sequence

import tensorflow as tf

PADDING_SHARE = 8
"""An image is padded by an eighth of its height and width before it is cropped: 4 pixels of 32, as in the papers."""
CUTOUT_SHARE = 4  # the side of the square that `cutout` removes: 8 pixels of 32, as DavidNet has it

SEEDS = 8  # seeds of a step that `augment` may derive from the one it gets


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
