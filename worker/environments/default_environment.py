"""The default environment: packages of jobs whose folder names none, installed in the background from a worker's start.

Its versions are those of `default_packages.txt`, so it is the same on every host until an update of the service changes
them.
"""

import logging
import sys
import threading
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from core.catalogue.default_packages import LOCKED
from core.settings.environments import EnvironmentSettings
from worker.backends.base import LaunchError, Progress
from worker.backends.isolated_programs import Check
from worker.environments.cache import EnvironmentCache
from worker.environments.declared_requirements import INSTALL
from worker.environments.install_progress import INSTALLING, InstallProgress
from worker.environments.installer import UvError, explain
from worker.environments.wanted import Wanted

logger = logging.getLogger(__name__)

NAME = "the default packages"
"""Source of its packages, in events."""

_TRAINER = "gradient_trainer"
_FIRST_PAUSE_SECONDS = 15.0
_LONGEST_PAUSE_SECONDS = 600.0
_WAIT_SECONDS = 0.2


class _Stopped(Exception):
    """The worker stops."""


class DefaultEnvironment:
    def __init__(self, settings: EnvironmentSettings, cache: EnvironmentCache) -> None:
        self._lines, self._copied = _contents(settings)
        self._cache = cache
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._tried = threading.Event()
        self._failure: str | None = None
        self._step: tuple[str, str | None] = INSTALLING, NAME

    def wanted(self, python: Path) -> Wanted:
        commands = ((*INSTALL, "--requirements", "-"),) if self._lines else ()
        text = "".join(f"{line}\n" for line in self._lines)
        return Wanted(python=python, commands=commands, given=text, lines=self._lines, copied=self._copied)

    def start(self) -> None:
        """Begin to install it for the service's own interpreter; a failure is retried until it succeeds."""
        with self._lock:
            if self._thread is None and self._lines:
                self._thread = threading.Thread(target=self._install, name="default-environment", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, check: Check, report: Progress) -> str | None:
        """Wait for the first try to install it.

        Args:
            check: Called periodically; an exception ends the wait.
            report: Called with each step of the installation.

        Returns:
            The reason that it is not installed; None if it is.
        """
        if not self._lines:
            return None
        self.start()
        reported = None
        while not self._tried.wait(_WAIT_SECONDS if reported else 0):
            check()
            if self._step != reported:
                reported = self._step
                report(*reported)
        return self._failure

    def _install(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                self._failure = self._try()
            except _Stopped:
                return
            self._tried.set()
            if self._failure is None:
                return
            logger.warning(
                "default_packages_missing: jobs whose folder names no requirements have only Python's own library",
                extra={"why": self._failure, "retry_seconds": pause},
            )
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _try(self) -> str | None:
        """Install it if it is not here; return the reason of a failure."""
        began = time.monotonic()
        progress = InstallProgress(NAME, self._set_step)
        try:
            _, made = self._cache.use(
                self.wanted(service_python()), None, lambda _: self._set_step(INSTALLING, NAME), progress, self._check
            )
        except UvError as error:
            return explain(error)
        except (LaunchError, OSError) as error:
            return str(error)
        except _Stopped:
            raise
        except Exception as error:  # jobs wait for the end of this try
            logger.exception("default_packages_failed")
            return f"{type(error).__name__}: {error}."
        if made:
            seconds = round(time.monotonic() - began)
            logger.info("default_packages_installed", extra={"packages": progress.count, "seconds": seconds})
        return None

    def _set_step(self, phase: str, detail: str | None) -> None:
        if phase == INSTALLING or phase != self._step[0]:  # not each download
            logger.info("default_packages", extra={"phase": phase, "detail": detail})
        self._step = phase, detail

    def _check(self) -> None:
        if self._stopping.is_set():
            raise _Stopped


@cache
def service_python() -> Path:
    """Return the interpreter of the service, which is that of jobs by default."""
    return Path(sys.executable).resolve()


def _contents(settings: EnvironmentSettings) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the lines of its requirements, and packages of this release that are copied into it."""
    if settings.default != "trainer":
        return tuple(settings.default), ()
    trainer = find_spec(_TRAINER)
    folders = trainer.submodule_search_locations if trainer is not None else None
    return tuple(LOCKED.read_text(encoding="utf-8").splitlines()), tuple(map(Path, folders or ()))
