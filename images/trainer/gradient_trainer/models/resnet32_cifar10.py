"""ResNet-32 for 32x32 images: 464,154 parameters, without bottlenecks.

Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (arXiv:1512.03385), section 4.2 with n = 5:
6n + 2 layers, 0.46 million parameters (table 6), shortcuts without parameters (option A).
"""

from typing import Any

import keras
from keras import layers, ops

BLOCKS = 5  # residual blocks of each width: n in the paper
WIDTHS = (16, 32, 64)


def build(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return an untrained network, whose last feature maps are a quarter as wide as the image."""
    images = keras.Input(image_shape, name="image")
    hidden = layers.Rescaling(1 / 127.5, offset=-1)(images)
    hidden = layers.ReLU()(_convolution(hidden, WIDTHS[0]))
    for width in WIDTHS:
        for block in range(BLOCKS):
            hidden = _residual(hidden, width, 2 if block == 0 and width > WIDTHS[0] else 1)
    hidden = layers.GlobalAveragePooling2D()(hidden)
    logits = layers.Dense(classes, kernel_initializer="he_normal", name="logits")(hidden)
    return keras.Model(images, logits, name="resnet32_cifar10")


def _residual(shortcut: Any, width: int, stride: int) -> Any:  # noqa: ANN401 - Keras' symbolic tensors have no public type
    hidden = layers.ReLU()(_convolution(shortcut, width, stride))
    hidden = _convolution(hidden, width)
    if stride > 1:
        # Option A: every second pixel, and zeros for the added channels.
        added = width - shortcut.shape[-1]
        shortcut = ops.pad(shortcut[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (added // 2, added - added // 2)))
    return layers.ReLU()(layers.Add()([hidden, shortcut]))


def _convolution(hidden: Any, width: int, stride: int = 1) -> Any:  # noqa: ANN401 - see above
    hidden = layers.Conv2D(width, 3, stride, padding="same", use_bias=False, kernel_initializer="he_normal")(hidden)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(hidden)
