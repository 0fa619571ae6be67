"""A sandbox that members of one array share, where this worker is root: mounts and network are made once.

Each member gets what must be its own on top: processes, folders, shared memory (`worker/sandbox/start_members.py`).
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Self

from core.system.bubblewrap_command import PATH
from core.system.processes import start_session
from worker.backends import base
from worker.backends.base import LaunchError, LaunchSpec, mark_launched
from worker.backends.job_connections import KeptConnections
from worker.backends.network_limits import FirewallUnavailable
from worker.backends.process.control_groups import JobGroup
from worker.backends.process.job_sandbox import (
    PRIVATE_FOLDERS,
    WRAPPER_INSIDE,
    JobSandbox,
    in_memory,
    open_copied,
    sandbox_support,
)
from worker.backends.process.plain_start import inherited_environment
from worker.backends.process.sandbox_processes import children_of
from worker.sandbox import start_members
from worker.sandbox.network_namespace import JobNetwork

logger = logging.getLogger(__name__)

_PROGRAM = "/.gradient/start_members.py"
_PYTHON = Path("/.gradient/python")  # where each member has its virtual environment
_START_SECONDS = 15.0
_MESSAGE_BYTES = 4096
_KILLED = -signal.SIGKILL
_END_SECONDS = 5.0
_PAUSE_SECONDS = 0.002
_PRIVATE = (*PRIVATE_FOLDERS, "workspace", "artifacts", "control", "python")


class Member:
    """A member's process outside of its sandbox, with the part of `subprocess.Popen` that is used."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._code: int | None = None
        self.first = 0  # pid of its first process

    def await_start(self) -> None:
        """Raise `LaunchError`: it could not be started, and nothing of it runs."""
        self._channel.settimeout(_START_SECONDS)
        ready = False
        while not (ready and self.first):
            text = self._channel.recv(_MESSAGE_BYTES)
            if text == start_members.READY:
                ready = True
            elif text.isdigit():
                self.first = int(text)
            else:
                self._channel.close()
                raise LaunchError("launch_failed", text.decode(errors="replace") or "it has ended")

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._channel.settimeout(timeout)
            try:
                text = self._channel.recv(_MESSAGE_BYTES)
            except (BlockingIOError, TimeoutError) as error:
                raise subprocess.TimeoutExpired("member", timeout or 0.0) from error
            self._code = int(text) if text.isdigit() else _KILLED
            self._channel.close()
        return self._code


