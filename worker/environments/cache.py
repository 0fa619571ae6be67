"""Environments that jobs share: each made once, locked by file, and removed when unused.

Everything is below `GRADIENT_HOME/environments`, in a folder for each project and one for the default environments:
`PROJECT/DIGEST/` is an environment, and `PROJECT/DIGEST.lock` its lock, whose time of change is the time of the last
use; it says with which interpreter the environment was made. The holder renews the lock; one that is not renewed is
that of a frozen worker, and is replaced. An attempt that uses an environment has a link to it in its scratch folder, so
that every worker on this folder knows of it.

`PROJECT/building/` alone can be written by what is built for the project: there are its downloads, and what is being
made. The service touches nothing in it but by descriptor, and moves what is complete to `PROJECT/temporary/`, which no
build sees, before it looks at it. Whoever builds holds `PROJECT/building.busy`; when nobody does, all but the downloads
is removed.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from core.formatting import MIB
from core.ids import new_id
from core.settings import Settings
from core.system.untrusted_folders import NOT_A_FOLDER, move, opened_beneath, opened_folder, remove_beneath, remove_tree
from gradient_cli.workspace.dependencies.index_variables import hide_passwords
from worker.backends.process.isolated_programs import Check
from worker.environments.install_progress import InstallProgress
from worker.environments.installer import BUILDING, CACHE, TEMPORARY, Installer, UvError
from worker.environments.wanted import Wanted

logger = logging.getLogger(__name__)

LINK = "environment"  # name of the link in a scratch folder
_COMPILED = "compiled"
_PYTHON_FOLDER = re.compile(r"python3\.\d+t?")
_SHOWN = 4
_LOCK_PAUSE_SECONDS = 0.2
_FROZEN_SECONDS = 20.0
_DAY_SECONDS = 24 * 3600
UNUSED_DAYS = 30  # days since its last use after which an environment is removed: it is installed again in a minute


class _InUse(Exception):
    """Another process or thread has locked an environment."""


@dataclass(frozen=True, slots=True)
class StoredEnvironment:
    folder: Path
    used_at: float  # Unix time of its last use
    lines: tuple[str, ...]
    in_use: bool
    of_attempt: bool

    @property
    def digest(self) -> str:
        return self.folder.name

    @property
    def summary(self) -> str:
        """Its first requirements, for a person."""
        packages = [line.split(" ")[0] for line in self.lines if not line.startswith(("-", "#", " "))]
        more = f" and {len(packages) - _SHOWN} more" if len(packages) > _SHOWN else ""
        return ", ".join(packages[:_SHOWN]) + more or "none"


class EnvironmentCache:
    def __init__(self, settings: Settings, shared: Callable[[], bool] = lambda: False) -> None:
        self._settings = settings
        self._attempts = settings.root / "attempts"
        self.root = (settings.root / "environments").resolve()  # it may be a link to another disk
        self.installer = Installer(self.root, settings, shared)
        self._compiling: dict[Path, threading.Thread] = {}

    def folder_of(self, wanted: Wanted) -> Path:
        return Path(self.root, wanted.place, wanted.digest)

    def use(self, wanted: Wanted, scratch: Path | None, progress: InstallProgress) -> tuple[Path, bool]:
        """Return an environment, installed if it is not here; it stays at least as long as the attempt's folder.

        Returns its folder, and whether it was installed now. `scratch`: the attempt's folder; None: no attempt uses it
        yet.
        """
        folder = self.folder_of(wanted)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(folder, partial(progress.announce, waits=True), progress.check, uses=True) as lock:
            missing = not folder.is_dir()
            if missing:
                progress.announce(waits=False)
                self._make(folder, wanted, progress, lock)
            _describe(lock, wanted)
            if scratch is not None:
                link = scratch / LINK
                link.unlink(missing_ok=True)
                link.symlink_to(folder)
        if wanted.commands and not (folder / _COMPILED).exists():
            self._compile_later(folder, wanted)
        return folder, missing

    def _compile_later(self, folder: Path, wanted: Wanted) -> None:
        """Write the bytecode of an environment in the background: jobs need not wait for it."""

        def compile_now() -> None:
            try:
                with _building(folder.parent):
                    self.installer.compile(folder, wanted)
            except Exception as error:  # noqa: BLE001 - jobs run without it
                output = getattr(error, "output", "")
                logger.warning("environment_not_compiled", extra={"why": str(error), "output": output[-500:]})
            finally:
                self._compiling.pop(folder, None)
                _clean_up(folder.parent)

        thread = threading.Thread(target=compile_now, name="compile", daemon=True)
        if self._compiling.setdefault(folder, thread) is thread:
            thread.start()

    def stored(self) -> list[StoredEnvironment]:
        """Return the environments that are here, the least recently used first."""
        used = self._used()
        entries = []
        for lock in self.root.glob("*/*.lock"):
            with contextlib.suppress(FileNotFoundError):  # it is being removed
                folder, description = lock.with_suffix(""), _description(lock)
                if folder.is_dir():
                    lines, of_attempt = tuple(description.get("lines", ())), bool(description.get("attempt"))
                    entries.append(StoredEnvironment(folder, lock.stat().st_mtime, lines, folder in used, of_attempt))
        return sorted(entries, key=lambda entry: entry.used_at)

    def evict(self, measure: Callable[[Path], int | None], keep: Wanted) -> int:
        """Remove environments that were unused for long, or do not fit, and return how many.

        `measure`: returns the disk space of a folder; None if it is unknown.
        """
        if not self.root.is_dir():
            return 0
        settings, kept = self._settings.environments, self.folder_of(keep)
        for project_folder in self._places():
            _clean_up(project_folder)
        stored = [entry for entry in self.stored() if entry.folder != kept]
        oldest = time.time() - UNUSED_DAYS * _DAY_SECONDS
        removed = sum(self.remove(entry.folder) for entry in stored if entry.used_at < oldest or entry.of_attempt)
        limit = settings.max_mb * MIB
        if not limit or (measure(self.root) or 0) <= limit:
            return removed
        self.clean_caches()
        for entry in stored:
            if (measure(self.root) or 0) <= limit:
                break
            removed += self.remove(entry.folder)
        return removed

    def clean_caches(self) -> None:
        """Remove all downloaded packages, but of projects for which something is being installed.

        Those of environments stay, because the environments link them.
        """
        for project_folder in self._places():
            _clean_up(project_folder, downloads=True)

    def _places(self) -> list[Path]:
        return [building.parent for building in self.root.glob(f"*/{BUILDING}")]

    def _make(self, folder: Path, wanted: Wanted, progress: InstallProgress, lock: int) -> None:
        """Make an environment under another name, then rename it: what has its name is complete.

        If the lock was taken for a frozen worker's and replaced, the first of the two that is ready counts. Downloads
        that uv complains about are removed: a build may have spoilt them.
        """

        def renew() -> None:
            progress.check()
            os.utime(lock)

        project_folder, name, spoilt = folder.parent, new_id("new"), False
        building = project_folder / BUILDING
        try:
            with _building(project_folder):
                self.installer.isolation.make_folder(wanted.project_id, building)
                self.installer.make(building / name, wanted, progress, renew)
                _publish(building, name, folder)
        except OSError:
            if not folder.is_dir():
                raise
        except UvError as error:
            spoilt = str(building / CACHE) in error.output
            raise
        finally:
            _remove_build(building, name)
            _clean_up(project_folder, downloads=spoilt)

    def remove(self, folder: Path) -> bool:
        """Remove an environment, unless it is in use or being made; return whether it was removed."""
        try:
            with self._locked(folder, _refuse, lambda: None):
                # Under the lock, so that no attempt begins to use it.
                if folder in self._used():
                    return False
                if (compiling := self._compiling.get(folder)) is not None:
                    compiling.join()
                removed = folder.is_dir()
                removing = folder.with_suffix(".removed")
                if removed:
                    move(folder, removing)  # a half of an environment must not have its name
                remove_tree(removing)
                _lock_of(folder).unlink()
                return removed
        except _InUse:
            return False

    def _used(self) -> set[Path]:
        folders = set()
        for link in self._attempts.glob(f"*/{LINK}"):
            with contextlib.suppress(OSError):  # the attempt's folder was removed meanwhile
                folders.add(link.readlink())
        return folders

    @contextlib.contextmanager
    def _locked(self, folder: Path, on_wait: Callable[[], None], check: Check, *, uses: bool = False) -> Iterator[int]:
        """Hold the lock of an environment; of one that is here, together with others that only use it.

        Yields the descriptor of the lock.
        """
        path, waited = _lock_of(folder), False
        while (descriptor := _try_lock(path, fcntl.LOCK_SH if uses and folder.is_dir() else fcntl.LOCK_EX)) is None:
            if not waited:
                waited = True
                on_wait()
            check()
            if time.time() - _time_of_renewal(path) > _FROZEN_SECONDS:
                path.unlink(missing_ok=True)
            time.sleep(_LOCK_PAUSE_SECONDS)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def site_packages(environment: Path) -> Path:
    """Return the folder of an environment's packages. Raises `FileNotFoundError`: there is none, but perhaps links."""
    with opened_folder(environment) as top, opened_beneath(top, ["lib"]) as lib:
        for name in filter(_PYTHON_FOLDER.fullmatch, sorted(os.listdir(lib))):  # noqa: PTH208 - a descriptor
            with contextlib.suppress(OSError), opened_beneath(lib, [name, "site-packages"]):
                return Path(environment, "lib", name, "site-packages")
    raise FileNotFoundError(errno.ENOENT, "The environment has no folder of packages", str(environment))


