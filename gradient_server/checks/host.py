import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from core.catalogue.machine_types import Catalogue
from core.errors import SpecInvalid
from core.formatting import GIB, MIB
from core.settings import Settings
from core.system.canonical_host import canonical_host
from core.system.inotify import FileWatcher
from gradient_server.checks.finding import Finding, ok, problem, warning
from gradient_server.job_ports_address import are_ports_at_dashboard
from worker.backends.nodes_address import nodes_address_problem
from worker.backends.process.control_groups import control_group_support
from worker.backends.process.job_sandbox import reason_without_sandbox, sandbox_support
from worker.backends.process.network.job_network import reason_for_proxy, reason_without_network

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MIN_FREE_SHARE = 0.1
_MIN_FREE_BYTES = 20 * GIB
_FOLDERS = ("workspaces", "logs", "artifacts", "attempts", "storage")
_MIN_INSTANCES = 128
_INOTIFY = Path("/proc/sys/fs/inotify")
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 13)


def check(settings: Settings) -> Iterator[Finding]:
    """Check everything that needs neither the database nor the container engine."""
    yield python()
    yield git()
    if settings.machines.simulate:
        yield job_network(settings)
        yield limits(settings)
    yield home(settings.root)
    yield disk(settings.root, settings.disk.min_free_mb * MIB)
    yield folders(settings.root)
    yield from same_file_system(settings.root)
    yield ports(settings)
    if settings.worker.nodes_address is not None:
        yield nodes_address(settings)
    yield wakeup_file(settings.root)
    yield inotify()
    yield machine_types(settings)


def python() -> Finding:
    """Check that this release supports the interpreter."""
    version = platform.python_version()
    if _OLDEST_PYTHON <= sys.version_info[:2] <= _NEWEST_PYTHON:
        return ok("python", f"Python {version}.")
    return problem(
        "python",
        f"Python {version} is not supported by this release.",
        "Install the service with Python 3.11, 3.12 or 3.13.",
    )


def git() -> Finding:
    found = shutil.which("git")
    if found is None:
        return warning(
            "git", "git is not installed: jobs whose workspace is a git URL fail.", "Install the package `git`."
        )
    return ok("git", f"git is at {found}.")


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
            "jobs", f"Workers here run no jobs as processes: more than one API key is valid, and {why}.", fix
        )
    if why is not None and mode == "require":
        return problem("jobs", f"Workers here run no jobs as processes, and fetch nothing by git: {why}.", fix)
    if why is not None:
        others = ", so every key is as good as an administrator's" if shared else ""
        return warning("jobs", f"Jobs that are processes can read this machine's files{others}: {why}.", fix)
    if support.limitation is not None:
        return warning(
            "jobs", f"Jobs run in a sandbox, but {support.limitation}.", "Run the worker on the host itself."
        )
    return ok("jobs", "Jobs that are processes run in a sandbox.")


def job_network(settings: Settings) -> Finding:
    why = reason_without_sandbox(settings) or reason_without_network(settings)
    fix = "Start the worker as root with the package `iptables`, or as another user with `passt` and /dev/net/tun."
    if why is None and (limited := reason_for_proxy()):
        return warning("network", f"Jobs reach HTTP and HTTPS alone, by a proxy: {limited}.", fix)
    if why is None:
        return ok("network", "Jobs that are processes have networks of their own.")
    if settings.process.network == "off":
        fix = "Unset GRADIENT_PROCESS__NETWORK."
    if settings.process.network == "require":
        return problem("network", f"Workers here run no jobs as processes: {why}.", fix)
    return warning("network", f"Jobs reach what listens on this machine, and each other's ports: {why}.", fix)


def limits(settings: Settings) -> Finding:
    """Check that control groups limit jobs that are processes of this host.

    The doctor's own group counts: that of a service may be delegated when that of a shell is not.
    """
    mode = settings.process.cgroups
    found, why = control_group_support(mode)
    if found is not None:
        return ok("limits", f"Control groups (version {found.version}) limit the memory and CPUs of jobs.")
    fix = (
        "Unset GRADIENT_PROCESS__CGROUPS."
        if mode == "off"
        else "Start the worker by deploy/systemd/gradient-jobs-worker.service (systemd 254 or later), or as root."
    )
    if mode == "require":
        return problem("limits", f"Workers started like this run no jobs as processes: {why}.", fix)
    return warning("limits", f"A job can exceed its memory limit for half a second, and its CPU share: {why}.", fix)


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
    place = next(folder for folder in (root, *root.parents) if folder.exists())
    usage = shutil.disk_usage(place)
    free = f"{usage.free / GIB:.1f} GiB ({usage.free / (usage.total or 1):.0%}) are free on the disk of {root}"
    fix = "Free disk space, for example by deleting jobs, or move GRADIENT_HOME to a larger disk."
    if usage.free < keep_free:
        return problem("disk", f"Only {free}: uploads are refused, and workers here claim no jobs.", fix)
    if usage.free < _MIN_FREE_BYTES or usage.free < usage.total * _MIN_FREE_SHARE:
        return warning("disk", f"Only {free}.", fix)
    return ok("disk", f"{free}.")


