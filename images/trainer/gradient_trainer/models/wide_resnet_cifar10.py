"""Wide ResNet 28-10 for CIFAR-10: 36.5 million parameters; for accelerators.

Source: Zagoruyko, Komodakis, "Wide Residual Networks" (arXiv:1605.07146), table 1 and table 4 (WRN-28-10, without
dropout): pre-activation blocks of two 3x3 convolutions, in three groups of (28 - 4) / 6 blocks.
"""

from typing import Any

import keras
from keras import layers

DEPTH = 28
WIDEN = 10
BASE_WIDTHS = (16, 32, 64)
PER_BLOCK = 6
OUTSIDE_BLOCKS = 4


def build(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return an untrained network for images of any size."""
    images = keras.Input(image_shape, name="image")
    hidden = _convolution(layers.Rescaling(1 / 63.75, offset=-2)(images), BASE_WIDTHS[0])
    for width in BASE_WIDTHS:
        for block in range((DEPTH - OUTSIDE_BLOCKS) // PER_BLOCK):
            hidden = _residual(hidden, width * WIDEN, 2 if block == 0 and width > BASE_WIDTHS[0] else 1)
    hidden = layers.GlobalAveragePooling2D()(_activate(hidden))
    return keras.Model(images, layers.Dense(classes, name="logits")(hidden), name="wide_resnet_cifar10")


def _residual(hidden: Any, width: int, stride: int) -> Any:  # noqa: ANN401 - Keras' symbolic tensors have no public type
    activated = _activate(hidden)
    shortcut = hidden if hidden.shape[-1] == width else _convolution(activated, width, stride, size=1)
    inner = _convolution(activated, width, stride)
    return layers.Add()([_convolution(_activate(inner), width), shortcut])


def _activate(hidden: Any) -> Any:  # noqa: ANN401 - see above
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(hidden))


def _convolution(hidden: Any, width: int, stride: int = 1, size: int = 3) -> Any:  # noqa: ANN401 - see above
    make = layers.Conv2D(width, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal")
    return make(hidden)
