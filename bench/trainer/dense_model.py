"""A model whose steps are so short that the way to the device decides: one layer."""

import keras


def build(image_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return the model, of images in 0..255."""
    images = keras.Input(image_shape)
    logits = keras.layers.Dense(classes)(keras.layers.Flatten()(images / 255.0))
    return keras.Model(images, logits)
