"""Starts the members of an array in the sandbox that they share, which this is the only program of.

Each gets processes, folders, shared memory and a mount table of its own, on top of the mounts that are there, and ends
with all of its processes. To the worker it looks like a sandbox of bubblewrap: a process named after the attempt, whose
child is the first one of the attempt's processes. It does not need this program once it runs.

Standard input is a socket. Of each message only the descriptors count: the member's own socket, a file with its JSON,
and the control group's files. On its socket come the first process's pid, `ready` or what failed, and the exit code.
It is run by its path, with Python's own library alone.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import sys
from contextlib import suppress

SCRATCH = "/.gradient/attempts"  # where the worker's folder of attempts is, which members do not see
JOB_ID, ATTEMPT = "GRADIENT_JOB_ID", "GRADIENT_ATTEMPT"
ROOM = " " * 64  # their value at first: those of members are written over it
READY = b"ready"
REFUSED = 97

_NEW_SPACES = 0x00020000 | 0x20000000 | 0x08000000  # of mounts, processes and System V's shared memory
_NOSUID, _NODEV, _READ_ONLY, _REMOUNT, _NOEXEC, _BIND = 2, 4, 1, 32, 8, 4096
_DETACH = 2
_COVERED = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_MAX_DESCRIPTORS = 16
_C = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    requests = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    points = _mount_points()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1, _MAX_DESCRIPTORS)
        if not message:  # the worker has ended, or needs no more members
            return
        if os.fork() == 0:
            requests.close()
            _run_member(points, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _run_member(points: list[str], reply: int, given: int, *groups: int) -> None:
    """Be the process that waits for a member's first one, outside of its spaces; does not return."""
    code = REFUSED
    channel = socket.socket(fileno=reply)
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(given, encoding="utf-8") as file:
            member = json.load(file)
        _take_name(member)
        _check(_C.unshare(_NEW_SPACES))
        first = os.fork()
        if first == 0:
            _be_first(member, channel, groups, points)
        channel.send(str(first).encode())
        code = _exit_code(os.waitpid(first, 0)[1])
        channel.send(str(code).encode())
    except BaseException as error:  # noqa: BLE001 - told to the worker
        _tell(channel, error)
    os._exit(code)


def _take_name(member: dict) -> None:  # type: ignore[type-arg] # of JSON
    """Write the attempt over this process's environment, by which the worker finds it."""
    for variable in (JOB_ID, ATTEMPT):
        prefix = f"{variable}=".encode()
        address = next(pointer for pointer in _environment() if ctypes.string_at(pointer).startswith(prefix))
        value = str(member["names"][variable]).encode()
        ctypes.memmove(address + len(prefix), value.ljust(len(ROOM), b"\0"), len(ROOM))


def _environment() -> list[int]:
    pointers = ctypes.POINTER(ctypes.c_void_p).in_dll(_C, "environ")
    variables: list[int] = []
    while address := pointers[len(variables)]:
        variables.append(address)
    return variables


def _be_first(
    member: dict,  # type: ignore[type-arg] # of JSON
    channel: socket.socket,
    groups: tuple[int, ...],
    points: list[str],
) -> None:
    """Be the first process of a member: mount its folders, start its command, and end with it."""
    code = REFUSED
    try:
        for descriptor in groups:  # not the process outside: the groups are empty once this one has ended
            os.write(descriptor, b"0")
        targets = "/dev/shm", *(target for _, target in member["folders"])  # noqa: S108 - a mount point
        covered = [path for path in points if path.startswith(tuple(f"{target}/" for target in targets))]
        shown = {path: os.open(path, os.O_PATH) for path in covered}
        for source, target in member["folders"]:
            _mount(f"{SCRATCH}/{source}", target, _BIND)
        _check(_C.umount2(SCRATCH.encode(), _DETACH))
        _mount("proc", "/proc", _NOSUID | _NODEV | _NOEXEC, "proc")
        for name in _COVERED:
            path = f"/proc/{name}"
            if os.path.exists(path):  # noqa: PTH110 - pathlib takes as long to import as all else here
                _mount(path, path, _BIND)
                _mount("none", path, _REMOUNT | _BIND | _READ_ONLY | _NOSUID | _NODEV | _NOEXEC)
        size = f"size={member['sharedMemory']},mode=1777"
        _mount("tmpfs", "/dev/shm", _NOSUID | _NODEV, "tmpfs", size)  # noqa: S108 - a mount point
        for path, opened in shown.items():
            _show(opened, path, member["user"])
        command = _start_command(member, channel.fileno())
        channel.send(READY)
        channel.close()
        while True:
            pid, status = os.wait()
            if pid == command:
                code = _exit_code(status)
                break
    except BaseException as error:  # noqa: BLE001 - told to the worker
        _tell(channel, error)
    os._exit(code)


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123 - as below
        escaped = [line.split()[4] for line in file]
    return [os.fsdecode(path.decode("unicode_escape").encode("latin-1")) for path in escaped]


def _show(shown: int, path: str, user: int) -> None:
    """Mount what was at a path, below which only the member may look now."""
    os.seteuid(user)
    folder = stat.S_ISDIR(os.fstat(shown).st_mode)
    os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - as above
    if not folder:
        os.close(os.open(path, os.O_CREAT, 0o600))
    target = os.open(path, os.O_PATH)
    os.seteuid(0)
    _mount(f"/proc/self/fd/{shown}", f"/proc/self/fd/{target}", _BIND)


def _start_command(member: dict, channel: int) -> int:  # type: ignore[type-arg] # of JSON
    """Become what the command is to be, and start it: a copy of this process would take longer than the start itself.

    The command can neither signal nor trace this process, which is the first of its table and was another user's.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if member["cpus"]:
        os.sched_setaffinity(0, member["cpus"])
    os.setgroups([])
    os.setgid(member["user"])
    os.setuid(member["user"])
    os.chdir(member["folder"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.closerange(3, channel)
    os.closerange(channel + 1, 64)
    os.set_inheritable(channel, False)  # noqa: FBT003 - its only other argument
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python
    return os.posix_spawn(member["words"][0], member["words"], member["env"], setsid=True, setsigdef=ignored)


def _mount(source: str, target: str, flags: int, kind: str = "none", options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode())
    _check(_C.mount(*arguments, ctypes.c_ulong(flags), options.encode()), target)


def _check(result: int, what: str = "") -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _tell(channel: socket.socket, error: BaseException) -> None:
    with suppress(OSError):
        channel.send(f"failed: {error}".encode())


if __name__ == "__main__":
    main()
    sys.exit()
