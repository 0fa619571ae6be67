import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from core.system.bubblewrap_command import PATH
from core.system.processes import start_session
from worker.backends.base import LaunchError, LaunchSpec, mark_launched
from worker.backends.process.control_groups import JobGroup
from worker.backends.process.job_sandbox import READY, JobSandbox, in_memory, open_copied
from worker.backends.process.network.job_network import HOST_NETWORK
from worker.backends.process.sandbox_processes import children_of
from worker.sandbox.network_namespace import JobNetwork

_MAX_MESSAGE_BYTES = 4096


class SandboxStart(NamedTuple):
    """A sandbox that is being started: bubblewrap, and the worker's end of the socket that is its standard error."""

    bubblewrap: "subprocess.Popen[bytes]"
    channel: socket.socket


def start_sandboxed(
    spec: LaunchSpec,
    sandbox: JobSandbox,
    inherited: Mapping[str, str],
    join: Sequence[str] = (),  # words before a command that start it in the job's control group
    network: JobNetwork = HOST_NETWORK,
) -> SandboxStart:
    """Start bubblewrap, whose own environment only names the attempt; the job's is in a script in memory."""
    uid = sandbox.prepare(spec)
    mark_launched(spec)
    names = {"PATH": PATH, "GRADIENT_JOB_ID": spec.job_id, "GRADIENT_ATTEMPT": str(spec.attempt)}
    with open_copied(uid, network.resolvers()) as copied, in_memory(sandbox.script(inherited, spec)) as script:
        command = [*join, *network.enter, *sandbox.command(spec, uid, copied, network.unshare)]
        start = partial(start_session, command, names, *copied.values(), stdin=script)
        name = None if spec.is_first_node else spec.name  # other sandboxes join the network of a first node
        return start_bubblewrap(start, network, name, spec.project_id)


def start_bubblewrap(
    start: Callable[..., "subprocess.Popen[bytes]"], network: JobNetwork, name: str | None = None, project_id: str = ""
) -> SandboxStart:
    """Start bubblewrap in a network, for which see `JobNetwork.start`. `start`: starts it with this `stderr`."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return SandboxStart(network.start(partial(start, stderr=theirs.fileno()), name, project_id), ours)
        except BaseException:
            ours.close()
            raise


def finish_start(
    start: SandboxStart, group: JobGroup | None, seconds: float, connect: Callable[[int], None] | None = None
) -> int | None:
    """Move the sandbox into the job's control group, wait until its shell is ready, and let that start the wrapper.

    It is moved while bubblewrap mounts: to move the first process, the kernel waits for all CPUs, about 10 ms. The
    shell goes on only with the worker's permission, and ends if the worker ends before. Returns the pid of the
    sandbox's first process; None if the wait was too long.

    Args:
        group: The job's control group; None if it has none, or the sandbox was started in it.
        seconds: Longest wait for the shell; after that it may go on once it is ready.
        connect: Completes the network of the sandbox with this first process.
    """
    child, channel = start
    with channel:
        if group is not None:
            try:
                _move(group, child.pid)
            except OSError as error:
                raise LaunchError("launch_failed", f"its control group cannot be joined: {error}") from error
        text = _read_messages(channel, time.monotonic() + seconds)
        first = next(iter(children_of(child.pid)), None)
        if first is not None and text is None and connect is not None:
            connect(first)
        with suppress(OSError):  # it has ended
            channel.send(b"\n")
    if text is None:
        return first
    child.wait()
    output = text.decode(errors="replace").split()
    raise LaunchError("launch_failed", f"its sandbox could not be created: {' '.join(output)[:300]}")


def _move(group: JobGroup, pid: int) -> None:
    """Move a process and its descendants. After its move they are all listed, or were born in the group."""
    group.move(pid)
    for child in children_of(pid):
        _move(group, child)


def _read_messages(channel: socket.socket, deadline: float) -> bytes | None:
    """Return what bubblewrap printed until it ended; None if the shell is ready, or after the deadline."""
    text = b""
    readable = select.poll()  # not select(): it refuses descriptors above 1023
    readable.register(channel, select.POLLIN)
    while not text.endswith(READY) and readable.poll(1000 * max(0.0, deadline - time.monotonic())):
        block = channel.recv(_MAX_MESSAGE_BYTES)
        if not block:
            return text
        text = (text + block)[-_MAX_MESSAGE_BYTES:]
    return None
