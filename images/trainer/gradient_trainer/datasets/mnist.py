"""MNIST: 60,000 + 10,000 handwritten digits, 28x28, from mnist.npz as Keras keeps it."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradient_trainer.datasets import DataSet
from gradient_trainer.errors import DataSetError

FILE_NAME = "mnist.npz"
IMAGE_DIMENSIONS = 3
CLASSES = 10


def find(folders: Sequence[Path]) -> Path | None:
    """Return the first mnist.npz in `folders`, or None."""
    return next((folder / FILE_NAME for folder in folders if (folder / FILE_NAME).is_file()), None)


def load(folders: Sequence[Path]) -> DataSet:
    path = find(folders)
    if path is None:
        searched = "\n".join(f"  {folder / FILE_NAME}" for folder in folders)
        raise DataSetError(
            f"data set 'mnist' was not found; searched for\n{searched}\n"
            f"Put {FILE_NAME} into one of these folders, name its folder with --data-dir, or use --data digits."
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x_train, y_train, x_test, y_test = (arrays[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataSetError(f"{path} cannot be read as Keras' mnist.npz ({error}); fetch it again") from error
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        if images.ndim != IMAGE_DIMENSIONS or not len(labels) or labels.shape != (len(images),):
            raise DataSetError(
                f"{path} holds images of shape {images.shape} with labels of shape {labels.shape}, "
                "not (examples, height, width) with (examples,); fetch it again"
            )
        if labels.min() < 0 or labels.max() >= CLASSES:
            raise DataSetError(f"{path} holds labels outside 0..{CLASSES - 1}; fetch it again")
    return DataSet(
        name="mnist",
        origin=str(path),
        x_train=x_train[..., np.newaxis].astype(np.uint8, copy=False),
        y_train=y_train.astype(np.int32),
        x_test=x_test[..., np.newaxis].astype(np.uint8, copy=False),
        y_test=y_test.astype(np.int32),
        classes=CLASSES,
        epochs=2,
    )
