"""DavidNet, a ResNet of 9 layers for CIFAR-10: 6,573,120 parameters, made to reach 94 % in 24 epochs.

Source: D. Page, "How to Train Your ResNet" (myrtle.ai, 2018), parts 3 and 4; code: github.com/davidcpage/cifar10-fast,
experiments.ipynb. The name is that of Fenwicks, which trains it on TPUs.
"""

from typing import Any

import keras
from keras import layers

LOGIT_SCALE = 0.125
MEAN = (125.31, 122.95, 113.87)
VARIANCE = (62.99**2, 62.09**2, 66.70**2)  # mean and variance of the pixels of CIFAR-10's training images, by channel


def build(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return an untrained network for images of three channels, and at least 32 pixels high and wide."""
    images = keras.Input(image_shape, name="image")
    hidden = _convolution(layers.Normalization(mean=MEAN, variance=VARIANCE)(images), 64)
    hidden = _residual(layers.MaxPooling2D()(_convolution(hidden, 128)))
    hidden = layers.MaxPooling2D()(_convolution(hidden, 256))
    hidden = _residual(layers.MaxPooling2D()(_convolution(hidden, 512)))
    hidden = layers.Dense(classes, use_bias=False)(layers.GlobalMaxPooling2D()(hidden))
    return keras.Model(images, layers.Rescaling(LOGIT_SCALE, name="logits")(hidden), name="davidnet_cifar10")


def _residual(hidden: Any) -> Any:  # noqa: ANN401 - Keras' symbolic tensors have no public type
    width = hidden.shape[-1]
    return layers.Add()([hidden, _convolution(_convolution(hidden, width), width)])


def _convolution(hidden: Any, width: int) -> Any:  # noqa: ANN401 - see above
    hidden = layers.Conv2D(width, 3, padding="same", use_bias=False)(hidden)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(hidden))
