"""The order in which SIGTERM reaches the processes of a job.

A program that saves when it gets SIGTERM needs others until it has: the processes that load its data, `tee` at the end
of its pipe. So the signal goes first to the programs that handle it, in each branch of the tree to the outermost. The
shells that wait for these are suspended, to start nothing after them. What is left gets the signal when the programs
have ended, or after three quarters of the grace period.

In containers the wrapper does the same (`worker/wrapper/run.sh`).
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from worker.backends.base import Handle
from worker.backends.job_processes import JobProcesses
from worker.runner.control_files import STOPPING_FILE, read_control

_FIRST_SHARE = 0.75
_DRAIN_SECONDS = 2.0
"""Time for those that read what a program wrote at its end, and for a program that goes on without its children."""
_SIGTERM_BIT = 1 << 14
# Programs that only wait for others. `timeout` and `dumb-init` signal all of these at once.
_WAITING = frozenset({"ash", "bash", "busybox", "dash", "dumb-init", "ksh", "mksh", "sh", "timeout", "zsh"})
_BROADCASTING = frozenset({"dumb-init", "timeout"})


@dataclass(frozen=True, slots=True)
class _Program:
    process: psutil.Process
    parent: int
    handles: bool  # it does something of its own on SIGTERM
    waits: bool

    @classmethod
    def read(cls, process: psutil.Process) -> "_Program | None":
        """Return None if it has ended."""
        folder = Path(f"/proc/{process.pid}")
        try:
            lines = (folder / "status").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return None
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if fields["State"].startswith(("Z", "X")):
            return None
        name = fields["Name"]
        if name not in _BROADCASTING:
            with suppress(OSError):
                name = (folder / "exe").readlink().name
        waits = name in _WAITING
        # A program may wait for signals that it blocks; shells block them for the moment in which they start something.
        handled = int(fields["SigCgt"], 16) | (0 if waits else int(fields["SigBlk"], 16))
        handles = bool(handled & _SIGTERM_BIT) and name not in _BROADCASTING
        return cls(process, int(fields["PPid"]), handles, waits)

    def pipes(self, *descriptors: int) -> set[str]:
        links = set()
        for descriptor in descriptors:
            with suppress(OSError):
                links.add(os.readlink(f"/proc/{self.process.pid}/fd/{descriptor}"))  # noqa: PTH115 - not a path
        return {link for link in links if link.startswith("pipe:")}


class _Tree:
    """The programs of a job at one moment. `leader`: pid of its wrapper, whose shell has the job's own trap."""

    def __init__(self, programs: Iterable[_Program], leader: int | None) -> None:
        self.programs = list(programs)
        self._leader = leader
        self._children: defaultdict[int, list[_Program]] = defaultdict(list)
        for program in self.programs:
            self._children[program.parent].append(program)
        self.holding: list[_Program] = []  # shells that wait for one of the first
        pids = {program.process.pid for program in self.programs}
        roots = [program for program in self.programs if program.parent not in pids]
        self.first = _without_readers([program for root in roots for program in self._outermost(root)])
        self.shells = [program for program in self.programs if self._is_own_shell(program)]

    def _is_own_shell(self, program: _Program) -> bool:
        return program.waits and program.parent == self._leader

    def _outermost(self, program: _Program) -> list[_Program]:
        if program.handles and not program.waits:
            return [program]
        below = [
            program_found for child in self._children[program.process.pid] for program_found in self._outermost(child)
        ]
        if not program.waits or self._is_own_shell(program):
            return below
        if program.handles:  # a shell acts on it when the program that it waits for has ended
            return [program, *(below or self._below(program))]
        if below:
            self.holding.append(program)
        return below

    def _below(self, program: _Program) -> list[_Program]:
        children = self._children[program.process.pid]
        return [*children, *(program for child in children for program in self._below(child))]


def _without_readers(programs: list[_Program]) -> list[_Program]:
    """Leave out those that read what another one writes."""
    outputs = {program.process: program.pipes(1, 2) for program in programs}
    return [
        program
        for program in programs
        if not any(program.pipes(0) & pipes for process, pipes in outputs.items() if process != program.process)
    ] or programs


class Termination:
    """One end of a job, by SIGTERM.

    `resumed`: an earlier worker has signalled those whose turn it was first.
    """

    def __init__(self, grace: float, *, resumed: bool = False) -> None:
        self.resumed = resumed
        self._is_first_sent = resumed
        self._all_at = time.monotonic() + _FIRST_SHARE * grace
        self._signalled: set[psutil.Process] = set()
        self._awaited: set[psutil.Process] = set()
        self._held: set[psutil.Process] = set()  # suspended, and the job's own shell
        self._ended_at: float | None = None
        self._over = False

    def proceed(self, members: JobProcesses) -> None:
        """Signal those whose turn it is; called again and again until the job has ended."""
        if not self._over and not self._must_wait(members):
            members.terminate(spare_leader=True, choose=lambda processes: self._choose(processes, members.leader))

    def _must_wait(self, members: JobProcesses) -> bool:
        now = time.monotonic()
        if not self._awaited or now >= self._all_at:
            return False
        if any(map(_is_alive, self._awaited)):
            return True
        if self._ended_at is None:
            self._ended_at = now
        spared = {members.leader, *(process.pid for process in self._held)}
        return now < self._ended_at + _DRAIN_SECONDS and any(process.pid not in spared for process in members.all())

    def _choose(
        self, processes: list[psutil.Process], leader: int | None
    ) -> tuple[list[psutil.Process], set[psutil.Process]]:
        """Return which of these processes are to be signalled now, in their order, and which stay suspended."""
        tree = _Tree(filter(None, map(_Program.read, processes)), leader)
        first = {program.process for program in tree.first} - self._signalled
        self._ended_at, shells = None, {program.process for program in tree.shells}
        is_sent, self._is_first_sent = self._is_first_sent, False
        if not first or time.monotonic() >= self._all_at:
            self._over = True
            return [process for process in processes if process not in self._signalled and not is_sent], set()
        held = {program.process for program in tree.holding}
        # When the wrapper ends, the kernel sends SIGHUP to what is below it and suspended.
        held, shells = (held | shells, set()) if held else (held, shells)
        sent = set() if is_sent else first | (shells - self._signalled)
        self._awaited, self._held = first, held | shells
        self._signalled |= first | shells
        return [process for process in processes if process in sent], held


class Terminations:
    """Those of the jobs of one backend."""

    def __init__(self) -> None:
        self._by_name: dict[str, Termination | None] = {}

    def begin(self, handle: Handle, members: JobProcesses) -> None:
        name, termination = handle["name"], self._by_name.get(handle["name"])
        if termination is None or termination.resumed:
            self._by_name[name] = termination = Termination(handle.get("stop_grace", 0.0))
            termination.proceed(members)

    def proceed(self, handle: Handle, find: Callable[[Handle], JobProcesses]) -> None:
        """Go on with the end of a job, which perhaps an earlier worker began. `find`: returns its processes."""
        name, control = handle["name"], Path(handle["control"])
        if name not in self._by_name:
            ending = any(read_control(control, file) is not None for file in (STOPPING_FILE, "preempted"))
            self._by_name[name] = Termination(handle.get("stop_grace", 0.0), resumed=True) if ending else None
        if (termination := self._by_name[name]) is not None:
            termination.proceed(find(handle))

    def forget(self, name: str) -> None:
        self._by_name.pop(name, None)


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
