"""Users' sessions in a job on its TPU VM; on a slice, on host 0."""

import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from core.system.filesystem import write_atomically
from worker.backends.base import Handle
from worker.runner import link
from worker.runner.sessions import RemoteStream
from worker.runner.streams import ExecRefused, ExecRequest

_TOKEN_FILE = "session_token"  # noqa: S105 - a name; beside the control folder


def session_token(control: Path) -> bytes:
    """Return the secret of an attempt's sessions; several workers may launch it at once, and all get the same.

    Raises `OSError`: it cannot be stored.
    """
    file = control.parent / _TOKEN_FILE
    with suppress(FileExistsError):
        write_atomically(file, secrets.token_bytes(link.TOKEN_BYTES), replace=False)
    return file.read_bytes()


def run_on_vm(handle: Handle, request: ExecRequest) -> RemoteStream:
    """Start a command in a job on its VM. Raises `ExecRefused`."""
    terminal = request.terminal
    size = (terminal.rows, terminal.columns, terminal.kind) if terminal else None
    return RemoteStream(_connect(handle, {"session": request.id, "command": request.command, "terminal": size}))


def connect_to_vm(handle: Handle, port: int) -> socket.socket:
    """Connect to a port of a job on its VM. Raises `ExecRefused`: nothing listens there."""
    return _connect(handle, {"port": port})


def _connect(handle: Handle, request: Mapping[str, object]) -> socket.socket:
    try:
        token = session_token(Path(handle["control"]))
    except OSError as error:
        raise ExecRefused("The job has just ended.") from error
    port = handle.get("session_port")  # none of a job that an earlier version started
    if not port:
        raise ExecRefused("The runner on the TPU VM does not listen for sessions.")
    return link.connect(handle["address"], port, token, request)
