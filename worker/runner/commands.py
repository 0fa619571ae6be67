"""Starts commands in jobs: with the job's user, variables and folder, in its sandbox or container."""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.runner.control_files import read_control
from worker.runner.streams import ExecRefused, ExecRequest, ProcessStream

_ENTER_JOB = (pkgutil.get_data(__package__, "enter_job.py") or b"").decode()  # perhaps in a zip file
_START_SECONDS = 30.0
_RECORD_PID = '{ echo $$ >"$0"; } 2>/dev/null; exec "$@"'
_SIGNAL_GROUP = 'kill -s "$1" -- "-$0"'


def start_command(
    request: ExecRequest,
    env: Mapping[str, str],
    folder: str,
    *,
    sandbox: int = -1,
    join: Sequence[str] = (),
    signal_command: Callable[[str], None] | None = None,
    **identity: Any,  # noqa: ANN401 - JSON for `enter_job.py`
) -> ProcessStream:
    """Start a command as a process of this machine. Raises `ExecRefused`: it cannot be started.

    Args:
        sandbox: Descriptor of the folder in /proc of a process whose namespaces it joins; -1: none.
        join: Words before it that start it in a control group.
        signal_command: Signals it, in place of its process group here.
        identity: Its `user` and `cpus`, and the `filter` of its system calls; without, those of this process.
    """
    terminal = request.terminal
    wanted = {
        "command": request.command,
        "env": {**env, **({"TERM": terminal.kind} if terminal else {})},
        "folder": folder,
        "terminal": (terminal.rows, terminal.columns) if terminal else None,
        **identity,
    }
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        child = _start(theirs, wanted, sandbox, join)
        try:
            pid, descriptor = _read_reports(ours)
        except BaseException:
            child.kill()
            child.wait()
            raise
    return ProcessStream(
        child, descriptor, signal_command or (lambda name: os.killpg(pid, getattr(signal, f"SIG{name}")))
    )


def _start(
    reports: socket.socket, wanted: dict[str, Any], sandbox: int, join: Sequence[str]
) -> subprocess.Popen[bytes]:
    pipe = subprocess.DEVNULL if wanted["terminal"] else subprocess.PIPE
    with reports, os.fdopen(os.memfd_create("request"), "w+b") as file:
        file.write(json.dumps(wanted).encode())
        file.seek(0)
        descriptors = [reports.fileno(), file.fileno(), sandbox]
        return subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
            [*join, sys.executable, "-I", "-S", "-c", _ENTER_JOB, *map(str, descriptors)],
            cwd="/",
            env={},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            pass_fds=[descriptor for descriptor in descriptors if descriptor >= 0],
            start_new_session=sandbox >= 0,
        )


def _read_reports(reports: socket.socket) -> tuple[int, int | None]:
    """Return the command's pid and its terminal."""
    reports.settimeout(_START_SECONDS)
    pid, terminal = 0, None
    while True:
        try:
            text, descriptors, _, _ = socket.recv_fds(reports, 2000, 1)
        except socket.timeout:
            raise ExecRefused(f"The job could not be entered within {_START_SECONDS:.0f} seconds.") from None
        kind, _, detail = text.decode(errors="replace").partition(" ")
        if kind == "pid":
            pid = int(detail)
        elif kind == "terminal":
            terminal = descriptors[0]
        elif kind == "error":
            raise ExecRefused(f"The job could not be entered: {detail}.")
        else:
            return pid, terminal


def recorded(request: ExecRequest, pid_file: str) -> list[str]:
    """Return a command for a container that writes its pid there first: engines cannot signal it alone."""
    terminal = request.terminal
    # Engines set the size only after the start, when the command may have read it.
    size = f"stty rows {terminal.rows} cols {terminal.columns} 2>/dev/null; " if terminal else ""
    return ["/bin/sh", "-c", size + _RECORD_PID, pid_file, *request.command]


def signal_recorded(control: Path, pid_file: str, name: str) -> list[str] | None:
    """Return a command for a container that signals such a command and its children; None: it has not begun.

    `control`: this machine's path of the folder with the file, which may be removed then.
    """
    pid = read_control(control, pid_file)
    if pid is None or not pid.isdecimal() or int(pid) <= 1:
        return None
    return ["/bin/sh", "-c", _SIGNAL_GROUP, pid, name]
