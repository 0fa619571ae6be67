"""Tests a model that another process trained."""

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np

from .datasets import DataSet
from .destination import Destination
from .devices import find_devices
from .learner import Learner
from .metrics import MetricsFile
from .records import Records
from .report import summarize, write_result
from .result import TrainResult
from .terminal import say


def evaluate(trained: TrainResult, data: DataSet, output: Path, destination: Destination, began: float) -> TrainResult:
    """Test the model in `output`, write the result and print it.

    Raises:
        TrainerError: No device answers, or outputs cannot be copied to Cloud Storage.
    """
    say("testing   in a fresh process, when the training has given its memory back")
    devices = find_devices()
    load = partial(keras.models.load_model, output / "model.keras", compile=False)
    learner = Learner(load, devices.strategy, trained.learning_rate, trained.steps)
    everyone = np.arange(len(data.x_test))
    loss, accuracy = learner.evaluate(data.x_test, data.y_test, everyone, trained.batch_size)
    records = Records(MetricsFile.from_environment(os.environ), output / "tensorboard")
    try:
        records.write(trained.steps, {"test_loss": loss, "test_accuracy": accuracy})
    finally:
        records.close()
    seconds = time.perf_counter() - began
    result = replace(trained, test_loss=loss, test_accuracy=accuracy, test_examples=len(everyone), seconds=seconds)
    write_result(result, output)
    destination.publish()
    summarize(result)
    return result
