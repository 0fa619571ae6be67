"""The order in which the signal of a stop reaches the processes of a job.

A program that saves when it gets the signal needs others until it has: the processes that load its data, `tee` at the
end of its pipe. So the signal goes first to the programs that handle it, in each branch of the tree to the outermost.
The shells that wait for these are suspended, to start nothing after them. What is left gets the signal when the
programs have ended, or after three quarters of the grace period.

A warning goes to these programs alone. In containers the wrapper does the same (`worker/wrapper/run.sh`).
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from worker.backends.base import Handle
from worker.backends.job_processes import GONE, JobProcesses
from worker.runner.control_files import STOPPING_FILE, WARNED_FILE, read_control, write_control_file

_FIRST_SHARE = 0.75
_EXEC_SECONDS = 0.1  # in which what a shell starts becomes a program: until then it has the shell's traps
_DRAIN_SECONDS = 2.0
"""Time for those that read what a program wrote at its end, and for a program that goes on without its children."""
# Programs that only wait for others. `timeout` and `dumb-init` signal all of these at once.
_WAITING = frozenset({"ash", "bash", "busybox", "dash", "dumb-init", "ksh", "mksh", "sh", "timeout", "zsh"})
_BROADCASTING = frozenset({"dumb-init", "timeout"})


@dataclass(frozen=True, slots=True)
class _Program:
    process: psutil.Process
    parent: int
    handles: bool  # it does something of its own on the signal
    catches: bool  # it does, or it is bash, which catches SIGINT while it waits for a program
    waits: bool

    @classmethod
    def read(cls, process: psutil.Process, number: int) -> "_Program | None":
        """Return None if it has ended. `number`: of the signal."""
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
        catches = bool(handled >> (number - 1) & 1) and name not in _BROADCASTING
        # Of bash, a trap of its own for SIGINT is known by that for SIGTERM.
        handles = catches and (name != "bash" or number != signal.SIGINT or bool(handled >> (signal.SIGTERM - 1) & 1))
        return cls(process, int(fields["PPid"]), handles, catches, waits)

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
        elif program.catches:
            return [program, *self._below(program)]
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


def warn(members: JobProcesses, control: Path, number: int, stop_signal: int) -> None:
    """Send a warning to the programs that handle it, in each branch to the outermost, and record it if there are any.

    The command's own shell has a trap of the wrapper's for the signal of a stop.
    """
    own_shell = number not in {signal.SIGTERM, stop_signal}
    processes = _handling(members, number, own_shell=own_shell)
    time.sleep(_EXEC_SECONDS)
    for process in processes & _handling(members, number, own_shell=own_shell):
        with suppress(*GONE):
            process.send_signal(number)
            write_control_file(control, WARNED_FILE, f"to {process.pid}")


def _handling(members: JobProcesses, number: int, *, own_shell: bool) -> set[psutil.Process]:
    programs = filter(None, (_Program.read(process, number) for process in members.all()))
    tree = _Tree((program for program in programs if program.process.pid != members.leader), members.leader)
    return {program.process for program in [*tree.first, *(tree.shells if own_shell else [])] if program.handles}


class Termination:
    """One end of a job. `number`: of the signal.

    `resumed`: an earlier worker has signalled those whose turn it was first.
    """

    def __init__(self, grace: float, number: int = signal.SIGTERM, *, resumed: bool = False) -> None:
        self.resumed, self._number = resumed, number
        self._is_first_sent = resumed
        self._all_at = time.monotonic() + _FIRST_SHARE * grace
        self._signalled: set[psutil.Process] = set()
        self._awaited: set[psutil.Process] = set()
        self._held: set[psutil.Process] = set()  # suspended, and the job's own shell
        self._waited: set[psutil.Process] = set()  # shells that were held
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
    ) -> tuple[dict[psutil.Process, int], set[psutil.Process]]:
        """Return which of these processes are to be signalled now, in their order, and which stay suspended."""
        tree = _Tree(filter(None, (_Program.read(process, self._number) for process in processes)), leader)
        # After a SIGINT that its program has survived, bash goes on with the next command.
        numbers: dict[psutil.Process, int] = {
            program.process: signal.SIGTERM if program.process in self._waited else self._number
            for program in tree.programs
        }
        first = {program.process for program in tree.first} - self._signalled
        self._ended_at, shells = None, {program.process for program in tree.shells}
        is_sent, self._is_first_sent = self._is_first_sent, False
        if not first or time.monotonic() >= self._all_at:
            self._over = True
            left = [process for process in numbers if process not in self._signalled and not is_sent]
            return {process: numbers[process] for process in left}, set()
        held = {program.process for program in tree.holding}
        self._waited |= held
        # When the wrapper ends, the kernel sends SIGHUP to what is below it and suspended.
        held, shells = (held | shells, set()) if held else (held, shells)
        sent = set() if is_sent else first | (shells - self._signalled)
        self._awaited, self._held = first, held | shells
        self._signalled |= first | shells
        return {process: number for process, number in numbers.items() if process in sent}, held


class Terminations:
    """Those of the jobs of one backend."""

    def __init__(self) -> None:
        self._by_name: dict[str, Termination | None] = {}

    def begin(self, handle: Handle, members: JobProcesses) -> None:
        name, termination = handle["name"], self._by_name.get(handle["name"])
        if termination is None or termination.resumed:
            self._by_name[name] = termination = Termination(*_settings(handle))
            termination.proceed(members)

    def proceed(self, handle: Handle, find: Callable[[Handle], JobProcesses]) -> None:
        """Go on with the end of a job, which perhaps an earlier worker began. `find`: returns its processes."""
        name, control = handle["name"], Path(handle["control"])
        if name not in self._by_name:
            ending = any(read_control(control, file) is not None for file in (STOPPING_FILE, "preempted"))
            self._by_name[name] = Termination(*_settings(handle), resumed=True) if ending else None
        if (termination := self._by_name[name]) is not None:
            termination.proceed(find(handle))

    def forget(self, name: str) -> None:
        self._by_name.pop(name, None)


def _settings(handle: Handle) -> tuple[float, int]:
    return handle.get("stop_grace", 0.0), handle.get("stop_signal", signal.SIGTERM)


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
