"""The environment of a job that runs as a process of this host: a bubblewrap sandbox with the paths of a container.

The job sees its folders at the paths of `base.py`, the system's programs read-only, a private /tmp, /var/tmp, /dev/shm
and home folder, its own processes and, if possible, its own network. It has no capabilities, and some system calls are
refused (`system_calls.py`); a worker that is root runs it as its project's user. The sandbox outlives the worker.
"""

import logging
import os
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from core.settings import Settings
from core.system.bubblewrap_command import PATH, begin_command, bind_system, mount_system, run_check
from core.system.untrusted_folders import opened_folder
from core.system.uv_program import uv_program
from worker.backends import base
from worker.backends.base import WRAPPER, JobPython, LaunchSpec
from worker.backends.docker.container.users import ContainerUser, chown_folders, project_user
from worker.runner.control_files import may_have_launched
from worker.sandbox import system_calls

logger = logging.getLogger(__name__)

HOME = "/home/gradient"  # the job's home folder

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount point
"""The job's own files in memory."""

READY = b"gradient: ready\n"
"""Printed to the worker, at the end of bubblewrap's own output, by the shell that then waits for permission."""

EXIT_REFUSED = 97
"""Exit code of a wrapper that found the attempt already started, or its control folder deleted, and of a sandbox whose
worker has ended."""

