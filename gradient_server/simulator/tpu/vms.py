"""Simulated TPU VMs: each is a process on this computer that runs its node's startup script.

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

MARKER_VARIABLE = "GRADIENT_VM_PLACE"
"""The variable with the folder that a startup script must stay in; a script that does not mention it is not run."""
_TOKEN_SECONDS = 3600


class SimulatedVms:
    """The simulated VMs and their metadata server.

    Args:
        environment: Variables that point programs on a VM to Cloud Storage; with `GRADIENT_VM_RUN=docker` and
            `DOCKER_HOST` its jobs run in containers of that engine, else as processes.
        token: Creates an access token for the VM's service account.
    """

    def __init__(self, environment: dict[str, str], token: Callable[[], str] = lambda: "simulated") -> None:
        self._root = Path(tempfile.mkdtemp(prefix="gradient-vm-"))
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._metadata = _MetadataServer(token)
        self._thread = threading.Thread(target=self._metadata.serve_forever, name="vm-metadata", daemon=True)
        self._thread.start()
        address, port = self._metadata.server_address[:2]
        self._environment = {
            "GCE_METADATA_HOST": f"{address!s}:{port}",
            "GRADIENT_VM_RUN": "process",
        } | environment

    def start(self, name: str, script: str) -> None:
        """Start a VM: run its startup script, if it supports that."""
        if MARKER_VARIABLE not in script:
            return
        place = self._root / name.replace("/", "_")
        place.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GRADIENT_")}
        with self._lock, (place / "output").open("wb") as output:
            self._running[name] = process = subprocess.Popen(
                ["/bin/bash", "-s"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=kept | self._environment | {MARKER_VARIABLE: str(place / "disk")},
                start_new_session=True,
            )
            if process.stdin is not None:
                with suppress(BrokenPipeError), process.stdin as pipe:
                    pipe.write(script.encode())

    def end(self, name: str) -> None:
        """Delete a VM, killing all its processes."""
        with self._lock:
            process = self._running.pop(name, None)
        if process is None:
            return
        place = str(self._root / name.replace("/", "_") / "disk")
        for member in psutil.process_iter():
            with suppress(psutil.Error):
                if member.environ().get(MARKER_VARIABLE) == place:
                    member.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(self._root / name.replace("/", "_"), ignore_errors=True)

    def stop(self) -> None:
        """Delete all VMs and stop the metadata server."""
        for name in list(self._running):
            self.end(name)
        self._metadata.shutdown()
        self._thread.join()
        self._metadata.server_close()
        shutil.rmtree(self._root, ignore_errors=True)


class _MetadataServer(ThreadingHTTPServer):
    """The VMs' metadata server: it only serves access tokens of the service account."""

    daemon_threads = True

    def __init__(self, token: Callable[[], str]) -> None:
        super().__init__(("127.0.0.1", 0), _MetadataHandler)
        self.token = token


class _MetadataHandler(BaseHTTPRequestHandler):
    server: _MetadataServer

    def do_GET(self) -> None:
        known = self.path.endswith("/instance/service-accounts/default/token")
        path = self.headers.get("Metadata-Flavor") == "Google"
        made = {"access_token": self.server.token(), "expires_in": _TOKEN_SECONDS, "token_type": "Bearer"}
        content = json.dumps(made).encode() if known and path else b""
        self.send_response(200 if content else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server names it
        """Log nothing."""
