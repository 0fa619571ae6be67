"""Enters a running job: joins its sandbox if it has one, becomes its user, then the command.

It runs by itself (`python -I -S`), with the standard library alone.

    enter_job.py CHANNEL REQUEST PROCESS

CHANNEL is a descriptor to report on, one message each: `pid N`, the command's process; `terminal`, with its
descriptor; `error TEXT`. Its end means that the command runs. REQUEST is a descriptor to read the request from, as
JSON. PROCESS is the folder in /proc of a process of the sandbox; -1: there is none.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import termios
from pathlib import Path

_NAMESPACES = ("ipc", "uts", "cgroup", "net", "pid", "mnt")  # the last, because paths mean others then
_GET_USER_NAMESPACE = 0xB701
_SET_DUMPABLE, _SET_NO_NEW_PRIVS, _DROP_BOUNDING, _SET_SECCOMP, _FILTER = 4, 38, 24, 22, 2
_ENV = "/usr/bin/env"
_LAST_CAPABILITY = 63
_C = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Become the command, or its parent if it has to be in another process table."""
    channel, request, process = (int(word) for word in sys.argv[1:])
    report = socket.socket(fileno=channel)
    report.set_inheritable(False)
    try:
        with os.fdopen(request, "rb") as file:
            wanted = json.load(file)
        if wanted.get("cpus"):
            os.sched_setaffinity(0, wanted["cpus"])
        if process >= 0:
            # The job must not open this interpreter, which is the host's, by the /proc of its processes.
            _C.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
            _join(process)
            child = os.fork()
            if child:
                report.send(f"pid {child}".encode())
                report.close()
                for descriptor in (0, 1, 2):  # the client sees the end of its pipes when the command closes them
                    os.close(descriptor)
                for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                os._exit(code if code >= 0 else 128 - code)
        else:
            report.send(f"pid {os.getpid()}".encode())
        _run(wanted, report, sandboxed=process >= 0)
    except OSError as error:
        report.send(f"error {error.strerror}{f': {error.filename}' if error.filename else ''}".encode()[:1000])
    os._exit(126)


def _join(process: int) -> None:
    """Join the namespaces of a process, of which the user namespace may be nested in the one that owns the others."""
    opened = {name: _open(f"ns/{name}", process) for name in (*_NAMESPACES, "user")}
    this_namespace = _open("/proc/self/ns/user")
    owner = fcntl.ioctl(opened["mnt"], _GET_USER_NAMESPACE)
    if not os.path.sameopenfile(owner, this_namespace):
        _set_namespace(owner)
    for name in _NAMESPACES:
        if not os.path.sameopenfile(opened[name], _open(f"/proc/self/ns/{name}")):
            _set_namespace(opened[name])
    if not os.path.sameopenfile(opened["user"], owner):
        _set_namespace(opened["user"])
    os.close(process)  # by this folder of the host the command could leave the sandbox


def _open(path: str, folder: int | None = None) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)


def _set_namespace(descriptor: int) -> None:
    if _C.setns(descriptor, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the job's sandbox cannot be entered: {os.strerror(number)}")


def _run(wanted: dict, report: socket.socket, *, sandboxed: bool) -> None:  # type: ignore[type-arg]  # from JSON
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sandboxed:
        for capability in range(_LAST_CAPABILITY):
            _C.prctl(_DROP_BOUNDING, capability, 0, 0, 0)  # those that are not ours to drop cannot be gained either
        if _C.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "privileges cannot be given up")
        _filter_system_calls(bytes.fromhex(wanted["filter"]))
    if wanted.get("user") is not None:
        uid, gid = wanted["user"]
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    os.setsid()
    if wanted["terminal"] is not None:
        ours, its = os.openpty()  # only now: it belongs to the job's user, and is in the job's /dev
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *wanted["terminal"], 0, 0))
        socket.send_fds(report, [b"terminal"], [ours])
        os.close(ours)
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)
        for descriptor in (0, 1, 2):
            os.dup2(its, descriptor)
    try:
        os.chdir(wanted["folder"])
    except OSError:
        os.chdir("/")
    _restore_signals()
    command = wanted["command"]
    os.closerange(3, report.fileno())
    os.closerange(report.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    try:
        _become(command, wanted["env"], sandboxed=sandboxed)
    except FileNotFoundError:
        code, why = 127, "command not found"
    except OSError as error:
        code, why = 126, str(error.strerror)
    os.write(2, os.fsencode(f"{command[0]}: {why}\n"))
    report.close()
    os._exit(code)


def _become(command: list[str], env: dict[str, str], *, sandboxed: bool) -> None:
    if sandboxed:
        # By /proc/self/exe the command reaches the program that started it: one of its own /usr, not the host's.
        _check(command[0], env.get("PATH", os.defpath))
        os.execve(_ENV, [_ENV, *command], env)  # noqa: S606 - the user's command
    os.execvpe(command[0], command, env)  # noqa: S606 - the user's command


def _check(program: str, path: str) -> None:
    """Raise `OSError`: there is no such program, or `env` would take it for a variable."""
    if "=" in program:
        raise OSError(errno.EINVAL, "a program with = in its name has to be started with sh -c")
    if not any(Path(folder, program).exists() for folder in ([""] if "/" in program else path.split(os.pathsep))):
        raise FileNotFoundError(program)


def _filter_system_calls(instructions: bytes) -> None:
    held = ctypes.create_string_buffer(instructions)
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions) // 8, ctypes.addressof(held)))
    if _C.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "system calls cannot be filtered")


def _restore_signals() -> None:
    """Ignore no signal, as Python does some: the command would inherit that."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
