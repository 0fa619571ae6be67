"""Keras' `model.fit` on the trainer's model and digits, and nothing else.

Prints steps per second and CPU seconds per step. Usage: `STEPS`.
"""

import sys
import time

import keras

from gradient_trainer.registry import DATASETS, MODELS

BATCH_SIZE = 64


def main() -> None:
    """Train one epoch to compile, then measure the steps that follow."""
    data = DATASETS.get("digits")([])
    model = MODELS.get("mnist-cnn")(data.image_shape, data.classes)
    # As the trainer has it: TensorFlow's own kernels, and JAX compiled.
    jit = keras.backend.backend() == "jax"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"], jit_compile=jit)
    whole = len(data.x_train) // BATCH_SIZE
    images, labels = data.x_train[: whole * BATCH_SIZE], data.y_train[: whole * BATCH_SIZE]
    model.fit(images, labels, batch_size=BATCH_SIZE, epochs=1, verbose=0)
    epochs = max(1, int(sys.argv[1]) // whole)
    began, cpu_began = time.perf_counter(), time.process_time()
    model.fit(images, labels, batch_size=BATCH_SIZE, epochs=epochs, verbose=0)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    print(epochs * whole / seconds, cpu_seconds / (epochs * whole))


if __name__ == "__main__":
    main()
