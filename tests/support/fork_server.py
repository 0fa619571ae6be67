"""Starts processes of the service out of one that has loaded it already: loading costs more than most tests.

Each is a process of its own, forked with its own environment, output and exit code; only `exec` is left out. Run as a
program it takes requests on stdin, a line of JSON each, and answers on stdout.
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from sqlalchemy.orm import configure_mappers
from support.constants import set_constants

from core.catalogue.machine_types import Catalogue

_PRELOADED_MODULES = (
    "gradient_server.api_processes",
    "gradient_server.entrypoints",
    "gradient_server.commands.worker_health",
    "core.db.migrations",
    "core.notify.celery_app",
    "core.notify.outbox_dispatcher",
    "gradient_server.main",
    "gradient_server.tracing",
    "service.main",
    "service.http.server",
    "anyio._backends._asyncio",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "worker.backends.process.backend",
    "worker.backends.port_check",
    "worker.celery.worker",
    "worker.supervisor",
)


class ForkServer:
    """The test's side of the fork server; one for each test process, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: list[str], env: dict[str, str], constants: dict[str, Any], log: Path) -> int:
        """Start a process of `gradient-server` and return its pid."""
        return self._request({"arguments": arguments, "env": env, "constants": constants, "log": str(log)})

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a process, negative for a signal; None while it runs."""
        return self._request({"pid": pid})

    def _request(self, request: dict[str, Any]) -> Any:
        with self._lock:
            if self._process is None:
                command = [sys.executable, __file__]
                env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
                self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                atexit.register(self._close, self._process)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()


def _serve() -> None:
    for name in _PRELOADED_MODULES:
        __import__(name)
    configure_mappers()
    Catalogue.packaged()
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all that is loaded here
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    exit_codes: dict[int, int] = {}
    # Line by line, past Python's own buffer: a child must not inherit what was read ahead.
    while line := _read_line():
        request = json.loads(line)
        if "pid" in request:
            answer = _read_exit_code(request["pid"], exit_codes)
        elif (answer := os.fork()) == 0:
            answers.close()
            _run_server(request)
        else:
            exit_codes.pop(answer, None)  # of an earlier process: the kernel gives its number again
        print(json.dumps(answer), file=answers, flush=True)


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _read_exit_code(pid: int, exit_codes: dict[int, int]) -> int | None:
    if pid not in exit_codes:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if not ended_pid:
            return None
        exit_codes[pid] = os.waitstatus_to_exitcode(status)
    return exit_codes[pid]


def _run_server(request: dict[str, Any]) -> None:
    from gradient_server.main import main  # noqa: PLC0415 - the environment decides what it does

    set_constants(request["constants"])
    os.environ.clear()
    os.environ.update(request["env"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    devnull = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((devnull, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(devnull)
    sys.argv = ["gradient-server", *request["arguments"]]
    status: Any = 1
    try:
        status = main(request["arguments"])
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001 - it is told, and the process ends
        traceback.print_exc()
    finally:
        # Past the interpreter's own end, which would touch, and so copy, every page that the fork shares: 0.8 s of CPU.
        threading._shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


if __name__ == "__main__":
    # Ctrl-C reaches the whole group; what it forked is ended by the test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _serve()
