"""MNIST where its file is found, otherwise scikit-learn's digits."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from gradient_trainer.datasets import DataSet, mnist
from gradient_trainer.registry import DATASETS


def load(folders: Sequence[Path]) -> DataSet:
    """Return MNIST if one of `folders` has it, otherwise digits; `origin` gives the reason."""
    if mnist.find(folders) is not None:
        return mnist.load(folders)
    # By name, so that scikit-learn is imported only where it is needed.
    data: DataSet = DATASETS.get("digits")(folders)
    searched = ", ".join(str(folder) for folder in folders)
    return dataclasses.replace(data, origin=f"{data.origin}, because there is no {mnist.FILE_NAME} in {searched}")
