"""`train()`: a training as a Python call."""

import functools
import inspect
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

from .apart import train_apart
from .heavy import run_evaluation, run_training
from .options import TrainOptions
from .reach import reach_tpu
from .registry import DATASETS, MODELS
from .result import TrainResult
from .stopping import StopRequest
from .terminal import say

if TYPE_CHECKING:
    from .datasets import DataSet

Fields = ParamSpec("Fields")


def run(options: TrainOptions) -> TrainResult:
    """Run a training.

    Raises:
        TrainerError: The training cannot start or continue; the message says why and what to do.
        TrainingStopped: SIGTERM or SIGINT ended it, after its checkpoint was written.
    """
    began = time.perf_counter()
    with StopRequest() as stop, ExitStack() as files:
        reach_tpu(os.environ, options.connect_timeout)
        MODELS.check(options.model)
        data: DataSet = DATASETS.get(options.data)(options.data_places())
        url = options.output_url()
        output = Path(files.enter_context(tempfile.TemporaryDirectory())) if url else options.output_folder()
        # Printed before the import of TensorFlow, which takes seconds without any other output.
        say(_described(data))
        if options.evaluate_apart:
            return run_evaluation(train_apart(options, output, url, stop), data, output, url, began)
        return run_training(options, data, output, url, stop, began)


def _described(data: "DataSet") -> str:
    counts = f"{len(data.x_train):,} training, {len(data.x_test):,} test images"
    return f"data      {data.name}: {counts} ({data.origin})"


def _with_fields_of(make: Callable[Fields, TrainOptions]) -> Callable[Fields, TrainResult]:
    # The options' fields are the only list of options; this makes them train()'s keywords.
    @functools.wraps(run)
    def call(*args: Fields.args, **kwargs: Fields.kwargs) -> TrainResult:
        return run(make(*args, **kwargs))

    call.__signature__ = inspect.signature(make).replace(return_annotation=TrainResult)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = "train"
    return call


train = _with_fields_of(TrainOptions)
