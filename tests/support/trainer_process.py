"""The trainer in processes forked from one that has loaded TensorFlow: loading it costs more than a short training.

Each is a process of its own with its own environment, output and exit code; only `exec` and the measurement of the
input are left out.
"""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

SMALL_MODEL = """\
import keras
from keras import layers
def build(image_shape, classes):
    images = keras.Input(image_shape)
    hidden = layers.Flatten()(layers.AveragePooling2D(3)(layers.Cropping2D(2)(images)))
    hidden = layers.BatchNormalization(momentum=0.8)(hidden)
    hidden = layers.Dropout(0.1)(layers.Dense(64, activation="relu")(hidden))
    return keras.Model(images, layers.Dense(classes)(hidden))
"""
"""Two layers with 5,066 weights, for which a step takes some milliseconds; with what a resumption has to restore:
running means and the state of a random layer."""


def fork_trainer(
    flags: Sequence[str], cwd: Path, environ: Mapping[str, str], stop_at: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the trainer and return its exit code and output, of both streams; SIGTERM once a line starts with `stop_at`.

    Variables of the environment are added to those of this process.
    """
    context = _forkserver()
    receiving, sending = context.Pipe(duplex=False)
    with _trainer_environment():
        process = context.Process(target=_trainer_main, args=(sending, list(flags), str(cwd), dict(environ)))
        process.start()
    sending.close()
    lines = []
    with receiving, os.fdopen(os.dup(receiving.fileno())) as output:
        for line in output:
            lines.append(line)
            if stop_at is not None and line.startswith(stop_at):
                os.kill(process.pid or 0, signal.SIGTERM)
                stop_at = None
    process.join()
    code = process.exitcode
    assert code is not None
    return subprocess.CompletedProcess(list(flags), code, "".join(lines))


def call_with_keras(function: Callable[..., Any], *args: object) -> Any:
    """Call a function of a module in a process that has loaded TensorFlow and Keras, and return what it returns.

    The function imports Keras itself, so that the test's own process does not.
    """
    context = _forkserver()
    receiving, sending = context.Pipe(duplex=False)
    with _trainer_environment():
        process = context.Process(target=_send_result, args=(sending, function, args))
        process.start()
    sending.close()
    with receiving:
        result, error = receiving.recv()
    process.join()
    if error is not None:
        raise error
    return result


def _send_result(sending: Connection, function: Callable[..., Any], args: Sequence[object]) -> None:
    try:
        sending.send((function(*args), None))
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        sending.send((None, error))


def _forkserver() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["gradient_trainer.training.training", "sklearn.datasets", "sklearn.model_selection"]
    )
    return context


@contextmanager
def _trainer_environment() -> Iterator[None]:
    """Set the environment for the process that loads TensorFlow; one thread is enough for small models."""
    quiet = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    before = dict(os.environ)
    os.environ.update(quiet | threads)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _trainer_main(output: Connection, flags: list[str], cwd: str, environ: dict[str, str]) -> None:
    # Loaded by the process that forks, not by the test's.
    from gradient_trainer import api, cli  # noqa: PLC0415
    from gradient_trainer.training import input_wait  # noqa: PLC0415

    # No time for it: what a training measures of its input lasts longer than a short training.
    input_wait.SECONDS = input_wait._MOST_SECONDS = 0.0
    # Its subprocesses are forked, too, which is safe before TensorFlow's first operation.
    api.CONTEXT = multiprocessing.get_context("fork")
    os.environ.update(environ)
    os.chdir(cwd)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    raise SystemExit(cli.main(flags))