def folders(root: Path) -> Finding:
    there = [root / name for name in _FOLDERS if (root / name).exists()]
    bad = [str(path) for path in there if not (path.is_dir() and os.access(path, os.R_OK | os.W_OK | os.X_OK))]
    if bad:
        return problem(
            "storage",
            f"Not folders that this user can write to: {', '.join(bad)}.",
            "Make the user that runs the service their owner, or move away files with these names.",
        )
    return ok(
        "storage", f"{len(there)} of {len(_FOLDERS)} folders exist and are writable; others are created when needed."
    )


def same_file_system(root: Path) -> Iterator[Finding]:
    """Check that outputs can be hard-linked into the store rather than copied."""
    attempts, artifacts = root / "attempts", root / "artifacts"
    if attempts.is_dir() and artifacts.is_dir() and attempts.stat().st_dev != artifacts.stat().st_dev:
        yield warning(
            "links",
            "attempts/ and artifacts/ are on different file systems: outputs are copied and take twice the space.",
            "Put both on one file system.",
        )


def ports(settings: Settings) -> Finding:
    """Check that jobs' ports have another host name and another address than the dashboard."""
    links, bind, dashboard = settings.ports_host, settings.ports.bind, settings.dashboard_host
    fix = (
        "Set GRADIENT_WORKER__ADDRESS to another name of this machine than the dashboard's, and GRADIENT_PORTS__BIND "
        "to an address that the dashboard's name does not resolve to."
    )
    if dashboard is None:
        return warning(
            "ports",
            "The dashboard listens on every address and its host name is not known, so nobody can log in.",
            "Set GRADIENT_API__PUBLIC_URL.",
        )
    if canonical_host(links) == dashboard:
        return problem("ports", f"Links to jobs' ports lead to the dashboard's own host name, {dashboard}.", fix)
    if are_ports_at_dashboard(settings):
        found = f"Jobs' ports are opened at {bind}, which {dashboard} resolves to"
        if settings.public_url.lower().startswith("https://"):
            return warning("ports", f"{found}: jobs do not receive session cookies only because these need https.", fix)
        return problem("ports", f"{found}: jobs can receive the sessions of the dashboard's users.", fix)
    return ok("ports", f"Jobs' ports are at {links}, the dashboard at {dashboard}.")


def nodes_address(settings: Settings) -> Finding:
    """Check that the nodes of a job here can be reached by those on other hosts, as a setting asks for."""
    if why := nodes_address_problem(settings):
        return warning(
            "nodes",
            f"Workers here take no nodes of a job together with other hosts: {why}.",
            "Correct GRADIENT_WORKER__NODES_ADDRESS, or unset it.",
        )
    return ok(
        "nodes",
        f"Nodes that others on other hosts reach run in this host's network, at {settings.worker.nodes_address}.",
    )


def wakeup_file(root: Path) -> Finding:
    """Check that the file `wakeup` can be touched, which wakes the workers on this machine."""
    path = root / "wakeup"
    if path.exists() and not os.access(path, os.W_OK):
        return problem(
            "wakeup",
            f"{path} cannot be touched: a submission cannot wake the workers.",
            f"Run as its owner, {_owner(path)}.",
        )
    if path.exists():
        return ok("wakeup", f"{path} exists.")
    return ok("wakeup", f"{path} does not exist yet; the first start creates it.")


def inotify() -> Finding:
    """Check the kernel's limits for watching files."""
    allowed = _read_int(_INOTIFY / "max_user_instances")
    fix = "Run `sysctl fs.inotify.max_user_instances=512`, and put the line into /etc/sysctl.d/ to keep it."
    try:
        FileWatcher().close()
    except OSError as error:
        return problem("inotify", f"Files cannot be watched: {error.strerror}. Workers cannot start.", fix)
    if allowed is not None and allowed < _MIN_INSTANCES:
        return warning("inotify", f"A user may have only {allowed} instances of inotify; every process uses some.", fix)
    watches = _read_int(_INOTIFY / "max_user_watches")
    return ok("inotify", f"Limits for this user: {allowed or 'unknown'} instances, {watches or 'unknown'} watches.")


def machine_types(settings: Settings) -> Finding:
    file = settings.machines_file
    try:
        number = len(Catalogue.offered(settings))
    except SpecInvalid as error:
        return problem(
            "machines", f"{error.message.rstrip('.')}.", "Correct this file; the API does not start with it."
        )
    return ok("machines", f"{number} machine types" + (f", with changes from {file}." if file else "."))


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # a deleted account
        return str(path.stat().st_uid)


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
