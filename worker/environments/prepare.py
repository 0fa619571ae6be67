"""Prepares the Python of a job that runs without a container: its requirements, its interpreter, its own layer."""

import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from core.db.models.jobs import Job
from core.settings.environments import EnvironmentSettings
from core.system.egress import Egress
from worker.attempt.scratch import Scratch
from worker.backends.base import JobPython, LaunchError, Progress, read_control
from worker.context import WorkerContext
from worker.environments.cache import Wanted
from worker.environments.declared import Declared, find_declared
from worker.environments.installer import UvError, explain
from worker.environments.job_layer import create_layer
from worker.environments.requirements_file import RequirementsReader, invalid

_PHASE = "installing"
_RESOLVED = re.compile(r"Resolved (\d+) packages?")
_SETTING = "GRADIENT_ENVIRONMENTS__DEFAULT"
_WITH_TRAINER = ("numpy", "pandas", "scikit-learn", "matplotlib", "tqdm")


def prepare_python(
    context: WorkerContext,
    job: Job,
    scratch: Scratch,
    folder: Path,
    check: Callable[[], None],
    progress: Progress,
) -> JobPython | None:
    """Install the requirements of a job, unless they are here, and create its own virtual environment.

    Args:
        context: The worker's stores.
        job: The job.
        scratch: Its attempt's folders, with its workspace.
        folder: The folder that its command starts in.
        check: Called periodically; raises if the start must be aborted.
        progress: Called with what is being done.

    Returns:
        None for a job that has its Python from a container, or was started before.

    Raises:
        LaunchError: The requirements are refused or cannot be installed, or there is no such Python.
    """
    if context.backend(job.backend).capabilities.containers or read_control(scratch.control, "started") is not None:
        return None
    preparation = _Preparation(context, job, scratch, check, progress)
    return preparation.run(find_declared(preparation.reader, scratch.workspace, folder, job.spec.command))


class _Preparation:
    def __init__(
        self, context: WorkerContext, job: Job, scratch: Scratch, check: Callable[[], None], progress: Progress
    ) -> None:
        self._settings = context.settings.environments
        self._cache = context.environments
        self.reader = RequirementsReader(scratch.workspace, Egress(context.settings.egress))
        self._job = job
        self._scratch = scratch
        self._check = check
        self._progress = progress

    def run(self, declared: Declared | None) -> JobPython:
        if declared is None and self._settings.default:
            declared = Declared(_SETTING)
            self.reader.add_lines(_default_lines(self._settings), _SETTING)
        python = self._find_python(declared)
        if declared is not None and declared.locked is not None:
            self._read_lock(declared, python)
        wanted = Wanted(python, tuple(self.reader.lines), tuple(self.reader.constraints))
        if not wanted.lines and python == _service_python():
            return create_layer(self._scratch.root, None)
        return create_layer(self._scratch.root, self._install(wanted, declared.source if declared else "--python"))

    def _find_python(self, declared: Declared | None) -> Path:
        option = self._job.spec.python
        wanted = f"=={option}.*" if option else declared and declared.python
        if not wanted:
            return _service_python()
        try:
            if SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
                return _service_python()
        except InvalidSpecifier as error:
            source = declared.source if declared else "--python"
            raise invalid(source, f"requires-python {wanted!r} is not a version specifier such as >=3.11.") from error
        installer = self._cache.installer
        found = installer.find_python(wanted, self._check)
        if found is None:
            self._progress(_PHASE, f"downloading Python {option or wanted}")
            found = installer.download_python(wanted, self._check)
        return found

    def _read_lock(self, declared: Declared, python: Path) -> None:
        assert declared.locked is not None  # noqa: S101 - for mypy: the caller has checked it
        try:
            lines = self._cache.installer.export_lock(declared.locked, python, self._check)
        except UvError as error:
            raise self._failed(error, declared.source) from error
        self.reader.add_lines(lines, declared.source)

    def _install(self, wanted: Wanted, source: str) -> Path:
        began = time.monotonic()
        count = ""

        def on_line(line: str) -> None:
            nonlocal count
            found = _RESOLVED.match(line)
            if found:
                count = f"{found[1]} package{'' if found[1] == '1' else 's'}"
                self._progress(_PHASE, f"{count} for {source}")

        def announce(waits: bool) -> None:  # noqa: FBT001 - called in one place
            self._progress(_PHASE, f"{source} (another job is installing the same packages)" if waits else source)

        try:
            folder, made = self._cache.use(wanted, self._scratch.root, announce, on_line, self._check)
        except UvError as error:
            raise self._failed(error, source) from error
        if made:
            self._progress("provisioning", f"{count or 'Python'} installed in {time.monotonic() - began:.0f} s")
        return folder

    def _failed(self, error: UvError, source: str) -> LaunchError:
        """Write uv's output to the job's log, and return the error for the user."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self._scratch.control / "log", flags, 0o600), "ab") as log:
            log.write(error.output.encode())
        return LaunchError("requirements_install", f"{source}: {explain(error)} The log has all of uv's output.")


def _service_python() -> Path:
    return Path(sys.executable).resolve()


def _default_lines(settings: EnvironmentSettings) -> list[str]:
    if settings.default != "trainer":
        return list(settings.default)
    required = map(Requirement, importlib.metadata.requires("gradient-jobs") or ())
    trainer = [one for one in required if one.marker is not None and one.marker.evaluate({"extra": "trainer"})]
    return [*_WITH_TRAINER, *(f"{one.name}{one.specifier}" for one in trainer)]
