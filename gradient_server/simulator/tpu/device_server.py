"""The stand-in for a TPU: a TensorFlow server process with eight logical devices, reached by gRPC."""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, Self

from core.errors import GradientError

START_SECONDS = 180.0
READY = "ready"  # the line that the process prints once it serves
_LAST_LINES = 20


class DeviceNotStarted(GradientError):
    """The TensorFlow server did not start."""


class DeviceServer:
    """A TensorFlow server on this machine's CPU, in a process that ends with this one.

    It listens on every address (TensorFlow offers nothing else) and lets any client read and write files.
    """

    def __init__(self, port: int = 0, replicas: int = 8, environment: Mapping[str, str] | None = None) -> None:
        self.port = port or _free_port()
        self.replicas = replicas
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The address for clients, such as `grpc://127.0.0.1:8470`."""
        return f"grpc://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, seconds: float = START_SECONDS) -> Self:
        command = [sys.executable, "-m", "gradient_server.simulator.tpu.tensorflow_server"]
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [*command, "--port", str(self.port), "--replicas", str(self.replicas)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if self._process.stdout is None:  # never, with PIPE; for the type checker
            raise DeviceNotStarted("The TensorFlow server has no output.")
        ready: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read_output, args=(self._process.stdout, ready), name="device", daemon=True).start()
        try:
            output = ready.get(timeout=seconds)
        except queue.Empty:
            output = f"it was not ready after {seconds:g} seconds"
        if output is not None:
            self.stop()
            raise DeviceNotStarted(f"The TensorFlow server for the simulated TPU did not start: {output}")
        return self

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # TensorFlow ignores SIGTERM once a client has connected
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _read_output(output: IO[str], ready: "queue.Queue[str | None]") -> None:
    """Read the process's output until it ends: a full pipe would block it."""
    last: list[str] = []
    with output:
        for line in output:
            last = [*last, line.strip()][-_LAST_LINES:]
            if line.startswith(READY):
                ready.put(None)
    ready.put(" ".join(last) or "it ended without output")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
