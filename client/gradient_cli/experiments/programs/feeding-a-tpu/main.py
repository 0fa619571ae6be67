"""Train on JPEG photographs that are decoded and augmented at every step, or once and then read from a cache on disk.

Writes the same metrics as the trainer; `input_wait_share` is 1 - pace / pace on one batch that was prepared beforehand.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import keras
import tensorflow as tf

from gradient_trainer.registry import DATASETS

SIZE = 64  # height and width that the network gets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", choices=("every-step", "cached"), required=True)
    parser.add_argument("--data", default="auto")
    parser.add_argument("--images", type=int, default=256, help="photographs")
    parser.add_argument("--side", type=int, default=1024, help="their height and width in the files")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)
    with tempfile.TemporaryDirectory() as cache:
        photos, labels = encode_photos(options)
        batches = make_batches(options, photos, labels, Path(cache))
        model = make_model()
        # One epoch fills the cache, compiles, and is left out of the pace.
        fit(model, batches, Reporter(silent=True), 0)
        reporter = Reporter()
        for epoch in range(options.epochs):
            fit(model, batches, reporter, epoch)
        starved = reporter.pace()
        without = Reporter(silent=True)
        prepared = tf.data.Dataset.from_tensors(next(iter(batches)))  # decoded before the pace is measured
        fit(model, prepared.repeat(len(batches)), without, 0)
    share = max(0.0, 1 - starved / without.pace())
    reporter.write({"input_wait_share": share, "batch_size": options.batch_size})


def encode_photos(options: argparse.Namespace) -> tuple[list[bytes], list[int]]:
    """Enlarge images of a real data set to photographs, and encode them as JPEG."""
    folders = [Path(os.environ.get("GRADIENT_STORAGE_DIR", "/storage")) / "datasets", Path("/storage/datasets")]
    data = DATASETS.get(options.data)([*folders, Path("~/.keras/datasets").expanduser()])
    print(f"data      {data.name} from {data.origin}", flush=True)
    photos = []
    for image in data.x_train[: options.images]:
        colour = tf.image.grayscale_to_rgb(tf.constant(image)) if image.shape[-1] == 1 else tf.constant(image)
        large = tf.cast(tf.image.resize(colour, (options.side, options.side)), tf.uint8)
        photos.append(tf.io.encode_jpeg(large).numpy())
    return photos, [int(label) for label in data.y_train[: options.images]]


def make_batches(options: argparse.Namespace, photos: list[bytes], labels: list[int], cache: Path) -> tf.data.Dataset:
    def decode(photo: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.resize(tf.io.decode_jpeg(photo, channels=3), (SIZE + 8, SIZE + 8))
        return tf.image.random_flip_left_right(tf.image.random_crop(image, (SIZE, SIZE, 3))), label

    dataset = tf.data.Dataset.from_tensor_slices((photos, labels)).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    if options.input == "cached":
        dataset = dataset.cache(str(cache / "photos"))
    return dataset.batch(options.batch_size, drop_remainder=True).prefetch(4)


def make_model() -> keras.Model:
    """Return a small network, for a device that is faster than its input."""
    layers = [keras.Input((SIZE, SIZE, 3)), keras.layers.Rescaling(1 / 255)]
    layers += [keras.layers.Conv2D(16, 5, strides=4, activation="relu"), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model


def fit(model: keras.Model, batches: tf.data.Dataset, reporter: Reporter, epoch: int) -> None:
    model.fit(batches, epochs=epoch + 1, initial_epoch=epoch, verbose=0, callbacks=[reporter])


class Reporter(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Appends a metrics line at the end of each epoch of a training unless silent, and measures the pace of all."""

    def __init__(self, *, silent: bool = False) -> None:
        super().__init__()
        self._silent = silent
        self._steps, self._seconds, self._began = 0, 0.0, 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002 - Keras' signature
        self._began, self._before = time.perf_counter(), self._steps

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002 - Keras' signature
        self._steps += 1

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002 - Keras' signature
        seconds = time.perf_counter() - self._began
        self._seconds += seconds
        pace = (self._steps - self._before) / seconds
        if not self._silent:
            self.write({"loss": float((logs or {})["loss"]), "steps_per_second": pace})
            print(f"step {self._steps}  {pace:.1f} steps/s", flush=True)

    def pace(self) -> float:
        """Return steps per second over all epochs."""
        return self._steps / self._seconds

    def write(self, values: dict[str, float]) -> None:
        """Append a line to the job's metrics."""
        with open(os.environ.get("GRADIENT_METRICS_FILE", os.devnull), "a", buffering=1, encoding="utf-8") as file:
            file.write(json.dumps({"step": self._steps, "time": time.time(), **values}) + "\n")


if __name__ == "__main__":
    main()
