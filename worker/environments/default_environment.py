"""The default environment: packages of jobs whose folder names none, installed in the background from a worker's start.

Its versions are those of `default_packages.txt`, so it is the same on every host until an update of the service changes
them. Where the program needs TensorFlow, or the trainer, it has the packages of `trainer_packages.txt`.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from core.catalogue.default_packages import DEFAULT, TRAINER, locked_versions
from core.settings.worker import EnvironmentSettings
from gradient_cli.workspace.dependencies.declared import INSTALL
from gradient_cli.workspace.dependencies.requirements import read_lines
from worker.backends.base import LaunchError, Progress
from worker.environments.cache import EnvironmentCache
from worker.environments.install_progress import InstallProgress
from worker.environments.installer import UvError
from worker.environments.wanted import Wanted

logger = logging.getLogger(__name__)

NAME = "the default packages"  # source of its packages, in events
TRAINER_MODULES = ("tensorflow", "keras", "gradient_trainer", "tensorboard")
"""Modules that only the trainer's packages have."""

_TRAINER = "gradient_trainer"
_FAILED_SECONDS = 30.0
"""Time after a failure during which it is not tried again: a server without an index runs jobs, too."""


class _Stopped(Exception):
    """The worker stops."""


class DefaultEnvironment:
    def __init__(self, settings: EnvironmentSettings, cache: EnvironmentCache) -> None:
        self._packages = settings.default
        self.cache = cache
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: tuple[float, UvError] | None = None

    @property
    def offered(self) -> tuple[str, ...]:
        """Names of distributions of which a job with packages of its own gets those that its program imports."""
        return () if isinstance(self._packages, list) else tuple(locked_versions())

    def wanted(self, python: Path, *, trainer: bool = False) -> Wanted:
        """Return its contents for an interpreter; with the trainer, unless an administrator names the packages."""
        copied: list[str] = []
        if isinstance(self._packages, list):
            lines = tuple(self._packages)
        else:
            lines = tuple(read_lines(str(TRAINER if trainer else DEFAULT)))
            trainer_spec = find_spec(_TRAINER) if trainer else None
            copied = list((trainer_spec.submodule_search_locations if trainer_spec is not None else None) or ())
        commands = ((*INSTALL, "--requirements", "-"),) if lines else ()
        given = "".join(f"{line}\n" for line in lines)
        return Wanted(python=python, commands=commands, given=given, lines=lines, copied=tuple(map(Path, copied)))

    def start(self) -> None:
        """Begin to install it for the service's own interpreter, after the environment without packages."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._install, name="default-environment", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def use(self, wanted: Wanted, scratch: Path | None, report: Progress, check: Callable[[], None]) -> Path:
        """Return the environment, installed if it is not here; see `EnvironmentCache.use` and `InstallProgress`."""
        folder = self.cache.folder_of(wanted)

        def watch() -> None:
            check()
            if self._failure is not None and time.monotonic() < self._failure[0] and not folder.is_dir():
                raise self._failure[1]

        try:
            watch()
            return self.cache.use(wanted, scratch, InstallProgress(NAME, report, watch))[0]
        except UvError as error:
            if self._failure is None or self._failure[1] is not error:
                logger.warning(
                    "default_packages_missing: jobs whose folder declares no requirements have only Python's "
                    "standard library",
                    extra={"why": str(error), "output": error.output[-500:]},
                )
            self._failure = time.monotonic() + _FAILED_SECONDS, error
            raise

    def _install(self) -> None:
        python = service_python()
        try:
            for wanted in dict.fromkeys((Wanted(python=python), self.wanted(python))):
                self.use(wanted, None, lambda *_: None, self._check)
        except (UvError, LaunchError, OSError) as error:
            logger.info("default_packages", extra={"why": str(error)})
        except _Stopped:
            pass

    def _check(self) -> None:
        if self._stopping.is_set():
            raise _Stopped


@cache
def service_python() -> Path:
    return Path(sys.executable).resolve()
