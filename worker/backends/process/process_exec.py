"""Commands in jobs that run as processes of this host, and connections to their ports."""

import os
import socket
from contextlib import ExitStack, suppress

import psutil

from core.system.processes import read_environment
from worker.backends.job_processes import GONE, JobProcesses
from worker.backends.process.sandbox_processes import SandboxProcesses, is_sandbox
from worker.runner.commands import start_command
from worker.runner.streams import ExecRefused, ExecRequest, ProcessStream, SocketStream
from worker.sandbox import system_calls

_CONNECT_SECONDS = 30.0


def run_in_processes(members: JobProcesses, request: ExecRequest, join: list[str]) -> ProcessStream:
    """Start a command among the processes of a job: with the user, variables, folder and CPUs of its wrapper.

    `join`: words before a command that start it in the job's control group, if it has one. Raises `ExecRefused`: it
    cannot be started.
    """
    if members.leader is None or not members.leader_alive():
        raise ExecRefused("The job has no process to enter: it is starting or has just ended.")
    sandbox = members if isinstance(members, SandboxProcesses) else None
    with ExitStack() as stack:
        try:
            leader = psutil.Process(members.leader)
            uid, gid = leader.uids().real, leader.gids().real
            if sandbox is not None and uid == 0:  # it is still becoming the job's user
                raise ExecRefused("The job is starting. Try again.")
            env, folder, cpus = read_environment(leader.pid), leader.cwd(), sorted(os.sched_getaffinity(leader.pid))
            descriptor = _open_sandbox(sandbox, stack) if sandbox is not None else -1
        except (*GONE, OSError) as error:
            raise ExecRefused("The job has just ended.") from error
        return start_command(
            request,
            env,
            folder,
            sandbox=descriptor,
            join=join,
            cpus=cpus,
            user=(uid, gid) if os.geteuid() == 0 and uid != 0 else None,
            filter=system_calls.make_filter().hex() if sandbox is not None else None,
        )


def _open_sandbox(members: SandboxProcesses, stack: ExitStack) -> int:
    """Open the sandbox's first process: the folder stays that process's own, even if the pid is used again."""
    descriptor = os.open(f"/proc/{members.first}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    if not is_sandbox(members.first, members.job_id, members.attempt):
        raise ExecRefused("The job has just ended.")
    return descriptor


def connect_to_processes(members: JobProcesses, port: int) -> SocketStream:
    """Connect to a port that a process of the job listens on; the other ports of this host are none of its.

    Raises `ExecRefused`: none listens there.
    """
    for process in members.all():
        with suppress(*GONE):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(connection.laddr.ip, connection.laddr.ip)  # noqa: S104 - compared, not bound
                    try:
                        return SocketStream(socket.create_connection((host, port), _CONNECT_SECONDS))
                    except OSError as error:
                        raise explain_unreached(port, error) from error
    raise explain_unreached(port, ConnectionRefusedError())


def explain_unreached(port: int, error: OSError) -> ExecRefused:
    """Say why a port of a job was not reached; a port that was found may have been closed before the connection."""
    if isinstance(error, ConnectionRefusedError):
        return ExecRefused(f"Nothing in the job listens on port {port}.")
    if isinstance(error, (FileNotFoundError, ProcessLookupError)):
        return ExecRefused("The job has just ended.")
    return ExecRefused(f"Port {port} of the job: {error.strerror or error}.")
