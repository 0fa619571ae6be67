"""CIFAR-10: 50,000 + 10,000 colour photographs, 32x32, from the folder that Keras keeps."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradient_trainer.datasets import DataSet
from gradient_trainer.errors import DataSetError

FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-py-target/cifar-10-batches-py")
"""Folders into which Keras 2 and Keras 3 unpack the data set."""
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILES = ("test_batch",)
CLASSES = 10


class _ArraysOnly(pickle.Unpickler):
    """Reads the lists, bytes and NumPy arrays of the files, and executes nothing else that a file might contain."""

    def find_class(self, module: str, name: str) -> object:
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):  # bytes, as Python 3 writes them for Python 2
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}")


def load(folders: Sequence[Path]) -> DataSet:
    candidates = [folder / name for folder in folders for name in FOLDERS]
    data_folder = next((path for path in candidates if path.is_dir()), None)
    if data_folder is None:
        searched = "\n".join(f"  {path}" for path in candidates)
        raise DataSetError(
            f"data set 'cifar10' was not found; searched for\n{searched}\nUnpack cifar-10-python.tar.gz into one of "
            "these folders, name its folder with --data-dir, or use --data with a folder of images."
        )
    x_train, y_train = _read(data_folder, TRAIN_FILES)
    x_test, y_test = _read(data_folder, TEST_FILES)
    return DataSet("cifar10", str(data_folder), x_train, y_train, x_test, y_test, CLASSES, epochs=24)


def _read(folder: Path, names: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    images, labels = [], []
    for name in names:
        try:
            with (folder / name).open("rb") as file:
                content = _ArraysOnly(file, encoding="bytes").load()
            pixels = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32)
            numbers = np.asarray(content[b"labels"], np.int32)
        except (OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, pickle.UnpicklingError) as error:
            raise DataSetError(f"{folder / name} cannot be read as a batch of CIFAR-10 ({error}); fetch it") from error
        if numbers.shape != (len(pixels),) or not set(numbers.tolist()) <= set(range(CLASSES)):
            raise DataSetError(f"{folder / name} has wrong labels; fetch it again")
        images.append(pixels.transpose(0, 2, 3, 1))
        labels.append(numbers)
    return np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels)