def _try_lock(path: Path, kind: int) -> int | None:
    """Lock a file and return its descriptor; None if another process or thread has locked it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if _is_same(path, descriptor):
                os.utime(descriptor)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)  # the file was removed before it was locked


def _time_of_renewal(lock: Path) -> float:
    """Return the Unix time at which a lock was taken or renewed; now if it is gone."""
    try:
        return lock.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _lock_of(folder: Path) -> Path:
    return folder.with_suffix(".lock")


def _describe(lock: int, wanted: Wanted) -> None:
    """Write down with what an environment was made: what is in itself is not trusted."""
    description = {
        "python": str(wanted.python),
        "attempt": wanted.attempt,
        "lines": list(map(hide_passwords, wanted.lines)),
        "declared": wanted.declared,
    }
    text = json.dumps(description).encode()
    if os.pread(lock, len(text) + 1, 0) != text:
        os.ftruncate(lock, 0)
        os.pwrite(lock, text, 0)


def _description(lock: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(lock.read_bytes() or b"{}")
    return description


def interpreter_of(folder: Path) -> Path:
    return Path(_description(_lock_of(folder))["python"])


def is_of_attempt(folder: Path) -> bool:
    """Return whether an environment was made for one attempt: it has a link to that one's workspace."""
    return bool(_description(_lock_of(folder)).get("attempt"))


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _publish(building: Path, name: str, folder: Path) -> None:
    """Give an environment its name. What was built may have put something else there."""
    (folder.parent / TEMPORARY).mkdir(mode=0o700, exist_ok=True)
    staged = folder.parent / TEMPORARY / name
    try:
        with opened_folder(building) as builds, opened_beneath(builds, [name]) as made:
            os.fchmod(made, 0o755)  # else only root may move it
            os.rename(name, staged, src_dir_fd=builds)
        site_packages(staged)  # out of the reach of builds
        with opened_folder(staged) as made:
            move(staged, folder)
            os.fchmod(made, 0o555)
    except OSError as error:
        remove_tree(staged)
        if error.errno not in NOT_A_FOLDER:
            raise
        raise UvError("what was built has replaced its environment.", "") from error


@contextlib.contextmanager
def _building(project_folder: Path, *, alone: bool = False) -> Iterator[None]:
    """Hold the lock of a project's builds, which they share; `BlockingIOError`: one runs, and it is wanted alone."""
    descriptor = os.open(project_folder / f"{BUILDING}.busy", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _remove_build(building: Path, name: str) -> None:
    with contextlib.suppress(OSError), opened_folder(building) as builds:
        remove_beneath(builds, name)


def _clean_up(project_folder: Path, *, downloads: bool = False) -> None:
    """Remove what builds of a project have left, and its downloads if asked; nothing while one runs."""
    try:
        with _building(project_folder, alone=True):
            remove_tree(project_folder / TEMPORARY)
            with opened_folder(project_folder / BUILDING) as building:
                for name in os.listdir(building):  # noqa: PTH208 - a descriptor
                    if downloads or name != CACHE:
                        remove_beneath(building, name)
    except OSError as error:  # also of what a killed worker has started, and writes on
        logger.info("builds_not_cleaned_up", extra={"folder": str(project_folder), "why": str(error)})


def _refuse() -> None:
    raise _InUse
