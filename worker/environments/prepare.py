"""Prepares the Python of a job that runs without a container: its requirements, its interpreter, its own layer."""

import os
import platform
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from packaging.specifiers import SpecifierSet

from core.db.models.jobs import Job
from core.jobs.tracking import job_notes
from core.system.filesystem import write_atomically
from core.system.untrusted_folders import measure_used_bytes, opened_beneath, opened_folder, remove_tree
from core.system.uv_program import uv_program
from gradient_cli import wheel
from gradient_cli.errors import UsageError
from gradient_cli.workspace.dependencies.declared import Declared, RequirementOptions
from gradient_cli.workspace.dependencies.imports import ProgramImports, distributions_of, normal_name, remedy_for
from gradient_cli.workspace.dependencies.index_variables import hide_passwords
from gradient_cli.workspace.dependencies.requirements import find_declared, pinned_python
from gradient_cli.workspace.dependencies.workspace_files import is_outside
from worker.attempt.job_environment import path_in_workspace
from worker.attempt.scratch import Scratch
from worker.backends.base import JobPython, LaunchError, Progress
from worker.backends.process.isolated_programs import Limits
from worker.context import WorkerContext
from worker.environments.cache import LINK, interpreter_of, site_packages
from worker.environments.default_environment import TRAINER_MODULES, service_python
from worker.environments.install_progress import INSTALLING, InstallProgress
from worker.environments.installer import UvError
from worker.environments.wanted import Wanted
from worker.runner.control_files import may_have_launched

_MAX_LISTED = 5
_NVIDIA = Path("/proc/driver/nvidia")
FOLDER = "python"  # its name in a scratch folder
_PIP = '#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n'
_PTH = "import site; site.addsitedir({!r})\n"
_FOR_UV = "for-uv"


def prepare_python(
    context: WorkerContext,
    job: Job,
    scratch: Scratch,
    variables: Callable[[], Mapping[str, str]],  # the job's own, with the values of secrets
    check: Callable[[], None],  # called periodically; raises if the start must be aborted
    confirm: Callable[[], None],
    progress: Progress,  # called with what is being done
) -> JobPython:
    """Install the requirements of a job, unless they are here, and create its own virtual environment.

    `confirm`: called before a virtual environment is replaced; raises if another worker holds the job now. Raises
    `LaunchError`: the requirements are refused or cannot be installed, or there is no such Python.
    """
    if may_have_launched(scratch.control):
        return find_layer(scratch.root)
    preparation = _Preparation(context, job, scratch, variables, check, progress)
    shared = preparation.install_packages()
    return create_layer(scratch.root, shared, confirm, for_uv=preparation.for_uv)