class SharedSandbox:
    """Made for the first member; for one thread.

    `folder`: a new folder, whose own are mounted where those of each member will be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._requests: socket.socket | None = None
        self._first = 0
        self._network: JobNetwork | None = None
        self._kept = KeptConnections()
        self._failed = False

    def close(self) -> None:
        """End it; members that still run go on."""
        self._stack.close()
        self._kept.close()

    def start(
        self,
        spec: LaunchSpec,
        sandbox: JobSandbox,
        group: JobGroup | None,
        network: JobNetwork,
        serve: Callable[[int, KeptConnections], None],
    ) -> Member | None:
        """Start a member in it; None: it needs a sandbox of its own.

        Args:
            serve: Opens what leads to a job, by a process in its network, and with what earlier members have used.
        """
        if self._failed or os.geteuid() != 0 or sandbox_support().limitation is not None:
            return None
        try:
            if self._requests is None:
                self._open(spec, sandbox, network)
            if network is not self._network:  # a second key became valid where no network can be made
                return None
            serve(self._first, self._kept)
            return self._start_member(spec, sandbox, group)
        except (OSError, FirewallUnavailable, LaunchError):
            logger.warning("sandbox_not_shared", exc_info=True)
            self._failed = True
            return None

    def _own(self, spec: LaunchSpec) -> LaunchSpec:
        """Return a member with the folders of the sandbox itself."""
        workspace, artifacts, control = (self._folder / name for name in ("workspace", "artifacts", "control"))
        python = spec.python and replace(spec.python, folder=_PYTHON)
        return replace(spec, workspace=workspace, artifacts=artifacts, control=control, python=python)

    def _open(self, spec: LaunchSpec, sandbox: JobSandbox, network: JobNetwork) -> None:
        for name in _PRIVATE:
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        shared_spec, uid = self._own(spec), sandbox.prepare(spec)
        more = ["--cap-add", "CAP_SYS_ADMIN", "--perms", "0755", "--dir", "/.gradient"]
        more += ["--bind", str(spec.control.parent.parent), start_members.SCRATCH]
        with open_copied(uid, network.resolvers()) as copied, open(start_members.__file__, "rb") as program:  # noqa: PTH123 - a descriptor to pass on
            copied |= {_PROGRAM: program.fileno()}
            command = sandbox.command(shared_spec, -1, copied, [*network.unshare, *more])
            command = [word for word in command[:-1] if word not in {"--unshare-pid", "--unshare-ipc"}]
            if spec.python:
                command[command.index(str(_PYTHON))] = str(self._folder / "python")  # what is mounted there
            command += [os.path.realpath(sys.executable), "-I", "-S", _PROGRAM]
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            env = {"PATH": PATH, **dict.fromkeys((start_members.JOB_ID, start_members.ATTEMPT), start_members.ROOM)}
            with theirs:
                child = network.start(partial(start_session, command, env, *copied.values(), stdin=theirs.fileno()))
        self._stack.callback(_end, ours, child)
        self._first = _find_first(child)
        network.attach(self._first)
        self._requests, self._network = ours, network

    def _start_member(self, spec: LaunchSpec, sandbox: JobSandbox, group: JobGroup | None) -> Member:
        assert self._requests is not None  # noqa: S101 - for mypy: it is open
        uid = sandbox.prepare(spec)
        member_spec, root = self._own(spec), spec.control.parent
        pairs = zip(sandbox.folders(spec), sandbox.folders(member_spec), strict=True)
        folders = [(source, target) for (source, _), (_, target) in pairs if source.is_relative_to(root)]
        member = {
            "names": {start_members.JOB_ID: spec.job_id, start_members.ATTEMPT: spec.attempt},
            "folders": [(str(source.relative_to(root.parent)), target) for source, target in folders],
            "sharedMemory": sandbox.shared_memory_bytes(spec),
            "cpus": sorted(os.sched_getaffinity(0)) if spec.job_spec.cpus is not None else None,
            "user": uid,
            "folder": spec.working_dir or base.WORKSPACE,
            "words": ["/bin/bash", "-p", WRAPPER_INSIDE, base.CONTROL, "", str(spec.stop_signal)],
            "env": sandbox.environment(inherited_environment(member_spec.python), member_spec),
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as stack:
            stack.enter_context(theirs)
            given = stack.enter_context(in_memory(json.dumps(member).encode()))
            joined = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in group.join_files] if group else []
            for descriptor in joined:
                stack.callback(os.close, descriptor)
            mark_launched(spec)
            socket.send_fds(self._requests, [b"."], [theirs.fileno(), given, *joined])
        started = Member(ours)
        started.await_start()
        return started


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec(LaunchSpec):
    """A member of an array that may share a sandbox with the others."""

    shared: SharedSandbox

    @classmethod
    def of(cls, spec: LaunchSpec, shared: SharedSandbox) -> Self:
        return cls(**{field.name: getattr(spec, field.name) for field in fields(spec)}, shared=shared)


def _find_first(child: "subprocess.Popen[bytes]") -> int:
    """Return the first process of a sandbox that is being made. Raises `LaunchError`: there is none."""
    until = time.monotonic() + _START_SECONDS
    while child.poll() is None and time.monotonic() < until:
        if children := children_of(child.pid):
            return children[0]
        time.sleep(_PAUSE_SECONDS)
    raise LaunchError("launch_failed", f"bubblewrap ended with {child.poll()}")


def _end(requests: socket.socket, child: "subprocess.Popen[bytes]") -> None:
    requests.close()
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
