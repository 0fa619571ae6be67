"""Starts a job as a plain process, and what it has in common with one in a sandbox."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from core.formatting import MIB
from core.system.processes import start_session
from worker.backends.base import WRAPPER, JobPython, LaunchError, LaunchSpec, mark_launched
from worker.backends.process.control_groups import JobGroup
from worker.backends.process.job_sandbox import EXIT_REFUSED, SHARED_MEMORY

_JOIN = (
    'gradient_count=$1; shift; while [ "$gradient_count" -gt 0 ]; do echo 0 >"$1" || exit '
    f'{EXIT_REFUSED}; shift; gradient_count=$((gradient_count - 1)); done; exec "$@"'
)
"""Joins the control groups whose files are named first, then becomes the command. A process that joined later could
have children outside."""
_UTF_8 = re.compile(r"\.utf-?8\Z", re.IGNORECASE)
_INHERITED_NAMES = ("HOME", "LOGNAME", "PATH", "SHELL", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER")


def join_words(group: JobGroup | None) -> list[str]:
    """Return the words before a command that start it in a control group; none without a group."""
    if group is None:
        return []
    return ["/bin/sh", "-c", _JOIN, "/bin/sh", str(len(group.folders)), *group.join_files]


def start_plain(spec: LaunchSpec, join: list[str], inherited: dict[str, str]) -> "subprocess.Popen[bytes]":
    mark_launched(spec)
    command = [*join, str(WRAPPER), str(spec.control), "", str(spec.stop_signal)]
    return start_session(command, inherited | spec.env, folder=spec.working_dir or spec.workspace)


def inherited_environment(python: JobPython | None) -> dict[str, str]:
    """Select the job's part of the worker's environment: no keys or addresses; the job's Python first on PATH."""
    env = {name: os.environ[name] for name in _INHERITED_NAMES if name in os.environ}
    variables = python.environment() if python else {"PATH": str(Path(sys.executable).parent)}
    return env | _locale() | variables | {"PATH": os.pathsep.join([variables["PATH"], env.get("PATH", os.defpath)])}


def _locale() -> dict[str, str]:
    """Return the worker's locale if it is UTF-8 and installed here, and otherwise one that every system has."""
    name = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    return {"LANG": name if _UTF_8.sub(".utf8", name) in _installed_locales() else "C.UTF-8"}


@cache
def _installed_locales() -> frozenset[str]:
    """Return the names of the UTF-8 locales of this host."""
    try:
        done = subprocess.run(["locale", "-a"], capture_output=True, check=False)  # noqa: S607 - the system's
    except OSError:
        return frozenset()
    names = done.stdout.decode(errors="replace").split()
    return frozenset(_UTF_8.sub(".utf8", name) for name in names if _UTF_8.search(name))


def reject_unsupported(spec: LaunchSpec, *, sandboxed: bool) -> None:
    """Refuse options that a process cannot have, for example those of a submission that did not know of simulation."""
    if spec.job_spec.user is not None:
        raise LaunchError("option_refused", "machine types are simulated here, by processes of the worker's own user")
    if spec.job_spec.network is not None and not sandboxed:
        raise LaunchError("option_refused", "jobs have no sandbox here, so they share this computer's network")
    if spec.shared_mem_bytes is not None and not sandboxed:
        here = os.statvfs(SHARED_MEMORY)
        size = here.f_blocks * here.f_frsize
        if size < spec.shared_mem_bytes:
            raise LaunchError(
                "option_refused",
                f"this computer has {size // MIB:,} MiB of shared memory ({SHARED_MEMORY}), but the job requests "
                f"{spec.shared_mem_bytes // MIB:,}",
            )


def preempt_after(env: Mapping[str, str]) -> float | None:
    """Return the seconds after which the job's machine is taken away, as its environment asks; None: never."""
    text = env.get("SIMULATE_PREEMPT_AFTER")
    try:
        return float(text) if text else None
    except ValueError as error:
        raise LaunchError("launch_failed", f"SIMULATE_PREEMPT_AFTER={text}: not a number of seconds") from error
