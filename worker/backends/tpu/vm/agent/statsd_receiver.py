"""Receives the metrics that programs of the job send to this VM, for the job's metrics file."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from worker.runner.statsd import DATAGRAM_BYTES, StatsdRows, append_rows

_FLUSH_SECONDS = 0.5


def open_port(port: int, file: Path) -> socket.socket:
    """Open a UDP port of 127.0.0.1 and write its number to a file; if there is the file, it names the port.

    It is any free port if another program has this one, as where several simulated VMs share a machine.
    """
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.bind(("127.0.0.1", int(file.read_text()) if file.exists() else port))
    except OSError:
        opened.bind(("127.0.0.1", 0))
    file.write_text(str(opened.getsockname()[1]))
    return opened


def receive(opened: socket.socket, control: Path, job_id: str, over: threading.Event) -> None:
    opened.settimeout(_FLUSH_SECONDS)
    values = StatsdRows()
    while not over.is_set():
        with contextlib.suppress(OSError):  # nothing has come
            values.receive(opened.recv(DATAGRAM_BYTES), job_id)
        if rows := values.take():
            append_rows(control, rows)
    opened.close()
