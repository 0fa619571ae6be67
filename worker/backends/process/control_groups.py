"""Control groups of jobs that are processes of this host: hard limits, usage, and an end that no process escapes.

Version 2 is used if it has the memory and CPU controllers, else version 1. The number of processes is limited if there
is a controller for it. A group is a folder in each hierarchy. A job without a sandbox is the worker's own user, and
could leave its group if it means to.
"""

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_UNIFIED = 2  # the version whose controllers share one hierarchy
_PREFIX = "gradient-"
_PROCESSES, _THREADS = "cgroup.procs", "tasks"
_KILL = "cgroup.kill"
_CONTROLLERS = ("cpu", "memory")
_PIDS = "pids"  # the controller of the number of processes, which may be missing
_PROBED_PROCESSES = 64
_PERIOD_MICROSECONDS = 100_000
_LEAST_QUOTA_MICROSECONDS = 1_000  # the kernel accepts no less
_KEPT_GROUPS = 1024
_EMPTY_SECONDS = 5.0
_EMPTY_PAUSES_SECONDS = (0.0005, 0.01)
"""The first and the longest. The kernel takes the last process out just after its end was reported."""
_DELEGATED = "user.delegate"  # attribute that systemd sets on groups whose content it leaves to a service


class NoControlGroups(Exception):
    """The worker cannot limit jobs by control groups; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Mount:
    folder: Path
    top: Path
    controllers: frozenset[str]  # those of version 1; empty for version 2


@dataclass(frozen=True, slots=True)
class JobGroup:
    version: int  # 1 or 2
    memory: Path
    cpu: Path
    usage: Path
    kill: Path | None  # folder whose `cgroup.kill` ends all processes; None: there is none
    processes: Path | None = None  # None: their number is not limited

    @property
    def folders(self) -> list[Path]:
        paths = self.memory, self.cpu, self.usage, self.processes, self.kill
        return list(dict.fromkeys(path for path in paths if path))

    @property
    def joined_at_once(self) -> bool:
        """True if `join_files` let a process join without a wait for other CPUs."""
        return self.version != _UNIFIED and self.kill is None

    @property
    def join_files(self) -> list[str]:
        """The files to which a process of one thread writes 0 to join.

        In version 1 it moves only this thread. A whole process is moved after a grace period of RCU, about 10 ms.
        """
        unified = {self.kill} if self.version != _UNIFIED else set(self.folders)
        return [str(folder / (_PROCESSES if folder in unified else _THREADS)) for folder in self.folders]

    @classmethod
    def from_handle(cls, stored: dict[str, Any], attempt: str, proc: Path = Path("/proc/self")) -> "JobGroup | None":
        """Return a stored group; None if it is not the attempt's, or not the kernel's: others may write the row."""
        return _stored_group(tuple(stored.items()), attempt, proc)

    def to_handle(self) -> dict[str, Any]:
        """Return the group as JSON values: a later worker may be in another group itself."""
        return {"version": self.version} | {name: path and str(path) for name, path in self._by_name().items()}

    def _by_name(self) -> dict[str, Path | None]:
        return {field.name: getattr(self, field.name) for field in fields(self)[1:]}

    def exists(self) -> bool:
        return os.path.isdir(self.memory)  # noqa: PTH112 - a third of the time, at every look at a job

    def create(self, memory_bytes: int | None, cpus: float | None, processes: int) -> None:
        """Create the group, or set its limits again; `processes`: most processes and threads."""
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        if memory_bytes is not None and self.version == _UNIFIED:
            _write(self.memory / "memory.max", memory_bytes)
            _write_if_there(self.memory / "memory.swap.max", 0)
        elif memory_bytes is not None:
            _write(self.memory / "memory.limit_in_bytes", memory_bytes)
            _write_if_there(self.memory / "memory.memsw.limit_in_bytes", memory_bytes)
        if self.processes is not None:
            _write(self.processes / "pids.max", processes)
        if cpus is not None:
            quota = max(_LEAST_QUOTA_MICROSECONDS, round(cpus * _PERIOD_MICROSECONDS))
            if self.version == _UNIFIED:
                _write(self.cpu / "cpu.max", f"{quota} {_PERIOD_MICROSECONDS}")
            else:
                _write(self.cpu / "cpu.cfs_period_us", _PERIOD_MICROSECONDS)
                _write(self.cpu / "cpu.cfs_quota_us", quota)

    def move(self, pid: int) -> None:
        """Move a process into the group; one that has ended is ignored.

        Raises `OSError`: the kernel refused, or the group was removed.
        """
        for folder in self.folders:
            with suppress(ProcessLookupError):
                _write(folder / _PROCESSES, pid)

    def out_of_memory(self) -> bool:
        """Return whether the kernel has killed one of its processes for the memory limit."""
        file = "memory.events" if self.version == _UNIFIED else "memory.oom_control"
        return _read_table(self.memory / file).get("oom_kill", 0) > 0

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that its processes have used, ended ones included."""
        if self.version == _UNIFIED:
            return _read_table(self.usage / "cpu.stat").get("usage_usec", 0) / 1e6
        return _read_number(self.usage / "cpuacct.usage") / 1e9

    def memory_bytes(self) -> int:
        """Return the memory in use, without the cache of files, which the kernel drops before it refuses memory."""
        current, prefix = ("memory.current", "") if self.version == _UNIFIED else ("memory.usage_in_bytes", "total_")
        counters = _read_table(self.memory / "memory.stat")
        cache = sum(counters.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
        return max(0, _read_number(self.memory / current) - cache)

    def pids(self) -> set[int]:
        try:
            return set(map(int, (self.memory / _PROCESSES).read_text().split()))
        except OSError:  # removed meanwhile
            return set()

    def kill_all(self) -> None:
        """Kill its processes at once, where the kernel can."""
        if self.kill is not None:
            with suppress(OSError):
                _write(self.kill / _KILL, 1)

    def remove(self) -> None:
        deadline = time.monotonic() + _EMPTY_SECONDS
        pause, longest = _EMPTY_PAUSES_SECONDS
        while left := [folder for folder in self.folders if not _removed(folder)]:
            if time.monotonic() > deadline:
                logger.warning("control_group_not_removed", extra={"folder": str(left[0])})
                return
            time.sleep(pause)
            pause = min(2 * pause, longest)


@lru_cache(_KEPT_GROUPS)
def _stored_group(stored: tuple[tuple[str, Any], ...], attempt: str, proc: Path) -> JobGroup | None:
    """See `JobGroup.from_handle`; the groups of running jobs are asked for all the time."""
    paths = {name: None if path is None else Path(path) for name, path in stored if name != "version"}
    group = JobGroup(version=dict(stored)["version"], **paths)  # type: ignore[arg-type] # only the last two may be None
    return group if all(_is_control_group(folder, attempt, proc) for folder in group.folders) else None


class ControlGroups(JobGroup):
    """The place of jobs' control groups on this host: the folders below which theirs are."""

    __slots__ = ()

    def of_sandboxes(self) -> "ControlGroups":
        """Return those of jobs in a sandbox, which ends with its first process: version 1 needs no other for the end.

        Without it, such a job joins its groups at once; see `JobGroup.joined_at_once`.
        """
        return self if self.version == _UNIFIED else replace(self, kill=None)

    def group(self, attempt: str) -> JobGroup:
        """Return the group of an attempt by its name; it may not exist."""
        folders = {name: folder and folder / f"{_PREFIX}{attempt}" for name, folder in self._by_name().items()}
        return JobGroup(self.version, **folders)  # type: ignore[arg-type] # only the last two may be None


@cache
def control_group_support(settings_mode: str) -> tuple[ControlGroups | None, str | None]:
    """Return the place of jobs' control groups, or the reason that there is none.

    `settings_mode`: the setting `process.cgroups`.
    """
    if settings_mode == "off":
        return None, "GRADIENT_PROCESS__CGROUPS=off"
    try:
        return find_control_groups(), None
    except NoControlGroups as error:
        return None, str(error)


def find_control_groups(proc: Path = Path("/proc/self")) -> ControlGroups:
    """Find the place where the worker may create groups with the memory and CPU controllers, by creating one."""
    mounts = list(_read_mounts(proc))
    two = next((mount for mount in mounts if not mount.controllers), None)
    try:
        controllers = (two.top / "cgroup.controllers").read_text().split() if two is not None else []
        if two is not None and set(_CONTROLLERS) <= set(controllers):
            base = _delegated_folder(two)
            limited = _PIDS in (base / "cgroup.controllers").read_text().split()
            groups = ControlGroups(_UNIFIED, base, base, base, base, base if limited else None)
        else:
            groups = _find_version_1(mounts, two)
        probe = groups.group(f"probe-{secrets.token_hex(4)}")
        try:
            probe.create(1 << 30, 1.0, _PROBED_PROCESSES)
        finally:
            for folder in probe.folders:
                _removed(folder)
    except OSError as error:
        raise NoControlGroups(f"{error.filename}: {error.strerror}") from error
    return groups


def _find_version_1(mounts: list[_Mount], two: _Mount | None) -> ControlGroups:
    by_controller = {name: mount.folder for mount in mounts for name in mount.controllers}
    missing = [name for name in ("memory", "cpu", "cpuacct") if name not in by_controller]
    if missing:
        raise NoControlGroups(f"no control groups with the controller {missing[0]} are mounted")
    # Version 2 without controllers may be there, too; all groups in it can be killed.
    kill = two.folder if two is not None and os.access(two.folder, os.W_OK) else None
    memory, cpu, usage = (by_controller[name] for name in ("memory", "cpu", "cpuacct"))
    return ControlGroups(1, memory, cpu, usage, kill, by_controller.get(_PIDS))


def _delegated_folder(mount: _Mount) -> Path:
    """Return the folder below which the worker may create groups of version 2.

    A group with processes of its own cannot limit others below it. So it is the group above the worker's, if systemd
    left that to the service (Delegate=yes, DelegateSubgroup=), or the top of the whole hierarchy.
    """
    group = mount.folder
    if group != mount.top:
        if not _is_delegated(group.parent):
            raise NoControlGroups(
                f"{group.parent} is not delegated to this service "
                "(systemd 254 or later: Delegate=yes, DelegateSubgroup=)"
            )
        group = group.parent
    wanted = {*_CONTROLLERS, *({_PIDS} & set((group / "cgroup.controllers").read_text().split()))}
    missing = wanted - set((group / "cgroup.subtree_control").read_text().split())
    if missing:
        _write(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))
    return group


