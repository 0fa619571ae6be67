"""The outputs of several hosts in the log of one job: of a TPU slice, or of an allocation in Slurm."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from core.system.filesystem import write_atomically

LINE_BYTES = 1 << 16  # longest line of a host that is one line of the log, with its end
_STEP_BYTES = 1 << 20  # bytes of all hosts in one write to the log, unless there are many hosts
_STEP_FILE = "merging"


def host_folder(control: Path, rank: int) -> Path:
    return control / "hosts" / str(rank)


def describe_host(rank: int, addresses: list[str]) -> str:
    """Return the name of a host among those of a job; empty: it is the only one."""
    return f"rank {rank} of {len(addresses)} nodes ({addresses[rank]})" if len(addresses) > 1 else ""


class _Step(NamedTuple):
    """One write to the log of a job."""

    size: int  # bytes of the log before it
    starts: list[int]  # bytes of each host's output that the log has before it
    ends: list[int]


class HostsLog:
    """The log of a job on several hosts: their lines as they come, each behind its host's rank (`[2] …`).

    A line of more than LINE_BYTES is cut into lines of that length, each behind the rank: no line has to be held in
    memory or read twice. Each write is first recorded in a control file. After a write that was cut short by a full
    disk or a crash, the next one adds what is missing. The log itself is not read for that: what was shipped of it is
    no longer on disk.
    """

    def __init__(self, control: Path, count: int) -> None:
        self._control = control
        self._merged = [0] * count
        self._unsure: _Step | None = None
        with suppress(FileNotFoundError):
            self._unsure = _Step(*json.loads((control / _STEP_FILE).read_bytes()))

    def merge(self, ended: Sequence[bool]) -> None:
        """Append all lines that are complete, and what the hosts that have ended wrote after their last line.

        Raises `OSError`: the disk is full, for example; a repeat continues.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._control / "log", flags, 0o600)
        try:
            if self._unsure is not None:
                self._append(descriptor, self._unsure)
            while (step := self._next_step(descriptor, ended)).ends != step.starts:
                os.fdatasync(descriptor)  # the record tells after a power cut, too, what is missing
                write_atomically(self._control / _STEP_FILE, json.dumps(step).encode())
                self._unsure = step
                self._append(descriptor, step)
        finally:
            os.close(descriptor)

    def _next_step(self, descriptor: int, ended: Sequence[bool]) -> _Step:
        starts = enumerate(self._merged)
        ends = [start + self._count_ready(rank, start, ended=ended[rank]) for rank, start in starts]
        return _Step(os.fstat(descriptor).st_size, self._merged, ends)

    def _count_ready(self, rank: int, start: int, *, ended: bool) -> int:
        """Count the next bytes of a host's output that are whole lines, or pieces of a line that is too long."""
        longest = max(2 * LINE_BYTES, _STEP_BYTES // len(self._merged))
        content = _read_part(host_folder(self._control, rank) / "log", start, longest)
        if ended and len(content) < longest:
            return len(content)
        unfinished = len(content) - (content.rfind(b"\n") + 1)
        return len(content) - unfinished % LINE_BYTES

    def _append(self, descriptor: int, step: _Step) -> None:
        whole = b"".join(
            _with_rank(rank, _read_part(host_folder(self._control, rank) / "log", start, end - start))
            for rank, (start, end) in enumerate(zip(step.starts, step.ends, strict=True))
        )
        rest = memoryview(whole)[max(0, os.fstat(descriptor).st_size - step.size) :]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        self._merged, self._unsure = step.ends, None


def _read_part(file: Path, start: int, size: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(start)
            return opened.read(size)
    except FileNotFoundError:
        return b""


def _with_rank(rank: int, content: bytes) -> bytes:
    """Return lines behind their host's rank; a piece of a line becomes a line."""
    lines, prefix = iter(partial(BytesIO(content).readline, LINE_BYTES), b""), b"[%d] " % rank
    return b"".join(prefix + line + (b"" if line.endswith(b"\n") else b"\n") for line in lines)
