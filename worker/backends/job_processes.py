"""The processes of one attempt on this host, including double forks and new sessions.

They are identified by the environment that every descendant inherits, or by the session that the wrapper leads.
"""

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import psutil

from core.system.failpoints import failpoint
from core.system.processes import read_environment, running_processes, sort_by_age
from worker.attempt.scratch import list_scratch_folders
from worker.backends.base import STORAGE, Handle, scratch_handle
from worker.runner.usage import UsageMeter, measure_usage

GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, ProcessLookupError, PermissionError)
"""Errors of psutil and the kernel about a process that has ended, or that is not ours."""
_ROUNDS = 50
_MAX_DESCRIPTORS = 50_000  # most open files of a job that one measurement looks at
_BLOCK_BYTES = 512  # unit of `st_blocks`

Choose = Callable[[list[psutil.Process]], tuple[dict[psutil.Process, int], set[psutil.Process]]]
"""Returns which of a job's processes are signalled, in their order, each with its signal, and which stay suspended."""


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

        `choose`: chooses among them, and their signals.
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
            chosen: dict[psutil.Process, int] = dict.fromkeys(suspended, signal.SIGTERM)
            if choose is not None:
                chosen, held = choose(suspended)
            return sum(_signal_each([process], number) for process, number in chosen.items())
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

    def usage(self, meter: UsageMeter, limit: int | None = None) -> tuple[float, int, int]:
        """Return the CPU seconds used so far, the memory in use now in bytes, and the number of processes.

        A control group tells the same in a few reads. `limit`: see `UsageMeter.measure`.
        """
        return measure_usage((process.pid for process in self.recent()), meter, limit)

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


def _signal_each(processes: Iterable[psutil.Process], number: int) -> int:
    """Send a signal to these processes; return how many of them were still there."""
    count = 0
    for process in processes:
        with contextlib.suppress(*GONE):
            process.send_signal(number)
            count += 1
    return count


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
