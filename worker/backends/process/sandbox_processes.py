"""The processes of one attempt in a sandbox: all descendants of the sandbox's first process, whatever they become.

Commands that users run in the job are not its descendants; they are found by the process table that they joined.

The pids that a job sees and writes to files are of its own process table and mean nothing on the host.
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import psutil
from cachetools import TTLCache, cached

from core.system.processes import running_processes
from worker.backends.job_processes import GONE, JobProcesses, find_attempt
from worker.backends.process.control_groups import JobGroup
from worker.backends.process.job_sandbox import SHARED_MEMORY
from worker.runner.usage import UsageMeter, measure_usage

_FIRST, _WRAPPER = 1, 2  # pids inside the sandbox: bubblewrap's process that reaps orphans, and the wrapper
_DIRECT_LEVELS = 2
"""Process tables that a sandbox's processes are in: the worker's and their own. A job's own sandboxes are deeper."""
_KILL_ROUNDS = 50
_KILL_PAUSE_SECONDS = 0.01
_SNAPSHOT_SECONDS = 1.0


def find_sandbox(job_id: str, attempt: int) -> int | None:
    """Return the pid of the first process of an attempt's sandbox; None if there is none."""
    return next((pid for pid in psutil.pids() if is_sandbox(pid, job_id, attempt)), None)


def is_sandbox(pid: int, job_id: str, attempt: int) -> bool:
    """Return whether this is the first process of the attempt's sandbox.

    No job can start such a process, because none is in the worker's process table. The attempt is named by the
    environment of its parent, bubblewrap, which the job cannot see. The process itself has the same, but a job with the
    worker's own user can overwrite that; it only counts where bubblewrap has ended.
    """
    inside, parent = _read_status(pid)
    if inside != _FIRST:
        return False
    named = find_attempt(parent) or find_attempt(pid)
    return named == (job_id, str(attempt))


def children_of(parent: int) -> list[int]:
    """Return the pids of the children of a process with one thread: from the kernel, as psutil reads all of /proc."""
    try:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:  # it has ended, or the kernel was built without this file
        with contextlib.suppress(*GONE):
            return [child.pid for child in psutil.Process(parent).children()]
    return []


def kill_sandbox(first: int, job_id: str, attempt: int) -> None:
    """End a sandbox by its first process: the kernel ends all others before that one is gone."""
    for _ in range(_KILL_ROUNDS):
        if not is_sandbox(first, job_id, attempt):
            return
        with contextlib.suppress(psutil.TimeoutExpired, *GONE):
            process = psutil.Process(first)
            process.kill()
            process.wait(_KILL_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class SandboxProcesses(JobProcesses):
    first: int
    group: JobGroup | None = None  # the job's control group, which has all of them; None: it has none

    @classmethod
    def of(cls, job_id: str, attempt: int, first: int, group: JobGroup | None = None) -> "SandboxProcesses":
        """Return the processes of the sandbox with this first process, of which the wrapper is a child."""
        return cls(job_id, attempt, _find_wrapper(first), first, group)

    def all(self) -> Iterator[psutil.Process]:
        """Yield every living process but the sandbox's first; without a group, this reads all of /proc twice."""
        if self.group is not None:
            yield from running_processes(self.group.pids() - self.sandbox_pids())
            return
        if not is_sandbox(self.first, self.job_id, self.attempt):
            return  # it has ended, and another process may have its number by now
        try:
            members = {process.pid: process for process in psutil.Process(self.first).children(recursive=True)}
        except GONE:
            return
        for entered in self._entered(members.keys() | {self.first}):
            with contextlib.suppress(*GONE):
                members |= {process.pid: process for process in (entered, *entered.children(recursive=True))}
        for process in members.values():
            with contextlib.suppress(*GONE):
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def _entered(self, excluded: Collection[int]) -> list[psutil.Process]:
        """Return the processes that joined the sandbox's process table from outside."""
        table = _process_table(self.first)
        entered = []
        for pid in psutil.pids() if table is not None else ():
            if pid not in excluded and _process_table(pid) == table:
                with contextlib.suppress(*GONE):
                    entered.append(psutil.Process(pid))
        return entered

    def usage(self, meter: UsageMeter, limit: int | None = None) -> tuple[float, int, int]:
        """See `JobProcesses.usage`; with the files in the sandbox's /dev/shm, which no process need have mapped."""
        pids = (process.pid for process in self.recent())
        return measure_usage(pids, meter, limit, _shared_memory_bytes(self.first))

    def recent(self) -> Iterator[psutil.Process]:
        """See `JobProcesses.recent`; without a group, a process that is younger than a second may be missing."""
        return self.all() if self.group is not None else running_processes(_members(self.first))

    def sandbox_pids(self) -> set[int]:
        """See `JobProcesses.sandbox_pids`: the sandbox's first process, and bubblewrap, which waits for it outside."""
        try:
            return {self.first, psutil.Process(self.first).ppid()}
        except GONE:
            return {self.first}

    def kill(self, *, spare_leader: bool) -> None:
        """Send SIGKILL until no process is left; with the sandbox's first process the kernel ends all others."""
        if spare_leader:
            JobProcesses.kill(self, spare_leader=True)
            return
        for _ in range(_KILL_ROUNDS):
            first = find_sandbox(self.job_id, self.attempt)
            if first is None:
                return
            kill_sandbox(first, self.job_id, self.attempt)


def _find_wrapper(first: int) -> int | None:
    return next((pid for pid in children_of(first) if _read_status(pid)[0] == _WRAPPER), None)


def _shared_memory_bytes(first: int) -> int:
    """Return the bytes of the files in a sandbox's /dev/shm, a mount that the job can neither move nor cover."""
    try:
        shared = os.statvfs(f"/proc/{first}/root{SHARED_MEMORY}")
    except OSError:  # it has ended
        return 0
    return (shared.f_blocks - shared.f_bfree) * shared.f_frsize


def _members(first: int) -> set[int]:
    """Return the pids of a sandbox's processes except the first: of its process table, and all their descendants."""
    hosts, table = _host_processes(), _process_table(first)
    if table == _process_table(os.getpid()):
        return set()  # of a process that has the number of a sandbox's that ended
    members = (
        {pid for pid, (_, table_of_process) in hosts.items() if table_of_process == table}
        if table is not None
        else set()
    )
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in hosts.items():
        children.setdefault(parent, []).append(pid)
    waiting = list(members)
    while waiting:
        children_found = set(children.get(waiting.pop(), ())) - members
        members |= children_found
        waiting += children_found
    return members - {first}


@cached(TTLCache(1, _SNAPSHOT_SECONDS), lock=Lock())
def _host_processes() -> dict[int, tuple[int, str | None]]:
    """Return parent and process table of all processes of the host, by pid; read once a second for all jobs."""
    hosts = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            hosts[pid] = int(stat.rpartition(b")")[2].split()[1]), _process_table(pid)
    return hosts


def _process_table(pid: int) -> str | None:
    """Return the kernel's name of a process's table (PID namespace); None if it has ended, or is not ours."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _read_status(pid: int) -> tuple[int | None, int]:
    """Return the pid that a process of a sandbox has inside it, None for other processes; and its parent's pid."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None, 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if line.startswith(("PPid:", "NSpid:")))
    pids = fields.get("NSpid", "").split()
    return int(pids[-1]) if len(pids) == _DIRECT_LEVELS else None, int(fields["PPid"])
