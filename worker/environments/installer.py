"""Runs uv: finds and downloads interpreters, and makes environments in the isolation of jobs.

uv gets the worker's own UV_* variables (such as an index), its proxy and its certificates, and nothing else of the
worker's environment. What it builds can read them.
"""

import importlib.metadata
import os
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

from core.formatting import MIB
from core.settings import Settings
from core.system.filesystem import describe_shortage
from core.system.untrusted_folders import measure_used_bytes
from core.system.uv_program import uv_program
from gradient_cli.workspace.dependencies.index_variables import for_uv
from worker.backends.base import WORKSPACE, LaunchError
from worker.backends.package_indexes import CONFIGURED, configuration_folders, configured_addresses, index_folders
from worker.backends.process.isolated_programs import (
    Check,
    Isolation,
    Limits,
    OnLine,
    OutOfMemory,
    Program,
    TooLong,
    run_here,
)
from worker.environments import check_requirements, compile_environment, finish_environment
from worker.environments.requirement_faults import explain, read_faults, summarize
from worker.environments.wanted import Wanted

BUILDING = "building"  # the folder of a project that its builds write to: their downloads, and what is being made
CACHE = "cache"  # the folder of the downloads in it
TEMPORARY = "temporary"  # the folder of a project that no build sees
_COMPILE_BYTES = 2 << 30  # a source of megabytes may take gigabytes
_FIND_SECONDS = 60.0
_INSTALL_SECONDS = 1800.0  # frameworks of gigabytes over a slow line; more is a server that hangs
_CHECK_SECONDS = 120.0
MEASURE_SECONDS = 10.0
_MEASURE_SHARE = 10  # the pause after a measurement, as a multiple of its time
_PASSED_NAMES = re.compile(rf"(?:{CONFIGURED.pattern}|(PATH|HOME|USER|LANG|LC_\w+|TMPDIR|XDG_\w+)\Z)", re.IGNORECASE)


class _Growth:
    """Ends what adds more to folders than a job may hold on disk."""

    def __init__(self, folders: list[Path], limit_mb: int) -> None:
        self._folders, self._limit_mb = folders, limit_mb
        self._before: int | None = None
        self._measure_at = 0.0

    def check(self) -> None:
        if not self._limit_mb or time.monotonic() < self._measure_at:
            return
        began = time.monotonic()
        used = measure_used_bytes(self._folders)
        self._measure_at = began + max(MEASURE_SECONDS, _MEASURE_SHARE * (time.monotonic() - began))
        if used is None or self._before is None:
            self._before = used
        elif used - self._before > self._limit_mb * MIB:
            added = (used - self._before) // MIB
            raise LaunchError(
                "requirements_install",
                f"installing them wrote {added:,} MiB to disk, but the limit of a job is {self._limit_mb:,} MiB",
            )


class UvError(Exception):
    """The text says for users why uv failed."""

    def __init__(self, problem: str, output: str) -> None:
        super().__init__(problem if problem.endswith((".", "…")) else f"{problem}.")
        self.output = output


