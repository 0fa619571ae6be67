"""The data sets. Each file defines `load(folders)`, which returns a DataSet.

`folders` are searched in order; a data set that needs no files ignores them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class EncodedImages:
    """Images that are decoded whenever they are read."""

    shape: tuple[int, int, int, int]
    # takes numbers of images and returns their pixels; may be called by several threads
    decode: Callable[[npt.NDArray[np.intp]], npt.NDArray[np.uint8]]

    def __len__(self) -> int:
        return self.shape[0]


Images = npt.NDArray[np.uint8] | EncodedImages


@dataclass(frozen=True)
class DataSet:
    """Labelled images, divided into training and test examples."""

    name: str  # the name chosen with `--data`
    origin: str
    # images, uint8 in 0..255, shape (examples, height, width, channels); may be a file mapped into memory, or encoded
    x_train: Images
    y_train: npt.NDArray[np.int32]  # labels in 0..classes-1, int32, shape (examples,)
    x_test: Images
    y_test: npt.NDArray[np.int32]
    classes: int
    epochs: int  # default number of epochs, used without `--epochs`

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        _, height, width, channels = self.x_train.shape
        return height, width, channels
