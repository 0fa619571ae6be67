import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from core.formatting import GIB, MIB
from core.settings import Settings
from gradient_server.checks.finding import Finding, ok, problem, warning
from worker.backends.process.job_sandbox import reason_without_sandbox, sandbox_support

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MIN_FREE_SHARE = 0.1
_MIN_FREE_BYTES = 20 * GIB


def check(settings: Settings) -> Iterator[Finding]:
    """Check everything that needs neither the database nor the container engine."""
    yield home(settings.root)
    yield disk(settings.root, settings.disk.min_free_mb * MIB)
    yield from same_file_system(settings.root)


def job_sandbox(settings: Settings, *, shared: bool = False) -> Finding:
    """Check that jobs that are processes of this host run in a sandbox.

    `shared`: more than one API key is valid, so that `auto` requires it.
    """
    mode, support = settings.process.sandbox, sandbox_support()
    fix = "Install the package `bubblewrap`, and allow this user to create namespaces."
    if mode == "off":
        fix = "Unset GRADIENT_PROCESS__SANDBOX."
    why = reason_without_sandbox(settings)
    if why is not None and shared and mode == "auto":
        return problem(
            "jobs", f"Workers here do not run jobs as processes: more than one API key is valid, and {why}.", fix
        )
    if why is not None and mode == "require":
        return problem("jobs", f"Workers here do not run jobs as processes or fetch git workspaces: {why}.", fix)
    if why is not None:
        others = ", so every key has the rights of an administrator" if shared else ""
        return warning("jobs", f"Process jobs can read this machine's files{others}: {why}.", fix)
    if support.limitation is not None:
        return warning(
            "jobs", f"Jobs run in a sandbox, but {support.limitation}.", "Run the worker on the host itself."
        )
    return ok("jobs", "Process jobs run in a sandbox.")


def home(root: Path) -> Finding:
    """Check that GRADIENT_HOME exists, is writable and is private."""
    if not root.is_dir():
        return problem(
            "home",
            f"{root} is not a folder." if root.exists() else f"{root} does not exist.",
            "Start `gradient-server up`, which creates it, or set GRADIENT_HOME to its path.",
        )
    mode = stat.S_IMODE(root.stat().st_mode)
    private = f"Run `chmod 700 {root}`."
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return problem("home", f"{root} cannot be written by this user.", f"Run as its owner, {_owner(root)}.")
    if mode & _OTHERS_WRITE:
        return problem("home", f"Others can write to {root} (mode {mode:04o}).", private)
    if mode & _OTHERS:
        return warning("home", f"Others can read files in {root} (mode {mode:04o}).", private)
    return ok("home", f"{root} exists and is writable and private.")


def disk(root: Path, keep_free: int) -> Finding:
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    usage = shutil.disk_usage(existing)
    free = f"{usage.free / GIB:.1f} GiB ({usage.free / (usage.total or 1):.0%}) are free on the disk of {root}"
    fix = "Free disk space, for example by deleting jobs, or move GRADIENT_HOME to a larger disk."
    if usage.free < keep_free:
        return problem("disk", f"Only {free}: uploads are refused, and workers here claim no jobs.", fix)
    if usage.free < _MIN_FREE_BYTES or usage.free < usage.total * _MIN_FREE_SHARE:
        return warning("disk", f"Only {free}.", fix)
    return ok("disk", f"{free}.")


def same_file_system(root: Path) -> Iterator[Finding]:
    """Check that outputs can be hard-linked into the store rather than copied."""
    attempts, artifacts = root / "attempts", root / "artifacts"
    if attempts.is_dir() and artifacts.is_dir() and attempts.stat().st_dev != artifacts.stat().st_dev:
        yield warning(
            "links",
            "attempts/ and artifacts/ are on different file systems: outputs are copied and take twice the space.",
            "Put both on one file system.",
        )


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # a deleted account
        return str(path.stat().st_uid)
