"""Prepares the Python of a job that runs without a container: its requirements, its interpreter, its own layer."""

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from packaging.specifiers import SpecifierSet

from core.db.models.jobs import Job
from core.jobs.tracking import job_notes
from gradient_cli.errors import UsageError
from gradient_cli.workspace.dependencies.imports import ProgramImports, remedy_for
from gradient_cli.workspace.dependencies.requirements import Declared, RequirementOptions, find_declared
from worker.attempt.scratch import Scratch
from worker.backends.base import JobPython, LaunchError, Progress, may_have_launched
from worker.context import WorkerContext
from worker.environments.cache import site_packages
from worker.environments.default_environment import NAME, TRAINER_MODULES, service_python
from worker.environments.install_progress import INSTALLING, InstallProgress
from worker.environments.installer import UvError
from worker.environments.job_layer import create_layer, find_layer
from worker.environments.wanted import Wanted

_MAX_LISTED = 5


def prepare_python(
    context: WorkerContext,
    job: Job,
    scratch: Scratch,
    folder: Path,
    check: Callable[[], None],  # called periodically; raises if the start must be aborted
    confirm: Callable[[], None],
    progress: Progress,  # called with what is being done
) -> JobPython | None:
    """Install the requirements of a job, unless they are here, and create its own virtual environment.

    `confirm`: called before a virtual environment is replaced; raises if another worker holds the job now. Returns None
    for a job that has its Python from a container. Raises `LaunchError`: the requirements are refused or cannot be
    installed, or there is no such Python.
    """
    if context.backend(job.backend).capabilities.containers:
        return None
    if may_have_launched(scratch.control):
        return find_layer(scratch.root)
    preparation = _Preparation(context, job, scratch, check, progress)
    shared = preparation.install_packages(folder)
    return create_layer(scratch.root, shared, confirm)


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

    def install_packages(self, folder: Path) -> Path:
        programs = ProgramImports(self._scratch.workspace, folder, self._job.spec.command)
        declared = self._find_declared(folder, programs)
        python = self._find_python(declared)
        if declared is None or not declared.commands:
            shared = self._install_default(python, programs)
        else:
            shared = self._install_declared(python, declared, programs)
        packages = site_packages(shared)
        if text := _describe_undeclared(programs, lambda name: not _has_module(packages, name)):
            self._progress("provisioning", text)
            self._add_to_record(text)
        return shared

    def _find_declared(self, folder: Path, programs: ProgramImports) -> Declared | None:
        """Return the requirements of the workspace and of the job's options; of an image, it brings its own."""
        spec = self._job.spec
        if self._job.image is not None:
            default = self._context.default_environment.wanted(service_python(), trainer=True)
            lines = (*default.lines, *spec.packages)
            return Declared("--with", folder, lines, (), given=lines) if spec.packages else None
        offered = self._context.default_environment.offered
        requested = RequirementOptions(spec.packages, spec.requirements_file, spec.extras, spec.groups, offered)
        try:
            declared = find_declared(self._scratch.workspace, folder, spec.command, requested, programs)
        except UsageError as error:
            raise LaunchError("requirements_invalid", str(error)) from error
        if declared is not None and declared.left_out:
            self._add_to_record(
                f"{declared.source}: conda is not used here, so that these were not installed: "
                f"{', '.join(declared.left_out)[:500]}. Add what the job needs of them to its pip part, or use --with."
            )
        return declared

    def _install_declared(self, python: Path, declared: Declared, programs: ProgramImports) -> Path:
        wanted = Wanted(
            python=python,
            project_id=self._job.project_id,
            commands=declared.commands,
            contents=declared.contents,
            lines=declared.lines,
            given="".join(f"{line}\n" for line in declared.given),
            workspace=self._scratch.workspace.resolve(),
            folder=declared.folder,
            attempt=self._scratch.name if declared.local else None,
            declared=declared.digest,
        )
        began, progress = time.monotonic(), InstallProgress(declared.source, self._progress)
        try:
            folder, made = self._environments.use(
                wanted, self._scratch.root, progress.announce, progress, partial(self._watch, progress)
            )
        except UvError as error:
            undeclared = _describe_undeclared(programs, lambda name: not declared.names_module(name))
            raise self._failed(error, declared.source, undeclared) from error
        if made:
            self._progress(
                "provisioning", f"{progress.count or 'Python'} installed in {time.monotonic() - began:.0f} s"
            )
        return folder

    def _watch(self, progress: InstallProgress) -> None:
        self._check()
        progress.repeat()

    def _find_python(self, declared: Declared | None) -> Path:
        option = self._job.spec.python
        wanted = f"=={option}.*" if option else declared and declared.python
        if not wanted:
            return service_python()
        source = declared.source if declared and not option else "--python"
        try:
            if SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
                return service_python()
        except ValueError as error:  # InvalidSpecifier, or a number of thousands of digits
            problem = f"requires-python {wanted[:200]!r} is not a version specifier such as >=3.11."
            raise LaunchError("requirements_invalid", f"{source}: {problem}") from error
        installer = self._environments.installer
        found = installer.find_python(wanted)
        if found is None:
            text = f"downloading Python {option or wanted}"
            self._progress(INSTALLING, text)
            watch = partial(self._watch, InstallProgress(text, self._progress))
            found = installer.download_python(wanted, source, watch)
        return found

    def _install_default(self, python: Path, programs: ProgramImports) -> Path:
        """Return the default environment, or one without packages: with a note if they cannot be installed."""
        default, bare = self._context.default_environment, Wanted(python=python)
        trainer = self._job.image is not None or programs.imports_any(*TRAINER_MODULES)
        wanted = default.wanted(python, trainer=trainer)
        progress = InstallProgress(NAME, self._progress)
        if programs.runs_python or self._job.image is not None or self._environments.folder_of(wanted).is_dir():
            try:
                return default.use(wanted, self._scratch.root, progress, partial(self._watch, progress))
            except UvError as error:
                self._add_to_record(
                    f"The default packages, such as numpy, could not be installed on this server: {error} So the job "
                    "had Python's own library and pip only."
                )
        try:
            return self._environments.use(bare, self._scratch.root, lambda _: None, lambda _: None, self._check)[0]
        except UvError as error:
            raise self._failed(error, "Python") from error

    def _add_to_record(self, text: str) -> None:
        self._context.write(lambda session: job_notes.add(session, self._job, text))

    def _failed(self, error: UvError, source: str, undeclared: str = "") -> LaunchError:
        """Write uv's output to the job's log, and return the error for the user."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self._scratch.control / "log", flags, 0o600), "ab") as log:
            log.write(error.output.encode())
        message = f"{source}: {error} The log has all of uv's output. {undeclared}"
        return LaunchError("requirements_install", message.rstrip())


def _describe_undeclared(programs: ProgramImports, lacks: Callable[[str], bool]) -> str:
    """Name the imports of a command's programs that its environment lacks; nothing where they are a guess."""
    missing = [name for name in programs.imports if programs.certain and lacks(name)]
    if not missing:
        return ""
    listed = "; ".join(f"{name} ({programs.imports[name]}): {remedy_for(name)}" for name in missing[:_MAX_LISTED])
    more = f"; and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
    return f"Imported, but declared by no requirement: {listed}{more}. --with auto adds all that are known."


def _has_module(packages: Path, name: str) -> bool:
    path = packages.joinpath(*name.split("."))
    return path.is_dir() or any(path.parent.glob(f"{path.name}.*"))
