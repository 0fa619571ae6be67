"""The processes of one attempt on this host, including double forks and new sessions.

They are identified by the environment that every descendant inherits, or by the session that the wrapper leads.
"""

import contextlib
import math
import os
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import psutil

from core.system.failpoints import failpoint
from core.system.processes import read_environment, running_processes, sort_by_age
from worker.attempt.scratch import list_scratch_folders
from worker.backends.base import STORAGE, Handle, scratch_handle

GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, ProcessLookupError, PermissionError)
"""Errors of psutil and the kernel about a process that has ended, or that is not ours."""
_ROUNDS = 50
_MAX_DESCRIPTORS = 50_000  # most open files of a job that one measurement looks at
_KIB = 1024
_REST_FACTOR = 50
_BLOCK_BYTES = 512  # unit of `st_blocks`

Choose = Callable[[list[psutil.Process]], tuple[list[psutil.Process], set[psutil.Process]]]
"""Returns which of a job's processes get SIGTERM, in their order, and which stay suspended."""


@dataclass(frozen=True, slots=True)
class JobProcesses:
    job_id: str
    attempt: int
    leader: int | None  # pid of the wrapper, the leader of the attempt's session; None if it is not known

    def all(self) -> Iterator[psutil.Process]:
        """Yield every living process of the attempt, the wrapper included."""
        session = self.leader if self.leader_alive() else None
        for pid in psutil.pids():
            if self._is_own(pid, session):
                yield from running_processes([pid])

    def leader_alive(self) -> bool:
        """Return whether the wrapper is alive. The job can write the file with its pid, so the kernel is queried."""
        if self.leader is None:
            return False
        return has_job_environment(self.leader, self.job_id, self.attempt)

    def terminate(self, *, spare_leader: bool, choose: Choose | None = None) -> int:
        """Send SIGTERM to all processes, also to those that begin meanwhile; return how many there were.

        They are suspended until no other one is found. A shell waits for its program before it acts on SIGTERM: one
        that it was just starting, and that the signal missed, would run for the whole grace period.

        `choose`: chooses among them.
        """
        suspended: list[psutil.Process] = []
        held: set[psutil.Process] = set()
        try:
            for _ in range(_ROUNDS):
                processes = [
                    process for process in self._oldest_first(spare_leader=spare_leader) if process not in suspended
                ]
                if not processes:
                    break
                suspended += processes
                _signal_each(processes, signal.SIGSTOP)
            failpoint("stop_suspended")
            chosen = suspended
            if choose is not None:
                chosen, held = choose(suspended)
            return _signal_each(chosen, signal.SIGTERM)
        finally:
            # A shell last: when it ends, the kernel sends SIGHUP to what is below it and still suspended.
            _signal_each((process for process in reversed(suspended) if process not in held), signal.SIGCONT)

    def kill(self, *, spare_leader: bool) -> None:
        """Send SIGKILL until no process is left: one that forks meanwhile is caught in a later round."""
        for _ in range(_ROUNDS):
            if not _signal_each(self._oldest_first(spare_leader=spare_leader), signal.SIGKILL):
                return

    def sandbox_pids(self) -> set[int]:
        """Return the pids of the sandbox's own processes; none without a sandbox."""
        return set()

    def usage(self, meter: "MemoryMeter", limit: int | None = None) -> tuple[float, int, int]:
        """Return the CPU seconds used so far, the memory in use now in bytes, and the number of processes.

        A control group tells the same in a few reads. `limit`: see `MemoryMeter.measure`.
        """
        return measure_usage(self.recent(), meter, limit)

    def recent(self) -> Iterator[psutil.Process]:
        """Yield the processes to measure: all, or all but those of the last second where that costs less."""
        return self.all()

    def unlinked_bytes(self, folder: Path, storage: Path) -> int:
        """Return the disk space of files without a name that the processes have open on the disk of a folder.

        `storage`: folder on this host of all shared storage, whose files are not counted.
        """
        stored = (f"{STORAGE}/", f"{os.path.realpath(storage)}/")
        return measure_unlinked_bytes(self.recent(), folder.stat().st_dev, stored)

    def written_bytes(self) -> int:
        """Return the bytes that the living processes have written so far, to files or not."""
        total = 0
        for process in self.recent():
            with contextlib.suppress(*GONE):
                total += process.io_counters().write_chars
        return total

    def _oldest_first(self, *, spare_leader: bool) -> list[psutil.Process]:
        """Return all processes in the order in which to signal them.

        A shell whose program ended before the shell itself got the signal would go on with its next command.
        """
        return [process for process in sort_by_age(self.all()) if not (spare_leader and process.pid == self.leader)]

    def _is_own(self, pid: int, session: int | None) -> bool:
        if has_job_environment(pid, self.job_id, self.attempt):
            return True
        try:
            return session is not None and os.getsid(pid) == session
        except GONE:
            return False


