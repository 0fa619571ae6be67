"""Prepares the Python of a job that runs without a container: its requirements, its interpreter, its own layer."""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from packaging.specifiers import SpecifierSet

from core.db.models.jobs import Job
from core.jobs import job_notes
from worker.attempt.scratch import Scratch
from worker.backends.base import JobPython, LaunchError, Progress, may_have_launched
from worker.context import WorkerContext
from worker.environments.declared_requirements import Declared, find_declared
from worker.environments.default_environment import NAME, service_python
from worker.environments.inline_metadata import invalid
from worker.environments.install_progress import INSTALLING, InstallProgress
from worker.environments.installer import UvError, explain
from worker.environments.job_layer import create_layer, find_layer
from worker.environments.wanted import Wanted


def prepare_python(
    context: WorkerContext,
    job: Job,
    scratch: Scratch,
    folder: Path,
    check: Callable[[], None],
    confirm: Callable[[], None],
    progress: Progress,
) -> JobPython | None:
    """Install the requirements of a job, unless they are here, and create its own virtual environment.

    Args:
        check: Called periodically; raises if the start must be aborted.
        confirm: Called before the virtual environment is created; raises if another worker holds the job now.
        progress: Called with what is being done.

    Returns:
        None for a job that has its Python from a container.

    Raises:
        LaunchError: The requirements are refused or cannot be installed, or there is no such Python.
    """
    if context.backend(job.backend).capabilities.containers:
        return None
    if may_have_launched(scratch.control):
        return find_layer(scratch.root)
    preparation = _Preparation(context, job, scratch, check, progress)
    declared = None
    if job.image is None:  # else the default packages stand for it, and an image brings its requirements itself
        declared = find_declared(scratch.workspace, folder, job.spec.command)
    shared = preparation.install_packages(declared)
    confirm()  # another worker may have started the job, which uses the layer that would be replaced here
    return create_layer(scratch.root, shared)


class _Preparation:
    def __init__(
        self, context: WorkerContext, job: Job, scratch: Scratch, check: Callable[[], None], progress: Progress
    ) -> None:
        self._context = context
        self._environments = context.environments
        self._job = job
        self._scratch = scratch
        self._check = check
        self._progress = progress

    def install_packages(self, declared: Declared | None) -> Path:
        python = self._find_python(declared)
        if declared is None or not declared.commands:
            return self._install_default(python)
        wanted = Wanted(
            python=python,
            project_id=self._job.project_id,
            commands=declared.commands,
            contents=declared.contents,
            lines=declared.lines,
            workspace=self._scratch.workspace.resolve(),
            folder=declared.folder,
            attempt=self._scratch.name if declared.local else None,
        )
        try:
            return self._install(wanted, declared.source)
        except UvError as error:
            raise self._failed(error, declared.source) from error

    def _find_python(self, declared: Declared | None) -> Path:
        option = self._job.spec.python
        wanted = f"=={option}.*" if option else declared and declared.python
        if not wanted:
            return service_python()
        try:
            if SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
                return service_python()
        except ValueError as error:  # InvalidSpecifier, or a number of thousands of digits
            source = declared.source if declared else "--python"
            problem = f"requires-python {wanted[:200]!r} is not a version specifier such as >=3.11."
            raise invalid(source, problem) from error
        installer = self._environments.installer
        found = installer.find_python(wanted)
        if found is None:
            self._progress(INSTALLING, f"downloading Python {option or wanted}")
            found = installer.download_python(wanted)
        return found

    def _install(self, wanted: Wanted, source: str) -> Path:
        began = time.monotonic()
        progress = InstallProgress(source, self._progress)

        def announce(waits: bool) -> None:  # noqa: FBT001 - called in one place
            self._progress(INSTALLING, f"{source} (another job is installing the same packages)" if waits else source)

        folder, made = self._environments.use(wanted, self._scratch.root, announce, progress, self._check)
        if made:
            self._progress(
                "provisioning", f"{progress.count or 'Python'} installed in {time.monotonic() - began:.0f} s"
            )
        return folder

    def _install_default(self, python: Path) -> Path:
        """Return the default environment; if its packages cannot be installed, one without packages, with a note."""
        default = self._context.default_environment
        wanted = default.wanted(python)
        if wanted.lines:
            why = default.wait(self._check, self._progress) if python == service_python() else None
            if why is None:
                try:
                    return self._install(wanted, NAME)
                except UvError as error:
                    why = explain(error)
            self._report_missing(why)
        try:
            return self._environments.use(
                Wanted(python=python), self._scratch.root, lambda _: None, lambda _: None, self._check
            )[0]
        except UvError as error:
            raise self._failed(error, "Python") from error

    def _report_missing(self, why: str) -> None:
        text = (
            f"The default packages, such as numpy and TensorFlow, could not be installed on this server: {why} So the "
            "job had Python's own library and pip only."
        )
        self._context.write(lambda session: job_notes.add(session, self._job, text))

    def _failed(self, error: UvError, source: str) -> LaunchError:
        """Write uv's output to the job's log, and return the error for the user."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self._scratch.control / "log", flags, 0o600), "ab") as log:
            log.write(error.output.encode())
        return LaunchError("requirements_install", f"{source}: {explain(error)} The log has all of uv's output.")
