"""Simulated TPU VMs: each is a process on this computer that runs its node's startup script.

A slice has several, each with its number, and an address of its own on this computer.

Only scripts that support this (see `MARK`) are run: any other would change this computer as if it were a new VM.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from core.system.processes import read_environment, running_processes

MARKER_VARIABLE = "GRADIENT_VM_PLACE"
"""The variable with the folder that a startup script must stay in; a script that does not mention it is not run."""
_TOKEN_SECONDS = 3600


class SimulatedVms:
    """The simulated VMs and their metadata server.

    `environment`: variables that point programs on a VM to Cloud Storage; with `GRADIENT_VM_RUN=docker` and
    `DOCKER_HOST` its jobs run in containers of that engine, else as processes.
    """

    def __init__(self, environment: dict[str, str], token: Callable[[], str] = lambda: "simulated") -> None:
        self._root = Path(tempfile.mkdtemp(prefix="gradient-vm-"))
        self._lock = threading.Lock()
        self._running: dict[str, dict[int, subprocess.Popen[bytes]]] = {}
        self._token = token
        self._metadata = {0: _MetadataServer(token, 0)}
        self.environment = {"GCE_METADATA_HOST": self._metadata[0].address, "GRADIENT_VM_RUN": "process"} | environment

    def start(self, name: str, script: str, hosts: int = 1) -> None:
        """Start a node's VMs: run its startup script on each, if it supports that."""
        if MARKER_VARIABLE not in script:
            return
        with self._lock:
            self._running[name] = {}
            for rank in range(hosts):
                self._start_host(name, rank, script)

    def _start_host(self, name: str, rank: int, script: str) -> None:
        if rank not in self._metadata:
            self._metadata[rank] = _MetadataServer(self._token, rank)
        folder = self.disk(name, rank).parent
        folder.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GRADIENT_")}
        host_variables = {
            MARKER_VARIABLE: str(self.disk(name, rank)),
            "GCE_METADATA_HOST": self._metadata[rank].address,
        }
        with (folder / "output").open("wb") as output:
            self._running[name][rank] = process = subprocess.Popen(
                ["/bin/bash", "-s"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=kept | self.environment | host_variables,
                start_new_session=True,
            )
            if process.stdin is not None:
                with suppress(BrokenPipeError), process.stdin as pipe:
                    pipe.write(script.encode())

    def end(self, name: str) -> None:
        """Delete a node's VMs, killing all their processes."""
        for rank in list(self._running.get(name, ())):
            self.end_host(name, rank)
        self._running.pop(name, None)
        shutil.rmtree(self._root / name.replace("/", "_"), ignore_errors=True)

    def end_host(self, name: str, rank: int) -> None:
        """Switch one VM of a node off: all its processes are killed."""
        with self._lock:
            process = self._running.get(name, {}).pop(rank, None)
        if process is None:
            return
        marker = str(self.disk(name, rank))
        for member in running_processes():
            with suppress(psutil.Error):
                if read_environment(member.pid, MARKER_VARIABLE).get(MARKER_VARIABLE) == marker:
                    member.send_signal(signal.SIGKILL)
        process.wait()

    def disk(self, name: str, rank: int = 0) -> Path:
        return self._root / name.replace("/", "_") / str(rank) / "disk"

    def stop(self) -> None:
        for name in list(self._running):
            self.end(name)
        for metadata in self._metadata.values():
            metadata.stop()
        shutil.rmtree(self._root, ignore_errors=True)


class _MetadataServer(ThreadingHTTPServer):
    """The metadata server of the VMs with this number: it only serves that, and tokens of the service account."""

    daemon_threads = True

    def __init__(self, token: Callable[[], str], rank: int) -> None:
        super().__init__(("127.0.0.1", 0), _MetadataHandler)
        self.socket.settimeout(0.0)  # it accepts without waiting, as the simulated bucket
        self.token = token
        self.rank = rank
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="vm-metadata", daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _MetadataHandler(BaseHTTPRequestHandler):
    server: _MetadataServer

    def do_GET(self) -> None:
        made = {"access_token": self.server.token(), "expires_in": _TOKEN_SECONDS, "token_type": "Bearer"}
        attributes = {
            "/instance/service-accounts/default/token": json.dumps(made),
            "/instance/attributes/agent-worker-number": str(self.server.rank),
        }
        path = self.path.removeprefix("/computeMetadata/v1")
        content = attributes.get(path, "").encode() if self.headers.get("Metadata-Flavor") == "Google" else b""
        self.send_response(200 if content else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server names it
        """Log nothing."""
