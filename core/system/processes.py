"""The processes of this host."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_KERNEL = frozenset({0, 2})
"""Parents of the kernel's own processes, which have no environment."""
_LOADING_ROUNDS = 200
_EMPTY_ROUNDS = 5
_PAUSE_SECONDS = 0.002


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


def read_environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process, of the next program while the kernel is loading one into it.

    Meanwhile it has neither arguments nor an environment, on a busy machine for milliseconds. psutil does not tell
    that from one that is filled with something else, as programs do that show a title.

    Raises:
        psutil.Error: It has ended, or belongs to another user.
    """
    empty = 0
    for _ in range(_LOADING_ROUNDS):
        content = _read_environment(process.pid)
        if content or empty == _EMPTY_ROUNDS or process.ppid() in _KERNEL:
            pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0"))
            return {name: value for name, separator, value in pairs if separator}
        empty += bool(process.cmdline())  # loaded since, or without an environment
        time.sleep(_PAUSE_SECONDS)
    return {}


def _read_environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError as error:
        raise psutil.AccessDenied(pid) from error
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
