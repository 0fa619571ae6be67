"""Trains in a separate process, so that all its memory is free again when it ends."""

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

from .errors import TrainerError
from .heavy import run_training
from .options import TrainOptions
from .registry import DATASETS
from .result import TrainResult
from .stopping import StopRequest

_LOOK_SECONDS = 0.2


def train_apart(options: TrainOptions, output: Path, url: str | None, stop: StopRequest) -> TrainResult:
    """Train in another process and wait for it; a signal that arrives meanwhile is forwarded.

    Raises:
        TrainerError: The training could not start or continue.
        SystemExit: A signal ended it, after its checkpoint was written.
    """
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_train, args=(sending, options, output, url))
    process.start()
    sending.close()
    told = False
    try:
        while not receiving.poll(_LOOK_SECONDS):
            if stop.signal is not None and not told:
                process.terminate()
                told = True
        outcome = receiving.recv()
    except EOFError:
        outcome = None
    finally:
        process.join()
    if isinstance(outcome, TrainResult):
        return outcome
    if isinstance(outcome, TrainerError):
        raise outcome
    if told:
        raise SystemExit(process.exitcode)
    raise TrainerError(f"the training process ended with {process.exitcode} and without a result")


def _train(sending: Connection, options: TrainOptions, output: Path, url: str | None) -> None:
    with StopRequest() as stop:
        data = DATASETS.get(options.data)(options.data_places())
        try:
            sending.send(run_training(options, data, output, url, stop, time.perf_counter()))
        except TrainerError as error:
            sending.send(error)
