"""MNIST where its file is found, otherwise scikit-learn's digits."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from gradient_trainer.datasets import DataSet, mnist
from gradient_trainer.registry import DATASETS


def load(places: Sequence[Path]) -> DataSet:
    """Return MNIST if one of `places` has it, otherwise digits; `origin` says why.

    Raises:
        DataSetError: mnist.npz is there but cannot be read.
    """
    if mnist.find(places) is not None:
        return mnist.load(places)
    # By name, so that scikit-learn is imported only where it is needed.
    found: DataSet = DATASETS.get("digits")(places)
    looked = ", ".join(str(place) for place in places)
    return dataclasses.replace(found, origin=f"{found.origin}, because there is no {mnist.FILE_NAME} in {looked}")
