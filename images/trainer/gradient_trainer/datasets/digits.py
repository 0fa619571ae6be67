"""Digits: 1,437 + 360 handwritten digits that come with scikit-learn, enlarged to 28x28."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gradient_trainer.datasets import DataSet

ENLARGED = 3
MARGIN = 2
BRIGHTEST = 16


def load(folders: Sequence[Path]) -> DataSet:  # noqa: ARG001 - it comes with a library, no folder is needed
    """Return scikit-learn's digits in the shape and range of MNIST, with a fifth of them to test on.

    The test examples are always the same, whatever the seed of a training.
    """
    bunch = load_digits()
    tripled = bunch.images.repeat(ENLARGED, axis=1).repeat(ENLARGED, axis=2)
    framed = np.pad(tripled, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    images = (framed * (255 / BRIGHTEST)).round().astype(np.uint8)[..., np.newaxis]
    labels = bunch.target.astype(np.int32)
    x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    return DataSet(
        name="digits",
        origin="scikit-learn",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=10,
        epochs=15,
    )
