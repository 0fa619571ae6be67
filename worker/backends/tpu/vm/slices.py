"""The hosts of a slice: the addresses that each gets, their outputs in one log, and one end for all.

Each host has a folder in the bucket and one in the job's control folder, which is filled as if its job had one host.
"""

import json
import os
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from core.system.filesystem import write_atomically
from worker.backends.base import Exit, Handle
from worker.runner.control_files import read_control, read_exit_code, write_control_file

END_FILE, ENDED_AT_FILE, HOST_FILE = "vm_ended", "vm_ended_at", "vm_host"
MISSING_FILE = "vm_missing"  # control file with the reason that artifacts were left on the VM
MISSING_BYTES = 1000  # longest reason in it
LEFT_FILE = "vm_left"  # control file with what a VM left out of the artifacts, as it reported it
NO_END = "not sent: it did not report the end of its job"  # the reason for a VM that was given up
COORDINATOR_PORT = 8476
LINE_BYTES = 1 << 16  # longest line of a host that is one line of the log, with its end
_STEP_BYTES = 1 << 20  # bytes of all hosts in one write to the log, unless there are many hosts
_STEP_FILE = "merging"
_NEVER = float("inf")


def host_environment(rank: int, addresses: list[str]) -> dict[str, str]:
    """Return the variables by which JAX and PyTorch/XLA on one host find the others; none without others."""
    if len(addresses) == 1:
        return {}
    coordinator = f"{addresses[0]}:{COORDINATOR_PORT}"
    return {
        "TPU_WORKER_ID": str(rank),
        "TPU_WORKER_HOSTNAMES": ",".join(addresses),
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_COORDINATOR_BIND_ADDRESS": coordinator,  # JAX would listen on every address
        "MASTER_ADDR": addresses[0],
    }


def host_folder(control: Path, rank: int) -> Path:
    folder = control / "hosts" / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def describe_host(rank: int, addresses: list[str]) -> str:
    return f"rank {rank} of {len(addresses)} nodes ({addresses[rank]})"


class _Step(NamedTuple):
    """One write to the log of a slice."""

    size: int  # bytes of the log before it
    starts: list[int]  # bytes of each host's output that the log has before it
    ends: list[int]


class SliceLog:
    """The log of a job on a slice: the hosts' lines as they come, each behind its host's rank (`[2] …`).

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

    def merge(self) -> None:
        """Append all lines that are complete, and what a host that has ended wrote after its last line.

        Raises `OSError`: the disk is full, for example; a repeat continues.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._control / "log", flags, 0o600)
        try:
            if self._unsure is not None:
                self._append(descriptor, self._unsure)
            while (step := self._next_step(descriptor)).ends != step.starts:
                os.fdatasync(descriptor)  # the record tells after a power cut, too, what is missing
                write_atomically(self._control / _STEP_FILE, json.dumps(step).encode())
                self._unsure = step
                self._append(descriptor, step)
        finally:
            os.close(descriptor)

    def _next_step(self, descriptor: int) -> _Step:
        ends = [start + self._count_ready(rank, start) for rank, start in enumerate(self._merged)]
        return _Step(os.fstat(descriptor).st_size, self._merged, ends)

    def _count_ready(self, rank: int, start: int) -> int:
        """Count the next bytes of a host's output that are whole lines, or pieces of a line that is too long."""
        folder = host_folder(self._control, rank)
        ended = has_ended(folder)  # read first: all of its output is here then
        longest = max(2 * LINE_BYTES, _STEP_BYTES // len(self._merged))
        content = _read_part(folder / "log", start, longest)
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


def has_ended(folder: Path) -> bool:
    return read_exit_code(folder) is not None or read_control(folder, END_FILE) is not None


def node_exits(control: Path, count: int) -> dict[str, int | None]:
    """Return the exit code of each host that has ended, by its rank; None: it ended without one."""
    folders = {str(rank): host_folder(control, rank) for rank in range(count)}
    return {rank: read_exit_code(folder) for rank, folder in folders.items() if has_ended(folder)}


def first_failure(control: Path, count: int) -> int | None:
    """Return the rank of the host that failed first, by the hosts' clocks; None if none did."""
    failed = {}
    for rank in range(count):
        folder = host_folder(control, rank)
        if has_ended(folder) and read_exit_code(folder) != 0:
            failed[rank] = _read_time(folder)
    return min(failed, key=failed.__getitem__, default=None)


def write_end(control: Path, count: int, *, given_up: bool) -> bool:
    """Write the job's end, and why artifacts are missing, once every host has ended; return whether there is an end.

    `given_up`: the hosts had to end, and have had the time for it: one without a report is lost.
    """
    silent = [rank for rank in range(count) if not has_ended(host_folder(control, rank))]
    if silent and not given_up:
        return False
    left = {rank: read_control(host_folder(control, rank), MISSING_FILE, MISSING_BYTES) for rank in range(count)}
    missing = "; ".join(f"rank {rank}: {why}" for rank, why in (left | dict.fromkeys(silent, NO_END)).items() if why)
    if missing:
        write_control_file(control, MISSING_FILE, missing[: MISSING_BYTES - 1])
    rank = silent[0] if silent else first_failure(control, count)
    folder = host_folder(control, rank or 0)
    code = read_exit_code(folder)
    if rank is not None:
        write_control_file(control, HOST_FILE, str(rank))
    reason = read_control(folder, END_FILE) or "silent"
    write_control_file(control, *(("exit", str(code)) if code is not None else (END_FILE, reason)))
    return True


def read_host(handle: Handle) -> str | None:
    """Return the name of the host that the job's end is due to, if it is due to one."""
    rank = read_control(Path(handle["control"]), HOST_FILE)
    is_rank = rank is not None and rank.isdecimal() and int(rank) < len(handle.get("hosts", ()))
    return describe_host(int(rank), handle["hosts"]) if is_rank and rank is not None else None


def name_host(ended: Exit, host: str) -> Exit:
    """Return the end of a job that ended because of one of its hosts."""
    if ended.code is not None:
        text = f"{host} failed first, with exit code {ended.code}. See its log with `jobs logs --rank`."
        return Exit(ended.code, "tpu_host_failed", text)
    return Exit(None, ended.reason, f"{host}: {ended.detail}" if ended.detail else host)


def _read_time(folder: Path) -> float:
    try:
        return float(read_control(folder, ENDED_AT_FILE) or _NEVER)
    except ValueError:
        return _NEVER


def read_end_time(control: Path, count: int) -> float | None:
    """Return when the last of the hosts ended, by their clocks; None if one has not said it."""
    folders = [host_folder(control, rank) for rank in range(count)] or [control]
    last = max(_read_time(folder) for folder in folders)
    return last if last < _NEVER else None
