"""Environments that jobs share: each made once, locked by file, and removed when unused.

Everything is below `GRADIENT_HOME/environments`: `DIGEST/` is an environment, and `DIGEST.lock` its lock, whose time of
change is the time of the last use. `DIGEST.INODE.new/` is one that is being made by the holder of the lock with this
inode. The holder renews the lock; one that is not renewed is that of a frozen worker, and is replaced. An attempt that
uses an environment has a link to it in its scratch folder, so that every worker on this folder knows of it.
"""

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from core.formatting import MIB
from core.settings import Settings
from core.system.filesystem import remove_tree
from worker.environments.installer import Check, Installer, OnLine, UvError

LINK = "environment"
"""Name of the link in a scratch folder."""
_FORMAT = 3
"""Part of every digest: raise it when environments are made differently."""
_SHOWN = 4
_LOCK_PAUSE_SECONDS = 0.2
_FROZEN_SECONDS = 20.0
_DAY_SECONDS = 24 * 3600
# A script of a package is run by the job's own interpreter, which has the job's own packages, too.
_SCRIPT_HEADER = b"#!/bin/sh\n'''exec' \"$VIRTUAL_ENV/bin/python\" \"$0\" \"$@\"\n' '''\n"


class _InUse(Exception):
    """Another process or thread has locked an environment."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Contents of an environment.

    Attributes:
        python: The interpreter.
        lines: Lines of its requirements file.
        constraints: Lines of its constraints file.
        copied: Folders of packages that are copied into it.
    """

    python: Path
    lines: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    copied: tuple[Path, ...] = ()

    @property
    def digest(self) -> str:
        """Name of the environment."""
        machine = [platform.machine(), *platform.libc_ver()]
        copied = [_digest_of_folder(folder) for folder in self.copied]
        contents = [_FORMAT, str(self.python), machine, self.lines, self.constraints, copied]
        return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class StoredEnvironment:
    """An environment on disk.

    Attributes:
        digest: Its name.
        used_at: Unix time of its last use.
        lines: Lines of its requirements file.
        in_use: Whether an attempt uses it.
    """

    digest: str
    used_at: float
    lines: tuple[str, ...]
    in_use: bool

    @property
    def summary(self) -> str:
        """Its first requirements, for a person."""
        packages = [line.split(" ")[0] for line in self.lines if not line.startswith(("-", "#", " "))]
        more = f" and {len(packages) - _SHOWN} more" if len(packages) > _SHOWN else ""
        return ", ".join(packages[:_SHOWN]) + more or "none"


