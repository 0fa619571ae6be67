"""`train()` and `find_learning_rate()`: a training as Python calls."""

import functools
import importlib
import inspect
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

from .errors import OptionsError, TrainerError
from .options import TrainOptions
from .outputs.result import TrainResult
from .registry import DATASETS, MODELS
from .training.framework_import import import_with_keras, wait_for_tpu
from .training.stop import StopRequest

if TYPE_CHECKING:
    from .datasets import DataSet
    from .training.lr_finder import LearningRates

_POLL_SECONDS = 0.2
CONTEXT = multiprocessing.get_context("spawn")  # not forked: TensorFlow does not survive that

Fields = ParamSpec("Fields")


def run(options: TrainOptions) -> TrainResult:
    began = time.perf_counter()
    with StopRequest() as stop, ExitStack() as files:
        MODELS.check(options.model)
        options.check_combinations()
        wait_for_tpu(os.environ, options.connect_timeout)
        data = load_data(options)
        url = options.output_url()
        output = Path(files.enter_context(tempfile.TemporaryDirectory())) if url else options.output_folder()
        # Printed before the import of TensorFlow, which takes seconds without any other output.
        counts = f"{len(data.x_train):,} training, {len(data.x_test):,} test images"
        print(f"data      {data.name}: {counts} ({data.origin})", flush=True)
        task = _Task(options, output, url, began)
        if options.evaluate_in_subprocess:
            del data  # each subprocess reads its own
            trained = task.run_in_subprocess(stop)
            return replace(task, trained=trained).run_in_subprocess(stop)
        return task.run(data, stop)


def find_learning_rate(options: TrainOptions) -> "LearningRates":
    """Search for a learning rate, on one device, and write every rate with its loss to the output folder."""
    MODELS.check(options.model)
    options.check_combinations()
    if os.environ.get("TPU_GRPC_URL") or options.output_url():
        raise OptionsError(
            "--find-learning-rate runs on one device of this machine and writes to a folder: unset TPU_GRPC_URL, "
            "and choose a folder as --output"
        )
    data = load_data(options)
    output = options.output_folder()
    rates: LearningRates = import_with_keras("lr_finder", options.backend).Finder(options, data).run(output)
    return rates


def load_data(options: TrainOptions) -> "DataSet":
    """Read the data set of the options: a listed one, a file with a function of the user's, or a folder or .zip."""
    data: DataSet
    path = None if options.data in DATASETS.summaries() else options.data_path()
    if path is None:
        if options.decode == "always":
            raise OptionsError(f"--decode always needs image files as --data; {options.data} has none")
        data = DATASETS.get(options.data)(options.data_folders())
    else:
        # Imports Pillow, which other data sets do not need.
        files = importlib.import_module(f"{__package__}.datasets._files")
        data = files.load_files(path, options.image_size, options.cache_folder() if options.decode == "once" else None)
    return data


@dataclass(frozen=True)
class _Task:
    """A training with its test, or one of the two."""

    options: TrainOptions
    output: Path
    url: str | None  # `gs://…` that they are copied to; None: they stay in the folder
    began: float  # time of the user's call, from time.perf_counter(), which all processes share
    trained: TrainResult | None = None  # the result of a training whose model is to be tested; None: train

    def run(self, data: "DataSet", stop: StopRequest) -> TrainResult:
        result: TrainResult
        if self.trained is None:
            module = import_with_keras("training", self.options.backend)
            result = module.Training(self.options, data, self.output, self.url, stop).run(self.began)
        else:
            evaluation = import_with_keras("evaluation", self.options.backend)
            result = evaluation.evaluate_saved(self.trained, data, self.output, self.url, self.began)
        return result

    def run_in_subprocess(self, stop: StopRequest) -> TrainResult:
        """Run in a new process, whose memory is free again afterwards; a signal is forwarded to it."""
        receiving, sending = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=self._send_result, args=(sending,))
        process.start()
        sending.close()
        forwarded = False
        try:
            while not receiving.poll(_POLL_SECONDS):
                if stop.signal is not None and not forwarded:
                    process.terminate()
                    forwarded = True
            outcome = receiving.recv()
        except EOFError:
            outcome = None
        finally:
            process.join()
        if isinstance(outcome, TrainResult):
            return outcome
        if isinstance(outcome, TrainerError):
            raise outcome
        if stop.signal is not None:
            raise SystemExit(process.exitcode)
        raise TrainerError(f"the subprocess ended with {process.exitcode} and without a result")

    def _send_result(self, sending: Connection) -> None:
        with StopRequest() as stop:
            try:
                sending.send(self.run(load_data(self.options), stop))
            except TrainerError as error:
                sending.send(error)


def _with_fields_of(make: Callable[Fields, TrainOptions]) -> Callable[Fields, TrainResult]:
    # The options' fields are the only list of options; this makes them train()'s keywords.
    @functools.wraps(run)
    def call(*args: Fields.args, **kwargs: Fields.kwargs) -> TrainResult:
        return run(make(*args, **kwargs))

    call.__signature__ = inspect.signature(make).replace(return_annotation=TrainResult)  # type: ignore[attr-defined]  # inspect reads it
    call.__name__ = call.__qualname__ = "train"
    return call


train = _with_fields_of(TrainOptions)
