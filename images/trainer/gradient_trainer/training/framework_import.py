"""Import TensorFlow and Keras: late, because it takes seconds; quietly; and only if the TPU's address answers."""

import importlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from gradient_trainer.errors import DeviceUnreachable, OptionsError

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
WARNINGS_ONLY = "2"
TPU_PORT = 8470
_CONNECT_SECONDS = 5.0
_PAUSE_SECONDS = 1.0


def import_with_keras(name: str, backend: str) -> Any:  # noqa: ANN401 - a module
    """Import a module of this package that needs Keras."""
    os.environ["KERAS_BACKEND"] = backend
    with _quiet_stderr():
        module = importlib.import_module(f"{__package__}.{name}")
    loaded = importlib.import_module("keras").backend.backend()
    if loaded != backend:
        raise OptionsError(f"--backend {backend}: this process has loaded Keras with {loaded}; start another process")
    return module


def import_tensorflow() -> Any:  # noqa: ANN401 - a module
    with _quiet_stderr():
        return importlib.import_module("tensorflow")


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Keep TensorFlow's start-up notices off the terminal while it is imported.

    The log level alone is not enough: some notices are written before TensorFlow has read it. If the block fails, the
    notices are shown after all. TF_CPP_MIN_LOG_LEVEL=0 or 1 in the environment lets everything through.
    """
    if os.environ.setdefault(LOG_LEVEL, WARNINGS_ONLY) < WARNINGS_ONLY:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notices:
        os.dup2(notices.fileno(), 2)
        try:
            yield
        except BaseException:
            notices.seek(0)
            os.write(terminal, notices.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)


def wait_for_tpu(environ: Mapping[str, str], seconds: float) -> None:
    """Wait until every address in `TPU_GRPC_URL` accepts a connection; TensorFlow would wait for a dead one forever."""
    for url in filter(None, environ.get("TPU_GRPC_URL", "").split(",")):
        _wait_for(url, _parse_address(url), seconds)


def _parse_address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port or TPU_PORT
    except ValueError:  # the port is not a number
        host, port = None, TPU_PORT
    if parts.scheme != "grpc" or host is None:
        raise DeviceUnreachable(f"TPU_GRPC_URL {url!r} is no address; it must look like grpc://10.0.0.2:{TPU_PORT}")
    return host, port


def _wait_for(url: str, address: tuple[str, int], seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(address, timeout=max(0.1, min(_CONNECT_SECONDS, seconds))).close()
        except OSError as error:
            if time.monotonic() + _PAUSE_SECONDS >= until:
                raise DeviceUnreachable(
                    f"the TPU at {url} did not answer within {seconds:g} seconds ({error}); is the node READY, "
                    "and does a firewall let this machine reach its port? --connect-timeout waits longer"
                ) from error
            time.sleep(_PAUSE_SECONDS)
        else:
            return
