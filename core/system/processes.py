"""The processes of this host."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil

_LOADING_ROUNDS = 200
_EMPTY_ROUNDS = 5
_PAUSE_SECONDS = 0.002
_STATE, _FLAGS, _START = 0, 6, 19
"""Positions in /proc/PID/stat after the name: state, flags, and the start in ticks since the machine's."""
_ENDED_STATES = {b"Z", b"X"}
_KERNEL_THREAD = 0x00200000
"""The kernel's PF_KTHREAD."""


def running_processes(pids: Iterable[int] | None = None) -> Iterator[psutil.Process]:
    """Yield the processes with these pids, or all of the host, except those that have ended.

    `psutil.process_iter` keeps its objects from one call to the next. In a program that runs for long, one of them can
    stand for an earlier process with the same pid, and then refuses to signal the one that has it now.
    """
    for pid in psutil.pids() if pids is None else pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process


def sort_by_age(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return processes, the oldest first, without those that have ended."""
    ages = {}
    for process in processes:
        with suppress(psutil.Error):
            ages[process] = int(_stat_fields(process.pid)[_START]), process.pid
    return sorted(ages, key=lambda process: ages[process])


def read_environment(pid: int, prefix: str = "") -> dict[str, str]:
    """Return the environment of a process; while the kernel loads a program into it, wait for that program's.

    Meanwhile a process has neither arguments nor an environment, on a busy machine for milliseconds. psutil does not
    tell that from an environment that is filled with something else, as programs do that show a title.

    Args:
        pid: Of the process.
        prefix: Leaves out variables whose names begin otherwise.

    Raises:
        psutil.Error: It has ended, or belongs to another user.
    """
    wanted = prefix.encode()
    empty = 0
    for _ in range(_LOADING_ROUNDS):
        content = _read(pid, "environ")
        if content:
            # Most processes of a host have no variable that is looked for.
            entries = content.split(b"\0") if wanted in content else ()
            pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry.startswith(wanted))
            return {name: value for name, separator, value in pairs if separator}
        stat = _stat_fields(pid)
        if stat[_STATE] in _ENDED_STATES:
            raise psutil.NoSuchProcess(pid)  # older kernels let its empty environment be read
        if empty == _EMPTY_ROUNDS or int(stat[_FLAGS]) & _KERNEL_THREAD:
            break
        if _read(pid, "cmdline"):
            empty += 1  # it was loaded since, or has none
        else:
            time.sleep(_PAUSE_SECONDS)
    return {}


def _stat_fields(pid: int) -> list[bytes]:
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - a Path takes as long as the read
            return file.read()
    except PermissionError as error:
        raise psutil.AccessDenied(pid) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
