import os
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np

from gradient_trainer.datasets import DataSet
from gradient_trainer.measurement.summary import Summary, peak_host_memory
from gradient_trainer.options import TrainOptions
from gradient_trainer.outputs.gcs_sync import GcsSync
from gradient_trainer.outputs.metrics_writer import MetricsWriter
from gradient_trainer.outputs.result import TrainResult
from gradient_trainer.recipes import Recipe

from .devices import find_devices
from .learner import Learner
from .pipeline import Examples, evaluation_batches


def evaluate_test(learner: Learner, data: DataSet, batch_size: int) -> tuple[float, float]:
    examples = Examples(data.x_test, data.y_test, remote=learner.devices.remote)
    return learner.evaluate(evaluation_batches(examples, np.arange(len(data.x_test)), batch_size))


def finish(
    trained: TrainResult, tested: tuple[float, float], metrics: MetricsWriter, sync: GcsSync, began: float
) -> TrainResult:
    """Record, write, upload and print the result. Raises `BucketError`: outputs cannot be copied to Cloud Storage."""
    loss, accuracy = tested
    metrics.write(trained.steps, {"test_loss": loss, "test_accuracy": accuracy})
    result = replace(trained, test_loss=loss, test_accuracy=accuracy, seconds=time.perf_counter() - began)
    result.write(sync.folder)
    summary = Summary(**result.summary)
    summary.accuracy |= {"test_loss": loss, "test_accuracy": accuracy}
    summary.seconds["total"] = result.seconds
    summary.write(sync.folder)
    sync.upload(last=True)
    result.print()
    return result


def evaluate_saved(trained: TrainResult, data: DataSet, output: Path, url: str | None, began: float) -> TrainResult:
    """Test the model that another process trained and wrote to `output`."""
    print("testing   in a new process, when the training has given its memory back", flush=True)
    load = partial(keras.models.load_model, output / "model.keras", compile=False)
    options = TrainOptions(**trained.options)
    learner = Learner(load, find_devices(options.devices))
    learner.compile(Recipe(), trained.learning_rate)
    tested = evaluate_test(learner, data, options.validation_batch_size or trained.batch_size)
    trained.summary["memory"]["test_host_bytes"] = peak_host_memory()
    with closing(MetricsWriter(output / "tensorboard", os.environ)) as metrics:
        return finish(trained, tested, metrics, GcsSync(output, url), began)