_NO_CORES = "ulimit -c 0"
_FILTER = "--seccomp"
WRAPPER_INSIDE = "/.gradient/run.sh"
_USER_NAME = "gradient"
_ACCOUNTS, _PROFILE, _RESOLVERS = "/etc/passwd", "/etc/profile", "/etc/resolv.conf"
_KEEP_PATH = b"gradient_path=$PATH\n%b\nPATH=${gradient_path:-$PATH}\nunset gradient_path\n"
"""A profile, before and after which PATH is the same: login shells find the job's Python."""
PRIVATE_FOLDERS = "home", "tmp", "var-tmp"
_PRIVATE = HOME, "/tmp", "/var/tmp"  # noqa: S108 - mount points
"""Their paths inside."""
_OF_PROJECT = base.WORKSPACE, base.ARTIFACTS, base.STORAGE, "/.gradient"
"""Folders that are kept, or ours: no path of the host can be shown below, which would leave a folder there."""
# They are empty unless the host shows something in them.
_EXPECTED = [word for path in ("/opt", "/run", "/srv", "/var") for word in ("--perms", "0755", "--dir", path)]
"""Words that make the folders that programs expect."""
# Not all of /etc, which may have passwords that the worker's user may read, such as the service's settings.
_CONFIGURATION = tuple(
    f"/etc/{name}"
    for name in (
        *("OpenCL", "bash.bashrc", "debian_version", "fonts", "gai.conf", "group", "host.conf", "hosts", "inputrc"),
        *("java", "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs", "lsb-release", "magic", "mime.types"),
        *("nsswitch.conf", "os-release", "passwd", "perl", "pip.conf", "profile", "protocols", "python3"),
        *("redhat-release", "resolv.conf", "rpc", "services", "shells", "terminfo", "timezone", "vulkan"),
    )
)
_HARDWARE = "/sys/devices/system"
_PROC_FILES = ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version")
"""Files of /proc about the machine, for a sandbox that cannot have a /proc of its own."""
_PROC_CONTROLS = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""Parts of /proc that change the machine, for a user that the kernel takes for root."""
_UNCOVERED_CONTROLS = ("fs",)  # those of them that bubblewrap does not cover itself when it is root


@dataclass(frozen=True, slots=True)
class SandboxSupport:
    problem: str | None  # reason that there are none; None if there are
    limitation: str | None = None  # something that they lack here, or None


def sandbox_support() -> SandboxSupport:
    """Try a sandbox; without a /proc of its own if the kernel refuses one, as it does in most containers."""
    return _try_sandbox(base.FIRST_UID if os.geteuid() == 0 else -1)


def reason_without_sandbox(settings: Settings) -> str | None:
    """Return the reason that jobs run without a sandbox on this host; None if they run in one."""
    return "GRADIENT_PROCESS__SANDBOX=off" if settings.process.sandbox == "off" else sandbox_support().problem


def unshowable_path(settings: Settings) -> str | None:
    """Return the reason that jobs in a sandbox cannot see what they have to of this host; None if they can."""
    readable = [("GRADIENT_PROCESS__READABLE", path) for path in settings.process.readable]
    installed = [("This installation", Path(path)) for path in (sys.prefix, sys.base_prefix)]
    for name, path in [("GRADIENT_HOME", settings.root), *installed, *readable]:
        for mounted in map(Path, (*_OF_PROJECT, *_PRIVATE, SHARED_MEMORY)):
            if path.is_relative_to(mounted) and (
                str(mounted) in _OF_PROJECT or (path == mounted and (name, path) in readable)
            ):
                return f"{name} names {path}, but sandboxed jobs have a private folder at {mounted}: choose another"
            if mounted.is_relative_to(path) and (name, path) in readable and not mounted.is_dir():
                return (
                    f"{name} names {path}, but {mounted}, a folder of jobs, does not exist below it on this host: name "
                    "subfolders instead"
                )
    return None


@cache
def _try_sandbox(uid: int) -> SandboxSupport:
    command = [*begin_command(), *bind_system(), "--dev", "/dev", "--seccomp", "0"]
    program = ["--", *_shell(uid), "-c", f"{_NO_CORES} && exec true"]
    try:
        system_call_filter = system_calls.make_filter()
    except system_calls.NoFilter as error:
        return SandboxSupport(str(error))
    problem = run_check([*command, *_own_proc(uid), *program], system_call_filter)
    if problem is None:
        return SandboxSupport(None)
    if run_check([*command, *_machine_files(), *program], system_call_filter) is None:
        return SandboxSupport(None, f"jobs cannot have a /proc that shows only their processes ({problem})")
    return SandboxSupport(problem)


def readable_paths(settings: Settings, python: JobPython | None) -> list[str]:
    """Return what a sandboxed job sees of this host read-only, at the same paths, besides /usr and the like."""
    certificates = os.environ.get("SSL_CERT_FILE")
    return [
        *_CONFIGURATION,
        _HARDWARE,
        *([certificates] if certificates else []),
        *([str(settings.gcs.ca)] if settings.gcs.ca else []),  # of a simulated Cloud Storage, for `gs://`
        *map(str, settings.process.readable),
        *([str(python.interpreter.parent.parent), str(python.shared), uv_program()] if python else []),
    ]


@contextmanager
def open_copied(uid: int, resolvers: Sequence[str] = ()) -> Iterator[dict[str, int]]:
    """Open the files that bubblewrap copies, because a mount of each takes ten times as long, and the filter.

    They are the wrapper, the files of /etc that everybody may read, the profile of which leaves PATH as it is, and, for
    a job with a user of its own, the host's accounts with this user: shells and programs ask for its name. `uid`: the
    job's user; -1: the worker's own. Yields descriptors by path in the sandbox, that of the filter by its option.
    """
    descriptors: dict[str, int] = {}
    try:
        for path in _CONFIGURATION:
            with suppress(OSError):
                descriptors[path] = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                mode = os.fstat(descriptors[path]).st_mode
                if not (stat.S_ISREG(mode) and mode & stat.S_IROTH):
                    os.close(descriptors.pop(path))
        for path, text in _changed_files(descriptors, uid, resolvers).items():
            replaced, descriptors[path] = descriptors.get(path), _in_memory(text)
            if replaced is not None:
                os.close(replaced)
        descriptors[WRAPPER_INSIDE] = os.open(WRAPPER, os.O_RDONLY | os.O_CLOEXEC)
        descriptors[_FILTER] = _in_memory(system_calls.make_filter())
        yield {**descriptors}  # the caller may add its own
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _changed_files(descriptors: Mapping[str, int], uid: int, resolvers: Sequence[str]) -> dict[str, bytes]:
    """Return the text of the files of /etc that a job sees otherwise than this host."""
    changed = {_PROFILE: _KEEP_PATH % _text(descriptors[_PROFILE])} if _PROFILE in descriptors else {}
    if uid >= 0:
        host_accounts = _text(descriptors[_ACCOUNTS]) if _ACCOUNTS in descriptors else b""
        account = f"{_USER_NAME}:x:{uid}:{uid}::{HOME}:/bin/bash\n".encode()
        changed[_ACCOUNTS] = account + host_accounts
    if resolvers:
        lines = _text(descriptors[_RESOLVERS]).splitlines() if _RESOLVERS in descriptors else []
        lines = [line for line in lines if not line.startswith(b"nameserver")]
        lines += [f"nameserver {server}".encode() for server in resolvers]
        changed[_RESOLVERS] = b"\n".join([*lines, b""])
    return changed


def _text(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _in_memory(text: bytes) -> int:
    descriptor = os.memfd_create("copied")
    os.pwrite(descriptor, text, 0)  # it is read from its beginning
    return descriptor


@contextmanager
def in_memory(text: bytes) -> Iterator[int]:
    """Yield the descriptor of a file in memory with this text, to be read from its beginning."""
    descriptor = _in_memory(text)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class JobSandbox:
    settings: Settings

    def prepare(self, spec: LaunchSpec) -> int:
        """Create the job's private folders, and give all of its folders to its user; return the user's id, -1: ours.

        After an earlier launch they stay as they are.
        """
        private = _private_folders(spec)
        for folder in private:
            folder.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() != 0:
            return -1
        ids = project_user(spec.project_id)
        if not may_have_launched(spec.control):
            chown_folders(spec, ContainerUser(*ids, ids))
            for folder in private:  # which are empty
                with opened_folder(folder) as opened:
                    os.fchown(opened, *ids)
        return ids[0]

    def command(self, spec: LaunchSpec, uid: int, copied: Mapping[str, int], network: Sequence[str] = ()) -> list[str]:
        """Return the command, whose standard input has to be the `script`.

        Args:
            uid: The user that `prepare` returned.
            copied: The files of `open_copied`, which the command inherits.
            network: Words of bubblewrap that make a network.
        """
        return sandbox_command(
            self.settings,
            uid,
            copied,
            network,
            readable=readable_paths(self.settings, spec.python),
            folders=self.folders(spec),
            also=("--ro-bind", str(spec.datasets), base.DATASETS),
            shared_memory_bytes=self.shared_memory_bytes(spec),
        )

    def folders(self, spec: LaunchSpec) -> list[tuple[Path, str]]:
        """Return what the job may write to, each with its path inside."""
        return [
            *zip(_private_folders(spec), _PRIVATE, strict=True),
            (spec.workspace, base.WORKSPACE),
            (spec.artifacts, base.ARTIFACTS),
            (spec.storage, base.STORAGE),
            (spec.control, base.CONTROL),
            *([(spec.python.folder, str(spec.python.folder))] if spec.python else []),
        ]

    def shared_memory_bytes(self, spec: LaunchSpec) -> int:
        """Return the size of /dev/shm: what the job asks for, else all of its memory, else as in a container."""
        return spec.shared_mem_bytes or spec.memory_bytes or base.DEFAULT_SHM_BYTES

    def script(self, inherited: Mapping[str, str], spec: LaunchSpec) -> bytes:
        """Return the commands of the shell in the sandbox: set the job's variables, and become the wrapper.

        The shell has given root up: LD_PRELOAD reaches no program that has root's rights. Nothing is an argument, which
        everybody could see.
        """
        lines = [_NO_CORES, f"cd {shlex.quote(spec.working_dir or base.WORKSPACE)} || exit", "unset OLDPWD"]
        # With `command`, a shell that reserves a name, as bash does UID, goes on.
        lines += [f"command export {n}={shlex.quote(value)}" for n, value in self.environment(inherited, spec).items()]
        # A worker that waits no longer must not end the shell by SIGPIPE.
        lines.append(f"trap '' PIPE; printf '%s\\n' '{READY.decode().rstrip()}' >&2; trap - PIPE")
        lines.append(f"read -r _ <&2 || exit {EXIT_REFUSED}")
        # bubblewrap's own errors go to the worker, the wrapper's to nobody.
        lines.append(f"exec {WRAPPER_INSIDE} {base.CONTROL} '' {spec.stop_signal} </dev/null 2>/dev/null\n")
        return os.fsencode("\n".join(lines))

    def environment(self, inherited: Mapping[str, str], spec: LaunchSpec) -> dict[str, str]:
        own_python = [spec.python.folder] if spec.python else []
        paths = *readable_paths(self.settings, spec.python), "/usr", "/bin", "/sbin", *own_python
        visible = tuple(f"{path}/" for path in paths)
        folders = inherited.get("PATH", PATH).split(os.pathsep)
        programs = [folder for folder in folders if f"{folder}/".startswith(visible)]
        variables = {"PATH": os.pathsep.join(programs), "HOME": HOME, "LOGNAME": _USER_NAME, "USER": _USER_NAME}
        return {name: value for name, value in inherited.items() if name != "TMPDIR"} | variables | spec.env


def sandbox_command(  # noqa: PLR0913 - the parts of one
    settings: Settings,
    uid: int,  # the user that the shell becomes; -1: it stays the worker's
    copied: Mapping[str, int],  # the files of `open_copied`, which the command inherits
    network: Sequence[str] = (),  # words of bubblewrap that make a network
    *,
    readable: Sequence[str],  # what is seen of this host read-only, at the same paths
    folders: Sequence[tuple[Path, str]],
    also: Sequence[str] = (),
    shared_memory_bytes: int,
) -> list[str]:
    memory = "--size", str(shared_memory_bytes), "--perms", "1777", "--tmpfs", SHARED_MEMORY
    job_mounts = {"/dev": ("--dev", "/dev"), SHARED_MEMORY: memory}
    job_mounts |= {target: _bind(source, target) for source, target in folders if target in _PRIVATE}
    root = os.path.realpath(settings.root)
    # This installation, and what is readable, may lie below what is the job's own.
    mounts = mount_system(tuple(path for path in readable if path not in copied), (*job_mounts,), root)
    hidden = [root] if root not in job_mounts and mounts[root] else []
    command = [*begin_command(), *network, *_EXPECTED, *chain.from_iterable((mounts | job_mounts).values())]
    for path, descriptor in copied.items():
        mode = "0755" if path == WRAPPER_INSIDE else "0644"
        command += [path, str(descriptor)] if path == _FILTER else ["--perms", mode, "--file", str(descriptor), path]
    command += [*(_machine_files() if sandbox_support().limitation else _own_proc(uid))]
    command += chain.from_iterable(_bind(*pair) for pair in folders if pair[1] not in job_mounts)
    command += also
    # Each is in memory, without a limit: nothing may be written to it.
    for mount in ("/dev", *hidden, "/"):
        command += ["--remount-ro", mount]
    return [*command, "--", *_shell(uid)]


def _bind(source: Path, target: str) -> tuple[str, ...]:
    parents = (target[:end] for end, letter in enumerate(target) if letter == "/" and end)
    return (
        *(word for parent in parents for word in ("--perms", "0755", "--dir", parent)),
        "--bind",
        str(source),
        target,
    )


def make_sandbox(settings: Settings) -> JobSandbox | None:
    """Return the sandbox of jobs; None if they run without one."""
    why = reason_without_sandbox(settings)
    if why is None:
        if limitation := sandbox_support().limitation:
            logger.warning("job_sandbox_limited", extra={"why": limitation})
        return JobSandbox(settings)
    if settings.process.sandbox == "auto":
        logger.warning(
            "jobs_not_contained: jobs run as plain processes of the worker's user and can read this machine's "
            "files. Install bubblewrap, or set GRADIENT_PROCESS__SANDBOX=off to accept this.",
            extra={"why": why},
        )
    return None


def _shell(uid: int) -> list[str]:
    """Return the words of a shell in the sandbox, after root is given up; -1: there is none to give up.

    `nsenter` enters no namespace here; it also drops root's groups, and takes half the CPU time of `setpriv`.
    """
    drop = ["nsenter", f"--setgid={uid}", f"--setuid={uid}", "--"] if uid >= 0 else []
    return [*drop, "/bin/sh"]


def _private_folders(spec: LaunchSpec) -> list[Path]:
    """Return those behind the job's home, /tmp and /var/tmp: on disk, within the attempt's quota, deleted with it."""
    return [spec.control.parent / name for name in PRIVATE_FOLDERS]


def _own_proc(uid: int) -> list[str]:
    """Return the words that mount a /proc; bubblewrap covers what it could write to, which only root can in advance."""
    controls = [f"/proc/{name}" for name in (_UNCOVERED_CONTROLS if uid >= 0 else _PROC_CONTROLS)]
    return ["--proc", "/proc", *(word for path in controls for word in ("--ro-bind-try", path, path))]


def _machine_files() -> list[str]:
    return [word for name in _PROC_FILES for word in ("--ro-bind", f"/proc/{name}", f"/proc/{name}")]