class Installer:
    """uv, for the environments below `root`."""

    def __init__(self, root: Path, settings: Settings, shared: Callable[[], bool]) -> None:
        self._root = root
        self._shared = shared
        self._settings = settings

    @cached_property
    def isolation(self) -> Isolation:
        return Isolation(self._settings, self._shared)

    def find_python(self, wanted: str) -> Path | None:
        """Find an installed interpreter by a version specifier such as `==3.12.*`; None if there is none."""
        try:
            path = self._run("python", "find", "--no-project", "--no-python-downloads", wanted)
        except UvError:
            return None
        return Path(path.splitlines()[-1]).resolve() if path.strip() else None

    def download_python(self, wanted: str, source: str, check: Check) -> Path:
        """Download an interpreter by a version specifier, for which `source` asks.

        `check`: called periodically; an exception ends the download.
        """
        try:
            self._run("python", "install", "--no-bin", wanted, seconds=_INSTALL_SECONDS, check=check)
        except UvError as error:
            raise LaunchError(
                "python_unavailable",
                f"{source} requires Python {wanted}, which is not on the worker's machine and could not be "
                "downloaded: have an administrator install it, or use a --container that has it; --requirements "
                f"FILE reads another file, and --python selects another version. {error}",
            ) from error
        python = self.find_python(wanted)
        if python is None:
            raise LaunchError("python_unavailable", f"Python {wanted} was downloaded but does not run here")
        return python

    def make(self, environment: Path, wanted: Wanted, on_line: OnLine, check: Check) -> None:
        """Make an environment in a folder of the project's builds, beside which uv has its cache.

        uv and what it builds make that folder themselves: the service touches nothing in there meanwhile.
        """
        uv, python, building = uv_program(), wanted.python, environment.parent
        alone = not self.isolation.has_network
        copied = (*_folders_of_pip(), *wanted.copied)
        commands = [
            [uv, "venv", "--quiet", "--no-project", "--allow-existing", "--python", str(python), str(environment)],
            *([uv, *command] for command in wanted.commands),
            [str(python), "-I", "-S", finish_environment.__file__, str(environment), *map(str, copied)],
        ]
        folders = [(building, str(building))]
        if wanted.workspace is not None:
            folders.append((wanted.workspace, WORKSPACE))
            self.isolation.own(wanted.project_id, wanted.workspace)
        program = Program(
            words=["/bin/sh", "-c", " && ".join(map(shlex.join, commands))],
            folder=wanted.folder or building,
            folders=folders,
            beside=building.parent / TEMPORARY,
            project_id=wanted.project_id,
            readable=[uv, *map(str, (python.parent.parent, finish_environment.__file__, *copied)), *index_folders()],
            env=self._environment() | for_uv(wanted.variables) | _inside(environment),
            given=wanted.given.encode(),
            seconds=_INSTALL_SECONDS,
            limits=wanted.limits,
            reaches=[address for address, on_host in configured_addresses().items() if on_host or alone],
        )
        self._install(program, wanted, on_line, check)

    def _install(self, program: Program, wanted: Wanted, on_line: OnLine, check: Check) -> None:
        try:
            self._run_isolated(program, check, on_line)
        except UvError as error:
            problem = explain(error.output, self._find_faults(program, wanted, check), wanted.lines)
            raise UvError(self.isolation.explain(problem), error.output) from error

    def _find_faults(self, program: Program, wanted: Wanted, check: Check) -> list[dict[str, str]]:
        """Return the requirements that cannot be installed even by themselves."""
        script, uv, python = check_requirements.__file__, uv_program(), str(wanted.python)
        command = [python, "-I", "-S", script, uv]
        lines = "".join(f"{line}\n" for line in wanted.lines).encode()
        trial = replace(
            program, words=command, given=lines, readable=[*program.readable, script], seconds=_CHECK_SECONDS
        )
        try:
            return read_faults(self.isolation.run(trial, check)[1])
        except OutOfMemory:
            return []
        except TooLong as error:
            return read_faults(error.output)

    def compile(self, environment: Path, wanted: Wanted) -> None:
        """Write the bytecode of an environment, which jobs use meanwhile, unless it has some."""
        project_folder, python = environment.parent, wanted.python
        command = ["nice", "-n", "19", str(python), "-I", "-S", compile_environment.__file__, str(environment)]
        program = Program(
            words=[*command, str(project_folder / BUILDING / CACHE / "archive-v0")],
            folder=environment,
            folders=[(folder, str(folder)) for folder in (environment, project_folder / BUILDING)],
            beside=project_folder / TEMPORARY,
            project_id=wanted.project_id,
            readable=[str(python.parent.parent), compile_environment.__file__],
            seconds=_INSTALL_SECONDS,
            limits=Limits(f"compile-{environment.name}", _COMPILE_BYTES, 1.0),
        )
        self._run_isolated(program, lambda: None, lambda _: None)

    def _run_isolated(self, program: Program, check: Check, on_line: OnLine) -> None:
        growth = _Growth([path for path, _ in program.folders] + [program.beside], self._settings.disk.job_mb)

        def watch() -> None:
            check()
            growth.check()
            short = describe_shortage([self._root], self._settings.disk.min_free_mb)
            if short is not None:
                raise LaunchError("disk_full", short)

        try:
            code, output = self.isolation.run(program, watch, on_line)
        except TooLong as error:
            raise UvError(f"{error}.", error.output) from error
        except OutOfMemory as error:
            raise LaunchError("requirements_install", f"installing them: {error}") from error
        if code:
            raise UvError(summarize(output) or f"uv ended with exit code {code}.", output)

    def _environment(self) -> dict[str, str]:
        """Return uv's part of the worker's environment; in a sandbox, its folders are others."""
        names = CONFIGURED if self.isolation.problem is None else _PASSED_NAMES
        env = {name: value for name, value in os.environ.items() if names.match(name)}
        if self.isolation.problem is None:
            env["XDG_CONFIG_HOME"] = str(Path(configuration_folders()[-1]).parent)
        return env

    def _run(
        self, *arguments: str, seconds: float = _FIND_SECONDS, check: Check = lambda: None, **variables: str
    ) -> str:
        """Run uv as the worker's user, on nothing that users bring, and return its output."""
        self._root.mkdir(parents=True, exist_ok=True)
        env = {name: value for name, value in os.environ.items() if _PASSED_NAMES.match(name)}
        env |= {"UV_PYTHON_INSTALL_DIR": str(self._root / "python"), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        env |= {"UV_CACHE_DIR": str(self._root / "python-cache")} | variables
        try:
            code, output = run_here([uv_program(), *arguments], env, seconds, check)
        except TooLong as error:
            raise UvError(str(error), error.output) from error
        if code:
            raise UvError(summarize(output) or f"uv ended with exit code {code}", output)
        return output


def _inside(environment: Path) -> dict[str, str]:
    """Return the variables by which uv installs into an environment, whatever a project prefers."""
    return {
        "UV_CACHE_DIR": str(environment.parent / CACHE),
        "UV_PYTHON": str(environment / "bin" / "python"),
        "UV_PROJECT_ENVIRONMENT": str(environment),
        "UV_PYTHON_DOWNLOADS": "never",
        "VIRTUAL_ENV": str(environment),
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
    }


@cache
def _folders_of_pip() -> tuple[Path, ...]:
    """Return the service's own pip, with which `pip install` works in jobs; no index is needed."""
    distribution = importlib.metadata.distribution("pip")
    names = {file.parts[0] for file in distribution.files or () if file.parts[0].startswith("pip")}
    return tuple(Path(str(distribution.locate_file(name))) for name in sorted(names))
