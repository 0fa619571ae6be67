"""Test a trained model and write the result."""

import os
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np

from .datasets import DataSet
from .devices import find_devices
from .gcs_sync import GcsSync
from .learner import Learner
from .metrics_writer import MetricsWriter
from .result import TrainResult


def evaluate(
    learner: Learner, trained: TrainResult, data: DataSet, metrics: MetricsWriter, sync: GcsSync, began: float
) -> TrainResult:
    """Test a model; record, write, upload and print the result.

    Raises:
        BucketError: Outputs cannot be copied to Cloud Storage.
    """
    examples = np.arange(len(data.x_test))
    loss, accuracy = learner.evaluate(data.x_test, data.y_test, examples, trained.batch_size)
    metrics.write(trained.steps, {"test_loss": loss, "test_accuracy": accuracy})
    result = replace(trained, test_loss=loss, test_accuracy=accuracy, seconds=time.perf_counter() - began)
    result.write(sync.folder)
    sync.upload()
    result.print()
    return result


def evaluate_saved(trained: TrainResult, data: DataSet, output: Path, url: str | None, began: float) -> TrainResult:
    """Test the model that another process trained and wrote to `output`.

    Raises:
        TrainerError: No device answers, or outputs cannot be copied to Cloud Storage.
    """
    print("testing   in a new process, when the training has given its memory back", flush=True)
    load = partial(keras.models.load_model, output / "model.keras", compile=False)
    learner = Learner(load, find_devices().strategy, trained.learning_rate, trained.steps)
    with closing(MetricsWriter(output / "tensorboard", os.environ)) as metrics:
        return evaluate(learner, trained, data, metrics, GcsSync(output, url), began)