class _Preparation:
    def __init__(
        self,
        context: WorkerContext,
        job: Job,
        scratch: Scratch,
        variables: Callable[[], Mapping[str, str]],
        check: Callable[[], None],
        progress: Progress,
    ) -> None:
        self._context = context
        self._environments = context.environments
        self._job = job
        self._scratch = scratch
        self._workspace = scratch.workspace.resolve()
        self._variables = variables
        self._check = check
        self._progress = progress

        # whether `uv run` and `uv sync` use what is installed here, and not an environment that they make
        self.for_uv = False

    def install_packages(self) -> Path:
        folder = self._scratch.workspace / path_in_workspace(self._job.spec, self._scratch)
        programs = ProgramImports(self._scratch.workspace, folder, self._job.spec.command)
        start = programs.start_folder
        declared = self._find_declared(folder, programs)
        python = self._find_python(declared, start)
        if declared is None or not declared.commands:
            shared = self._install_default(python, programs)
        else:
            shared = self._install_declared(python, declared)
        if declared is not None and not (".venv/" in programs.shell or programs.uv.others):  # uv makes one
            self.for_uv = any((above / "pyproject.toml").is_file() for above in self._above(start))

        def lacks(module: str) -> bool:
            return not (has_module(site_packages(shared), module) or (declared and declared.names_module(module)))

        if text := _describe_undeclared(programs, lacks):
            self._progress("provisioning", text)
            self._add_to_record(text)
        return shared

    def _above(self, folder: Path) -> list[Path]:
        """Return a folder of the workspace and those above it, up to the workspace."""
        return [above for above in (folder, *folder.parents) if above.is_relative_to(self._workspace)]

    def _find_declared(self, folder: Path, programs: ProgramImports) -> Declared | None:
        """Return the requirements of the workspace and of the job's options; of an image, it brings its own."""
        spec = self._job.spec
        if self._job.image is not None:
            default = self._context.default_environment.wanted(service_python(), trainer=True)
            lines = (*default.lines, *spec.packages)
            return Declared("--with", folder, lines, (), given=lines) if spec.packages else None
        offered = self._context.default_environment.offered
        requested = RequirementOptions(
            spec.packages, spec.requirements_file, spec.extras, spec.groups, offered, spec.env_vars
        )
        try:
            declared = find_declared(programs, requested)
        except UsageError as error:
            raise LaunchError("requirements_invalid", str(error)) from error
        for text in declared.notes if declared is not None else ():
            self._add_to_record(hide_passwords(text))
        return declared

    def _install_declared(self, python: Path, declared: Declared) -> Path:
        wanted = Wanted(
            python=python,
            project_id=self._job.project_id,
            commands=declared.commands,
            contents=declared.contents,
            lines=declared.lines,
            given="".join(f"{line}\n" for line in declared.input),
            workspace=self._workspace,
            folder=declared.folder,
            attempt=self._scratch.name if declared.local else None,
            limits=Limits.of(self._scratch.name, self._job.spec),
            declared=declared.digest,
            variables=self._variables_for(declared),
        )
        began, progress = time.monotonic(), InstallProgress(declared.source, self._progress, self._check)
        try:
            folder, made = self._environments.use(wanted, self._scratch.root, progress)
        except UvError as error:
            raise self._failed(error, declared.source, declared.variables) from error
        if made:
            self._progress(
                "provisioning", f"{progress.count or 'Python'} installed in {time.monotonic() - began:.0f} s"
            )
            if text := _describe_unused_gpu_build(site_packages(folder), declared):
                self._add_to_record(text)
        return folder

    def _variables_for(self, declared: Declared) -> dict[str, str]:
        """Return the job's own variables that an installation uses, and where a `.netrc` in the workspace is."""
        values = self._variables() if declared.variables else {}
        variables = {name: values[name] for name in declared.variables if name in values}
        files = (above / ".netrc" for above in self._above(declared.folder))
        logins = next((file for file in files if file.is_file() and not is_outside(self._workspace, file)), None)
        if logins is not None and "NETRC" not in variables:
            variables["NETRC"] = os.path.relpath(logins, declared.folder)
        return variables

    def _find_python(self, declared: Declared | None, folder: Path) -> Path:
        option, required = self._job.spec.python, declared.python if declared else None
        pinned = None if option or self._job.image else pinned_python(self._workspace, folder)
        if pinned is None:
            source = declared.source if declared and not option else "--python"
            return self._provide_python(f"=={option}.*" if option else required, source)
        allowed = f",{required}" if required else ""
        try:
            return self._provide_python(f"=={pinned}.*{allowed}", ".python-version")
        except LaunchError as error:
            if error.reason != "python_unavailable":
                raise
            python = self._provide_python(required, declared.source if declared else "")
            self._add_to_record(
                f".python-version asks for Python {pinned}, which is not on the worker's machine and could not be "
                "downloaded: the job uses another version."
            )
            return python

    def _provide_python(self, wanted: str | None, source: str) -> Path:
        """Find or download an interpreter by a version specifier; None: any."""
        if not wanted:
            return service_python()
        try:
            if SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
                return service_python()
        except ValueError as error:  # InvalidSpecifier, or a number of thousands of digits
            problem = f"requires-python {wanted[:200]!r} is not a version specifier such as >=3.11."
            raise LaunchError("requirements_invalid", f"{source}: {problem}") from error
        installer = self._environments.installer
        python = installer.find_python(wanted)
        if python is None:
            text = f"downloading Python {self._job.spec.python or wanted}"
            self._progress(INSTALLING, text)
            python = installer.download_python(wanted, source, InstallProgress(text, self._progress, self._check).check)
        return python

    def _install_default(self, python: Path, programs: ProgramImports) -> Path:
        """Return the default environment, or one without packages: with a note if they cannot be installed."""
        default, bare = self._context.default_environment, Wanted(python=python)
        # PyTorch's own writer for TensorBoard needs no TensorFlow.
        modules = TRAINER_MODULES[: -1 if programs.imports_any("torch") else None]
        trainer = self._job.image is not None or programs.imports_any(*modules)
        wanted = default.wanted(python, trainer=trainer)
        if programs.runs_python or self._job.image is not None or self._environments.folder_of(wanted).is_dir():
            try:
                return default.use(wanted, self._scratch.root, self._progress, self._check)
            except UvError as error:
                self._add_to_record(
                    f"The default packages, such as numpy, could not be installed on this server: {error} The job "
                    "therefore had only Python's standard library and pip."
                )
        try:
            silent = InstallProgress("Python", lambda *_: None, self._check)
            return self._environments.use(bare, self._scratch.root, silent)[0]
        except UvError as error:
            raise self._failed(error, "Python") from error

    def _add_to_record(self, text: str) -> None:
        self._context.write(lambda session: job_notes.add(session, self._job, text))

    def _failed(self, error: UvError, source: str, variables: Sequence[str] = ()) -> LaunchError:
        """Write uv's output to the job's log, and return the error for the user."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self._scratch.control / "log", flags, 0o600), "ab") as log:
            log.write(hide_passwords(error.output).encode())
        used = f" The job's variables {', '.join(variables)} were used." if variables else ""
        message = f"{source}: {error}{used} The log has all of uv's output."
        return LaunchError("requirements_install", hide_passwords(message))


def _describe_undeclared(programs: ProgramImports, lacks: Callable[[str], bool]) -> str:
    """Name the imports of a command's programs that nothing brings; nothing where they are a guess."""
    by_remedy: dict[str, str] = {}
    for module in filter(lacks, programs.undeclared):
        by_remedy.setdefault(remedy_for(module), module)
    if not by_remedy:
        return ""
    described = [f"{module} ({programs.imports[module]}): {remedy}" for remedy, module in by_remedy.items()]
    more = f"; and {len(described) - _MAX_LISTED} more" if len(described) > _MAX_LISTED else ""
    listed = "; ".join(described[:_MAX_LISTED])
    return f"Imported but not declared as a requirement: {listed}{more}. --with auto adds all known packages."