def _is_delegated(folder: Path) -> bool:
    try:
        return os.getxattr(folder, _DELEGATED) == b"1"
    except OSError:
        return False


def _read_mounts(proc: Path) -> Iterator[_Mount]:
    """Yield the mounted hierarchies of control groups that have this process's own group."""
    try:
        memberships = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = [line.split(" ") for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError as error:
        raise NoControlGroups(f"{error.filename}: {error.strerror}") from error
    paths = {name: path for _, names, path in memberships for name in names.split(",")}
    for columns in mounts:
        dash = columns.index("-")
        kind, options = columns[dash + 1], set(columns[dash + 3].split(","))
        names = frozenset(options & paths.keys()) if kind == "cgroup" else frozenset[str]()
        if kind not in {"cgroup", "cgroup2"} or (kind == "cgroup" and not names):
            continue
        path = paths.get(next(iter(names), ""), "/")
        within = os.path.relpath(path, columns[3])
        if not within.startswith(".."):
            yield _Mount(Path(os.path.normpath(Path(columns[4], within))), Path(columns[4]), names)


def _is_control_group(folder: Path, attempt: str, proc: Path) -> bool:
    """Return whether a path is the attempt's control group's, in a hierarchy that is mounted here."""
    is_beneath = str(folder).startswith(_mounted_hierarchies(proc))
    return folder.name == f"{_PREFIX}{attempt}" and is_beneath and ".." not in folder.parts


@cache
def _mounted_hierarchies(proc: Path) -> tuple[str, ...]:
    return tuple({f"{mount.top}/" for mount in _read_mounts(proc)})


def _removed(folder: Path) -> bool:
    """Remove a group's folder; return whether it is gone, which it is not while it has processes."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(file: Path, value: object) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)  # without O_CREAT: a missing file is a missing feature
    try:
        os.write(descriptor, f"{value}".encode())
    except OSError as error:
        error.filename = str(file)
        raise
    finally:
        os.close(descriptor)


def _write_if_there(file: Path, value: object) -> None:
    with suppress(FileNotFoundError):  # without swap accounting
        _write(file, value)


def _read_number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # removed meanwhile
        return 0


def _read_table(file: Path) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
    except (OSError, ValueError):
        return {}
