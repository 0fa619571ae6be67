import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, islice
from pathlib import Path

import psutil

_LOADING_ROUNDS = 200
_EMPTY_ROUNDS = 5
_PAUSE_SECONDS = 0.002
_MOST_BYTES = 6 * 1024**2
"""Longest environment that the kernel gives a program: three quarters of its usual stack.

A process may later declare any part of its memory as its environment (`PR_SET_MM`), gigabytes of it.
"""
_BLOCK_BYTES = 64 * 1024
_LONGEST_VARIABLE_BYTES = 128 * 1024  # the kernel's limit
_MOST_VARIABLES = 10_000
_STATE, _FLAGS, _START, _ENVIRONMENT_END = 0, 6, 19, 48
"""Positions in /proc/PID/stat after the name: state, flags, the start in ticks since the machine's, and the address."""
_ENDED_STATES = {b"Z", b"X"}
_KERNEL_THREAD = 0x00200000  # the kernel's PF_KTHREAD


def start_session(
    command: Sequence[str],
    env: Mapping[str, str],
    *passed: int,  # descriptors that it inherits
    folder: str | Path = "/",
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> "subprocess.Popen[bytes]":
    """Start a program in a session of its own, so that it outlives this process."""
    return subprocess.Popen(  # noqa: S603 - the callers' commands
        command,
        cwd=folder,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=passed,
        start_new_session=True,
    )


def keep_ignored_signals_from_children() -> None:
    """Let no program that this process starts inherit that a signal is ignored: it could not be told to end by it.

    The process may have inherited that itself: SIGINT in the background of a script, SIGHUP from `nohup`. It goes on
    ignoring them, by a handler. To be called in the main thread.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # `subprocess` restores these two
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


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

    Meanwhile a process has no environment, on a busy machine for milliseconds. psutil does not tell that from an
    environment that is filled with something else, as programs do that show a title. No more is read than the kernel
    gives a program, in blocks, and no more than 10,000 variables are returned: the process may have declared more.
    Raises `psutil.Error`: it has ended, or belongs to another user.
    """
    empty = 0
    for _ in range(_LOADING_ROUNDS):
        blocks = _read_blocks(pid, "environ")
        if first := next(blocks, b""):
            return _find_variables(chain((first,), blocks), os.fsencode(prefix))
        stat = _stat_fields(pid)
        if stat[_STATE] in _ENDED_STATES:
            raise psutil.NoSuchProcess(pid)  # older kernels let its empty environment be read
        if empty == _EMPTY_ROUNDS or int(stat[_FLAGS]) & _KERNEL_THREAD:
            break
        # The kernel sets the address when it has loaded the program; no process can set it to 0 again.
        if int(stat[_ENVIRONMENT_END]):
            empty += 1  # it was loaded since, or has none
        else:
            time.sleep(_PAUSE_SECONDS)
    return {}


def _find_variables(blocks: Iterable[bytes], prefix: bytes) -> dict[str, str]:
    """Return the variables in the blocks of an environment; of several with one name the first, as programs do."""
    variable = _variable_pattern(prefix)
    entries = islice(
        # Most processes of a host have no variable that is looked for.
        (match for text in _whole_variables(blocks) if prefix in text for match in variable.finditer(text)),
        _MOST_VARIABLES,
    )
    result: dict[str, str] = {}
    for match in entries:
        result.setdefault(os.fsdecode(match[1]), os.fsdecode(match[2]))
    return result


@cache
def _variable_pattern(prefix: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"\0(%b[^\0=]*)=([^\0]*)" % re.escape(prefix))


def _whole_variables(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield an environment in parts of whole variables, each after a zero byte."""
    rest = b"\0"
    for block in blocks:
        text = rest + block
        end = text.rindex(b"\0")
        yield text[:end]
        rest = text[end : end + _LONGEST_VARIABLE_BYTES]
    yield rest


def _stat_fields(pid: int) -> list[bytes]:
    return b"".join(_read_blocks(pid, "stat")).rpartition(b")")[2].split()


def _read_blocks(pid: int, name: str) -> Iterator[bytes]:
    """Yield a file of a process in blocks, up to the longest environment."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - a Path takes as long as the read
            for _ in range(0, _MOST_BYTES, _BLOCK_BYTES):
                block = file.read(_BLOCK_BYTES)
                yield block
                if len(block) < _BLOCK_BYTES:
                    return
    except PermissionError as error:
        raise psutil.AccessDenied(pid) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
