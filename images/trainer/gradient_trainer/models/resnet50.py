"""ResNet-50 for large images, as Keras has it: 25.6 million parameters for 1,000 classes; for accelerators.

Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (arXiv:1512.03385), table 1: 3.8 billion
multiply-adds for an image of 224x224. Keras' convolutions also have biases, 26,560 parameters more.
"""

import keras
from keras import layers

MEAN = (123.675, 116.28, 103.53)
VARIANCE = (58.395**2, 57.12**2, 57.375**2)  # mean and variance of ImageNet's pixels, by channel


def build(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return an untrained network for images of three channels, and at least 32 pixels high and wide."""
    images = keras.Input(image_shape, name="image")
    hidden = layers.Normalization(mean=MEAN, variance=VARIANCE)(images)
    network = keras.applications.ResNet50(
        weights=None, input_shape=image_shape, classes=classes, classifier_activation=None
    )
    return keras.Model(images, network(hidden), name="resnet50")
