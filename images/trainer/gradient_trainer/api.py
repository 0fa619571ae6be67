"""`train()`: a training as a Python call."""

import functools
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

from .errors import TrainerError
from .options import TrainOptions
from .registry import DATASETS, MODELS
from .result import TrainResult
from .stop import StopRequest
from .tf_runtime import import_with_tensorflow, wait_for_tpu

if TYPE_CHECKING:
    from .datasets import DataSet

_POLL_SECONDS = 0.2
# Not forked: TensorFlow does not survive that.
_CONTEXT = multiprocessing.get_context("spawn")

Fields = ParamSpec("Fields")


def run(options: TrainOptions) -> TrainResult:
    """Run a training.

    Raises:
        TrainerError: The training cannot start or continue; the message has the cause and the remedy.
        TrainingStopped: SIGTERM or SIGINT ended it, after its checkpoint was written.
    """
    began = time.perf_counter()
    with StopRequest() as stop, ExitStack() as files:
        wait_for_tpu(os.environ, options.connect_timeout)
        MODELS.check(options.model)
        data = _load_data(options)
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


def _load_data(options: TrainOptions) -> "DataSet":
    data: DataSet = DATASETS.get(options.data)(options.data_folders())
    return data


@dataclass(frozen=True)
class _Task:
    """A training with its test, or one of the two.

    Attributes:
        options: The user's options.
        output: The folder that outputs are written to.
        url: `gs://…` that they are copied to; None: they stay in the folder.
        began: Time of the user's call, from time.perf_counter(), which all processes share.
        trained: The result of a training whose model is to be tested; None: train.
    """

    options: TrainOptions
    output: Path
    url: str | None
    began: float
    trained: TrainResult | None = None

    def run(self, data: "DataSet", stop: StopRequest) -> TrainResult:
        result: TrainResult
        if self.trained is None:
            training = import_with_tensorflow("training").Training(self.options, data, self.output, self.url, stop)
            result = training.run(self.began)
        else:
            evaluation = import_with_tensorflow("evaluation")
            result = evaluation.evaluate_saved(self.trained, data, self.output, self.url, self.began)
        return result

    def run_in_subprocess(self, stop: StopRequest) -> TrainResult:
        """Run in a new process, whose memory is free again afterwards; a signal is forwarded to it."""
        receiving, sending = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=self._send_result, args=(sending,))
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
                sending.send(self.run(_load_data(self.options), stop))
            except TrainerError as error:
                sending.send(error)


def _with_fields_of(make: Callable[Fields, TrainOptions]) -> Callable[Fields, TrainResult]:
    # The options' fields are the only list of options; this makes them train()'s keywords.
    @functools.wraps(run)
    def call(*args: Fields.args, **kwargs: Fields.kwargs) -> TrainResult:
        return run(make(*args, **kwargs))

    call.__signature__ = inspect.signature(make).replace(return_annotation=TrainResult)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = "train"
    return call


train = _with_fields_of(TrainOptions)
