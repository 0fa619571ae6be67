"""The files in a job's control folder, by which the wrapper, its launcher and the worker tell each other of the job.

The wrapper (`worker/wrapper/run.sh`) runs `command` and writes `log`, `start.lock`, `started` (its pid) and `exit`. The
job writes `metrics.jsonl`, and may write to all others: they are read and written without following links.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

STOPPING_FILE = "stopping"
"""Written before a stop with grace: the wrapper starts no further program, and a worker that adopts the job knows why
it ends."""

SIGNALLED_FILE = "signalled"
"""Tells that the job was signalled: without it, a worker that adopts the job signals it once more."""

KEEP_FILE = "keep"  # the wrapper of a command that failed stays while it exists
WARNED_FILE = "warned"  # tells that a program of the job got the warning before its end

RESERVED_FILES = ("started", "exit")
"""Exist before the wrapper starts, filled with spaces: it overwrites them in place, also on a full disk."""

LAUNCHED_FILE = "launched"  # beside the control folder, where no sandboxed job and no container can change it
_MAX_BYTES = 64


def read_part(control: Path, name: str, at: int, size: int) -> bytes | None:
    """Read at most `size` bytes of a file; None if there is no regular file of that name."""
    try:
        descriptor = os.open(f"{control}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.pread(descriptor, size, at) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)


def read_control(control: Path, name: str, longest: int = _MAX_BYTES) -> str | None:
    """Read the first line of a small file; None if it is missing or incomplete.

    No more of it is read than `longest` bytes, as the wrapper never writes more.
    """
    line, end, _ = (read_part(control, name, 0, longest) or b"").decode("ascii", "replace").partition("\n")
    return line if end else None


def write_control_file(control: Path, name: str, detail: str) -> None:
    """Write a small file; one of that name is replaced: it may be a link, or a hard link to a file outside."""
    path = control / name
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{detail}\n".encode("ascii", "replace"))
        finally:
            os.close(descriptor)
    except OSError:  # for example, the disk is full: the announced action is carried out anyway
        logger.warning("control_file_not_written", exc_info=True, extra={"file": name})


def may_have_launched(control: Path) -> bool:
    """Return whether the attempt's command may have been started: its folders may be in the hands of the job.

    Unlike the wrapper's files, a sandboxed job cannot change this.
    """
    return control.with_name(LAUNCHED_FILE).exists()


def read_pid(control: Path) -> int | None:
    """Return the pid of the wrapper, in its own process table; None: it has not begun."""
    return _parse(read_control(control, "started"))


def read_exit_code(control: Path) -> int | None:
    """Return the exit code that the wrapper wrote, 0 to 255; None if it is missing or invalid."""
    code = _parse(read_control(control, "exit"))
    return code if code is not None and code <= 255 else None  # noqa: PLR2004 - POSIX exit codes are bytes


def _parse(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def read_exit_time(control: Path) -> float | None:
    """Return the Unix time at which the wrapper wrote the exit code; None if it wrote none."""
    if read_exit_code(control) is None:
        return None
    try:
        return (control / "exit").lstat().st_ctime  # the job can set the other times of the file
    except FileNotFoundError:
        return None