class EnvironmentCache:
    """The environments below one root."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._attempts = settings.root / "attempts"
        self.root = (settings.root / "environments").resolve()  # it may be a link to another disk
        self.installer = Installer(self.root, settings)

    def use(
        self, wanted: Wanted, scratch: Path | None, announce: Callable[[bool], None], on_line: OnLine, check: Check
    ) -> tuple[Path, bool]:
        """Return an environment, installed if it is not here; it stays at least as long as the attempt's folder.

        Args:
            wanted: Its contents.
            scratch: The attempt's folder; None: no attempt uses it yet.
            announce: Called before it is installed here (False), or before waiting for another that does so (True).
            on_line: Called with each line that the installer prints.
            check: Called periodically; an exception ends the installation, or the wait for another one.

        Returns:
            Its folder, and whether it was installed now.

        Raises:
            UvError: It could not be installed.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        folder = self.root / wanted.digest
        with self._locked(wanted.digest, lambda: announce(True), check) as lock:  # noqa: FBT003 - see its description
            missing = not folder.is_dir()
            if missing:
                announce(False)  # noqa: FBT003 - see its description
                self._make(folder, wanted, on_line, check, lock)
            if scratch is not None:
                link = scratch / LINK
                link.unlink(missing_ok=True)
                link.symlink_to(folder)
        return folder, missing

    def stored(self) -> list[StoredEnvironment]:
        """Return the environments that are here, the least recently used first."""
        found = []
        for lock in self.root.glob("*.lock"):
            with contextlib.suppress(FileNotFoundError):  # it is being removed
                folder = self.root / lock.stem
                requirements = folder / "requirements.txt"
                lines = requirements.read_text(encoding="utf-8").splitlines() if requirements.exists() else []
                if folder.is_dir():
                    used_at = lock.stat().st_mtime
                    found.append(StoredEnvironment(lock.stem, used_at, tuple(lines), self._is_used(lock.stem)))
        return sorted(found, key=lambda one: one.used_at)

    def evict(self, measure: Callable[[Path], int | None], keep: Wanted) -> int:
        """Remove environments that were unused for long, or do not fit, and return how many.

        Args:
            measure: Returns the disk space of a folder; None if it is unknown.
            keep: The environment that is always kept.
        """
        if not self.root.is_dir():
            return 0
        settings = self._settings.environments
        kept = keep.digest
        for abandoned in self.root.glob("*.new"):
            if time.time() - abandoned.stat().st_mtime > _DAY_SECONDS:
                _remove_read_only(abandoned)
        locks = sorted(
            (lock for lock in self.root.glob("*.lock") if lock.stem != kept), key=lambda lock: lock.stat().st_mtime
        )
        oldest = time.time() - settings.unused_days * _DAY_SECONDS if settings.unused_days else 0.0
        removed = sum(self.remove(lock.stem) for lock in locks if lock.stat().st_mtime < oldest)
        limit = settings.max_mb * MIB
        if not limit or (measure(self.root) or 0) <= limit:
            return removed
        with contextlib.suppress(UvError):  # an installation uses it
            self.installer.clean_cache()
        for lock in locks:
            if (measure(self.root) or 0) <= limit:
                break
            removed += self.remove(lock.stem)
        return removed

    def _make(self, folder: Path, wanted: Wanted, on_line: OnLine, check: Check, lock: int) -> None:
        """Make an environment under another name, then rename it: what has its name is complete.

        If the lock was taken for a frozen worker's and replaced, the first of the two that is ready counts.
        """

        def renew() -> None:
            check()
            os.utime(lock)

        making = _path_to_make(folder, lock)
        _remove_read_only(making)
        making.mkdir()
        try:
            for name, lines in (("requirements.txt", wanted.lines), ("constraints.txt", wanted.constraints)):
                if lines:
                    (making / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            self.installer.install(making, wanted.python, on_line, renew, lock)
            _copy_pip(making)
            for package in wanted.copied:
                _copy_package(package, site_packages(making))
            if wanted.lines or wanted.copied:  # pip alone is not worth a process
                self.installer.compile(site_packages(making), wanted.python, renew, lock)
            for script in (making / "bin").iterdir():
                _use_interpreter_of_job(script)
            _make_read_only(making)
            making.rename(folder)
        except BaseException as error:
            _remove_read_only(making)
            if not (isinstance(error, OSError) and folder.is_dir()):
                raise

    def remove(self, digest: str) -> bool:
        """Remove an environment, unless it is in use or being made; return whether it was removed."""
        try:
            with self._locked(digest, _refuse, lambda: None) as lock:
                # Under the lock, so that no attempt begins to use it.
                if self._is_used(digest):
                    return False
                folder = self.root / digest
                removed = folder.is_dir()
                if removed:
                    folder.rename(_path_to_make(folder, lock))  # a half of an environment must not have its name
                _remove_read_only(_path_to_make(folder, lock))
                (self.root / f"{digest}.lock").unlink()
                return removed
        except _InUse:
            return False

    def _is_used(self, digest: str) -> bool:
        return any(_target(link) == digest for link in self._attempts.glob(f"*/{LINK}"))

    @contextlib.contextmanager
    def _locked(self, digest: str, on_wait: Callable[[], None], check: Check) -> Iterator[int]:
        """Hold the lock of an environment; yields its descriptor."""
        path, waited = self.root / f"{digest}.lock", False
        while (descriptor := _try_lock(path)) is None:
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
    """Return the folder of an environment's packages."""
    return next((environment / "lib").glob("python*/site-packages"))


def _try_lock(path: Path) -> int | None:
    """Lock a file and return its descriptor; None if another process or thread has locked it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def _path_to_make(folder: Path, lock: int) -> Path:
    """Return the path at which the holder of a lock makes an environment, or removes it."""
    return folder.with_suffix(f".{os.fstat(lock).st_ino}.new")


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _refuse() -> None:
    raise _InUse


def _target(link: Path) -> str:
    try:
        return link.readlink().name
    except OSError:  # the attempt's folder was removed meanwhile
        return ""


def _copy_pip(environment: Path) -> None:
    """Give an environment the service's own pip, so that `pip install` works in its jobs; no index is needed."""
    target = site_packages(environment)
    if (target / "pip").exists():
        return
    distribution = importlib.metadata.distribution("pip")
    folders = {file.parts[0] for file in distribution.files or () if file.parts[0].startswith("pip")}
    for name in folders:
        shutil.copytree(str(distribution.locate_file(name)), target / name)


def _copy_package(package: Path, target: Path) -> None:
    shutil.copytree(package, target / package.name, ignore=shutil.ignore_patterns("__pycache__"))


@functools.cache
def _digest_of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _use_interpreter_of_job(script: Path) -> None:
    """Have a Python script run by the interpreter of the job that calls it."""
    if script.is_symlink() or not script.is_file():
        return
    data = script.read_bytes()
    first, _, rest = data.partition(b"\n")
    if first == b"#!/bin/sh" and rest.startswith(b"'''exec'"):  # long paths do not fit on the first line
        rest = rest.split(b"\n", 2)[2]
    elif not (first.startswith(b"#!") and b"python" in first):
        return
    mode = script.stat().st_mode
    script.unlink()  # it may be a link to the download
    script.write_bytes(_SCRIPT_HEADER + rest)
    script.chmod(mode)


def _make_read_only(folder: Path) -> None:
    for inner, _, files in os.walk(folder):
        for path in (Path(inner), *(Path(inner, name) for name in files)):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def _remove_read_only(folder: Path) -> None:
    for inner, _, _ in os.walk(folder):
        Path(inner).chmod(0o700)
    remove_tree(folder)