def _describe_unused_gpu_build(packages: Path, declared: Declared) -> str:
    """Describe PyTorch with NVIDIA's libraries on a machine that has none of its GPUs; else an empty text."""
    if _NVIDIA.exists() or not (any(packages.glob("torch-*")) and any(packages.glob("nvidia_*"))):
        return ""
    size = measure_used_bytes([packages]) or 0
    remedy = "list the index https://download.pytorch.org/whl/cpu in pyproject.toml and lock again"
    return (
        f"{declared.source}: PyTorch was installed in its CUDA build ({size / 1e9:.1f} GB with its libraries), but "
        "this machine has no NVIDIA GPU. For the smaller CPU build, "
        f"{remedy if declared.sync else 'submit with -e UV_TORCH_BACKEND=cpu'}."
    )


def has_module(packages: Path, module: str) -> bool:
    *parents, last = module.split(".")
    with opened_folder(packages) as folder:
        with suppress(OSError), opened_beneath(folder, parents) as parent:  # a build may have left links
            if any(name.partition(".")[0] == last for name in os.listdir(parent)):  # noqa: PTH208 - a descriptor
                return True
        names = {normal_name(name).replace("-", "_") for name in distributions_of(module)}
        metadata = (name for name in os.listdir(folder) if name.endswith(".dist-info"))  # noqa: PTH208 - too
        return any(name.partition("-")[0].lower() in names for name in metadata)


def create_layer(scratch: Path, shared: Path, confirm: Callable[[], None], *, for_uv: bool = False) -> JobPython:
    """Create the virtual environment of an attempt; one that an earlier start left is replaced.

    Only the job may write it, and `pip install` in the job installs into it. It is above the packages that jobs share,
    which a `.pth` file adds, and is removed with the attempt. Making it starts no process.

    `shared`: the environment below it. `confirm`: called before one is replaced; raises if another worker may use it.
    `for_uv`: whether it is the environment of the project that `uv run` finds in the workspace.
    """
    folder = scratch / FOLDER
    if folder.exists():
        confirm()
        remove_tree(folder)
    interpreter, below = interpreter_of(shared), site_packages(shared)
    version = below.parent.name
    programs, packages = folder / "bin", Path(folder, "lib", version, "site-packages")
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    (folder / "lib64").symlink_to("lib")
    (folder / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    (programs / "python").symlink_to(interpreter)
    (programs / "pip").write_text(_PIP)
    (programs / "pip").chmod(0o755)
    (programs / "uv").symlink_to(uv_program())
    for name in ("python", "pip"):  # hard links: a file of its own is what creating and removing one costs
        (programs / f"{name}3").hardlink_to(programs / name)
        (programs / version.replace("python", name)).hardlink_to(programs / name)
    # The SDK after the packages below, whose own gradient_jobs takes precedence.
    library = _provide_library(shared, packages)
    (packages / "gradient.pth").write_text(f"{_PTH.format(str(below))}{library}\n", encoding="utf-8")
    if for_uv:
        (folder / _FOR_UV).touch()
    return JobPython(folder, shared, interpreter, for_uv)


def _provide_library(shared: Path, packages: Path) -> Path:
    """Return the archive of the SDK: one for all jobs of an environment, unless that is another user's."""
    content = wheel.build_library()
    name = f"gradient_jobs-{zlib.crc32(content):08x}.zip"
    if not (shared / name).exists():
        try:
            write_atomically(shared / name, content, durable=False, mode=0o644)
        except OSError:
            write_atomically(packages / name, content, durable=False, mode=0o644)
            return packages / name
    return shared / name


def find_layer(scratch: Path) -> JobPython:
    """Return the virtual environment that an attempt was launched with."""
    shared = (scratch / LINK).readlink()
    folder = scratch / FOLDER
    return JobPython(folder, shared, interpreter_of(shared), (folder / _FOR_UV).exists())