def _signal_each(processes: Iterable[psutil.Process], number: signal.Signals) -> int:
    """Send a signal to these processes; return how many of them were still there."""
    count = 0
    for process in processes:
        with contextlib.suppress(*GONE):
            process.send_signal(number)
            count += 1
    return count


class MemoryMeter:
    """Measures the memory that the processes of one job use: each page once, however many of them share it.

    That takes the kernel some ten milliseconds for each gigabyte of a process. So it is done in at most a fiftieth of
    the time; in between, the memory is taken to grow as much as the sum of what is resident for each process.
    """

    def __init__(self) -> None:
        self.measured_at = -math.inf  # time of the last measurement, of `time.monotonic()`
        self.peak = 0  # the highest result so far, in bytes
        self._counted = self._resident = 0
        self._rests_until = -math.inf

    def measure(self, pids: Collection[int], resident: int, files_in_memory: int, limit: int | None) -> int:
        """Return the memory in use, in bytes, without files of disks that are in memory.

        Args:
            resident: Sum of what is resident for each, in bytes.
            files_in_memory: Bytes of the job's files in memory, mapped or not.
            limit: More than this is returned only if it was counted.
        """
        resident += files_in_memory
        now = time.monotonic()
        used = min(resident, self._counted + max(0, resident - self._resident))
        if now >= self._rests_until or (limit is not None and used > limit):
            used = self._counted = _count_pages(pids, files_in_memory)
            self._resident = resident
            self._rests_until = now + _REST_FACTOR * (time.monotonic() - now)
        self.measured_at, self.peak = now, max(used, self.peak)
        return used


def _count_pages(pids: Iterable[int], files_in_memory: int) -> int:
    """Return the private memory of processes and what they share in memory, in bytes; what is shared counts once."""
    private, shared = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError, *GONE):
            try:
                text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
            except PermissionError:
                private += psutil.Process(pid).memory_info().rss
                continue
            fields = {name: int(columns[0]) * _KIB for name, *columns in map(str.split, text.splitlines()[1:])}
            private += fields.get("Pss_Anon:", fields.get("Pss:", 0))  # Linux before 5.4 does not tell them apart
            shared += fields.get("Pss_Shmem:", 0)
    return private + max(shared, files_in_memory)


def measure_usage(
    processes: Iterable[psutil.Process], meter: MemoryMeter, limit: int | None = None, files_in_memory: int = 0
) -> tuple[float, int, int]:
    """Return the CPU seconds that processes have used so far, their memory now in bytes, and their number.

    `limit`: see `MemoryMeter.measure`.
    """
    cpu, resident, pids = 0.0, 0, []
    for process in processes:
        with contextlib.suppress(*GONE), process.oneshot():
            times = process.cpu_times()
            resident += process.memory_info().rss
            cpu += times.user + times.system + times.children_user + times.children_system
            pids.append(process.pid)
    return cpu, meter.measure(pids, resident, files_in_memory, limit), len(pids)


def measure_unlinked_bytes(processes: Iterable[psutil.Process], device: int, stored: tuple[str, ...]) -> int:
    """Return the disk space of the files without a name that processes have open, each file once.

    `stored`: folders whose files are not counted, as the job sees them.
    """
    blocks: dict[int, int] = {}
    for path in islice(_descriptors(processes), _MAX_DESCRIPTORS):
        with contextlib.suppress(OSError):
            file = os.stat(path)  # noqa: PTH116 - no objects for thousands of names
            unlinked = stat.S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_dev == device
            if unlinked and not os.readlink(path).startswith(stored):  # noqa: PTH115 - likewise
                blocks[file.st_ino] = file.st_blocks * _BLOCK_BYTES
    return sum(blocks.values())


def _descriptors(processes: Iterable[psutil.Process]) -> Iterator[str]:
    """Yield the paths in /proc of the files that processes have open."""
    for process in processes:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process.pid}/fd") as descriptors:
            for descriptor in descriptors:
                yield descriptor.path


def has_job_environment(pid: int, job_id: str, attempt: int) -> bool:
    return find_attempt(pid) == (job_id, str(attempt))


def find_running(attempts: Path) -> list[Handle]:
    """Return the handles of the attempts that have processes here, of those with a folder in this one."""
    folders = list_scratch_folders(attempts)
    running = {attempt for pid in psutil.pids() if (attempt := find_attempt(pid)) is not None} if folders else set()
    return [scratch_handle(attempts, *folder) for folder in folders if (folder[0], str(folder[1])) in running]


def find_attempt(pid: int) -> tuple[str, str] | None:
    """Return the job id and attempt number in a process's environment; None: it has none, or it has ended."""
    try:
        env = read_environment(pid, "GRADIENT_")
    except GONE:
        return None
    return (env["GRADIENT_JOB_ID"], env.get("GRADIENT_ATTEMPT", "")) if "GRADIENT_JOB_ID" in env else None


@cache
def boot_id() -> str:
    """Return the kernel's boot ID, which changes with every start of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
