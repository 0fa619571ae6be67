"""The hosts of a slice: the addresses that each gets, their outputs in one log, and one end for all.

Each host has a folder in the bucket and one in the job's control folder, which is filled as if its job had one host.
"""

import os
from pathlib import Path

from worker.backends.base import Exit, Handle, read_control, read_exit_code, write_control_file

END_FILE, ENDED_AT_FILE, HOST_FILE = "vm_ended", "vm_ended_at", "vm_host"
MISSING_FILE = "vm_missing"
"""Control file with the reason that artifacts were left on the VM."""
MISSING_BYTES = 1000
"""Longest reason in it."""
NO_END = "not sent: it did not report the end of its job"
"""The reason for a VM that was given up."""
COORDINATOR_PORT = 8476
_BLOCK_BYTES = 1 << 20
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
    """Return the folder for the files of one host, and create it."""
    folder = control / "hosts" / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def describe_host(rank: int, addresses: list[str]) -> str:
    """Name a host for the user."""
    return f"host {rank} of {len(addresses)} ({addresses[rank]})"


class SliceLog:
    """The log of a job on a slice: the hosts' lines as they come, each behind its host's rank (`[2] …`).

    Args:
        control: The job's control folder. The log there tells how far each host's output was merged.
        count: Number of hosts.
    """

    def __init__(self, control: Path, count: int) -> None:
        self._control = control
        self._merged = [0] * count
        self._unfinished = b""
        log = control / "log"
        if log.exists():
            with log.open("rb") as lines:
                for line in lines:
                    self._count(line)

    def merge(self) -> None:
        """Append all lines that are complete, and what a host that has ended wrote after its last line."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._control / "log", flags, 0o600)
        try:
            for rank in self._order():
                folder = host_folder(self._control, rank)
                ended = has_ended(folder)  # read first: all of its output is here then
                while lines := self._read_lines(folder, rank, ended=ended):
                    for line in lines:
                        self._append(descriptor, rank, line)
        finally:
            os.close(descriptor)

    def _order(self) -> list[int]:
        """Order the hosts: one that can finish a line that was cut short comes first."""
        cut = self._unfinished
        ranks = range(len(self._merged))
        return sorted(ranks, key=lambda rank: (b"[%d] " % rank)[: len(cut)] != cut[: len(b"[%d] " % rank)])

    def _read_lines(self, folder: Path, rank: int, *, ended: bool) -> list[bytes]:
        try:
            with (folder / "log").open("rb") as file:
                file.seek(self._merged[rank])
                lines = file.readlines(_BLOCK_BYTES)
        except FileNotFoundError:
            return []
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1:] = [lines[-1] + b"\n"] if ended else []
        return lines

    def _append(self, descriptor: int, rank: int, line: bytes) -> None:
        whole = b"[%d] %s" % (rank, line)
        # A write may have been cut short by a full disk or a crash: what is missing of that line comes first.
        rest = memoryview(whole.removeprefix(self._unfinished) if self._unfinished else whole)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        self._unfinished = b""
        self._merged[rank] += len(line)

    def _count(self, line: bytes) -> None:
        rank, found, text = line.partition(b"] ")
        if not line.endswith(b"\n"):
            self._unfinished = line
        elif found and rank[1:].isdigit() and int(rank[1:]) < len(self._merged):
            self._merged[int(rank[1:])] += len(text)


def has_ended(folder: Path) -> bool:
    """Return whether a host has reported its end."""
    return read_exit_code(folder) is not None or read_control(folder, END_FILE) is not None


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

    Args:
        control: The job's control folder.
        count: Number of hosts.
        given_up: The hosts had to end, and have had the time for it: one without a report is lost.
    """
    silent = [rank for rank in range(count) if not has_ended(host_folder(control, rank))]
    if silent and not given_up:
        return False
    left = {rank: read_control(host_folder(control, rank), MISSING_FILE, MISSING_BYTES) for rank in range(count)}
    missing = "; ".join(f"host {rank}: {why}" for rank, why in (left | dict.fromkeys(silent, NO_END)).items() if why)
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
    known = rank is not None and rank.isdecimal() and int(rank) < len(handle.get("hosts", ()))
    return describe_host(int(rank), handle["hosts"]) if known and rank is not None else None


def name_host(ended: Exit, host: str) -> Exit:
    """Return the end of a job that ended because of one of its hosts."""
    if ended.code is not None:
        words = f"{host} failed first, with exit code {ended.code}. See its lines with `jobs logs --rank`."
        return Exit(ended.code, "tpu_host_failed", words)
    return Exit(None, ended.reason, f"{host}: {ended.detail}" if ended.detail else host)


def _read_time(folder: Path) -> float:
    try:
        return float(read_control(folder, ENDED_AT_FILE) or _NEVER)
    except ValueError:
        return _NEVER
