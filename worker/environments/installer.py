"""Runs uv: finds and downloads interpreters, and installs packages.

uv gets the worker's own UV_* variables (such as an index), its proxy and its certificates, and nothing else of the
worker's environment.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

from uv import find_uv_bin

from core.settings import Settings
from core.system.filesystem import describe_shortage
from worker.backends.base import LaunchError
from worker.environments.declared_requirements import LockedProject

OnLine = Callable[[str], None]
"""Called with each line that uv prints."""
Check = Callable[[], None]
"""Called periodically; an exception that it raises ends uv."""

_CHECK_SECONDS = 0.5
_FIND_SECONDS = 60.0
_MAX_OUTPUT_BYTES = 256 * 1024
_MAX_DETAIL = 600
_BLOCK_BYTES = 64 * 1024
_PASSED_NAMES = re.compile(
    r"(UV_\w+|(ALL|HTTPS?|NO)_PROXY|SSL_CERT_(FILE|DIR)|PATH|HOME|USER|LANG|LC_\w+|TMPDIR|XDG_\w+)\Z", re.IGNORECASE
)
# The dependencies are in uv.lock. A project with a workspace of its own belongs to none in a parent folder.
_PROJECT = '[project]\nname = "{}"\nversion = "0"\n[tool.uv.workspace]\n'
# An index or a wheel's address: both may lead uv to other addresses.
_NAMES_URL = re.compile(r"^--(index-url|extra-index-url|find-links) |@\s*https?:", re.MULTILINE | re.IGNORECASE)
_NEEDS_BUILD = re.compile(r"building (from )?source|--no-build|no usable wheels", re.IGNORECASE)


class UvError(Exception):
    """uv failed.

    Attributes:
        output: Everything that uv printed.
    """

    def __init__(self, problem: str, output: str) -> None:
        super().__init__(problem)
        self.output = output


class Installer:
    """uv, with its folders below `root`.

    Args:
        root: The folder for downloaded packages (`cache`) and interpreters (`python`).
        settings: The service's settings.
    """

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root = root
        self._settings = settings
        self.cache = root / "cache"

    def find_python(self, wanted: str, check: Check) -> Path | None:
        """Find an installed interpreter by a version specifier such as `==3.12.*`; None if there is none."""
        try:
            found = self._run(["python", "find", "--no-project", "--no-python-downloads", wanted], check, _FIND_SECONDS)
        except UvError:
            return None
        return Path(found.splitlines()[-1]).resolve() if found.strip() else None

    def download_python(self, wanted: str, check: Check) -> Path:
        """Download an interpreter by a version specifier.

        Raises:
            LaunchError: There is none, or it cannot be downloaded.
        """
        seconds = self._settings.environments.install_seconds
        try:
            self._run(["python", "install", "--no-bin", wanted], check, seconds)
        except UvError as error:
            problem = _summarize(error.output) or str(error)
            raise LaunchError(
                "python_unavailable",
                f"Python {wanted} is not on the worker's machine and could not be downloaded; request another version, "
                f"or have an administrator install this one: {problem}",
            ) from error
        found = self.find_python(wanted, check)
        if found is None:
            raise LaunchError("python_unavailable", f"Python {wanted} was downloaded, but does not run here")
        return found

    def export_lock(self, project: LockedProject, scratch: Path, python: Path, check: Check) -> list[str]:
        """Return the requirements that a project's uv.lock has, as lines of a requirements file.

        uv sees neither the project's folder nor its pyproject.toml: from there it would read those of workspaces, in
        parent folders and wherever members and links lead, and quote them in errors.

        Args:
            project: The project.
            scratch: Folder for temporary files, which jobs cannot write.
            python: The interpreter.
            check: Called periodically; an exception ends uv.

        Raises:
            UvError: The lock file cannot be used.
        """
        words = ["export", "--quiet", "--frozen", "--no-emit-project", "--no-default-groups"]
        words += ["--no-header", "--no-annotate", "--no-hashes", "--no-config", "--no-python-downloads"]
        with TemporaryDirectory(dir=scratch, prefix="lock-") as folder:
            Path(folder, "pyproject.toml").write_text(_PROJECT.format(project.name), encoding="utf-8")
            Path(folder, "uv.lock").write_text(project.lock, encoding="utf-8")
            words += ["--project", folder, "--python", str(python)]
            return self._run(words, check, _FIND_SECONDS).splitlines()

    def install(self, folder: Path, python: Path, on_line: OnLine, check: Check, lock: int) -> None:
        """Make a virtual environment in a folder, with the packages of its requirements.txt, if it has one.

        Args:
            folder: The folder.
            python: The interpreter.
            on_line: Called with each line that uv prints.
            check: Called periodically; an exception ends the installation.
            lock: Descriptor that uv keeps open, and so locked, even if this worker dies.

        Raises:
            UvError: It failed.
        """
        venv = ["venv", "--quiet", "--no-project", "--allow-existing", "--no-python-downloads", "--python", str(python)]
        self._run([*venv, str(folder)], check, _FIND_SECONDS)
        if not (folder / "requirements.txt").exists():
            return
        words = ["pip", "install", "--python", str(folder), "--strict"]
        # pip's own rule for several indexes, which requirements files are written for.
        words += ["--index-strategy", "unsafe-best-match"]
        if not self._settings.environments.builds:
            words += ["--only-binary", ":all:"]
        words += ["--requirements", str(folder / "requirements.txt")]
        if (folder / "constraints.txt").exists():
            words += ["--constraints", str(folder / "constraints.txt")]
        output = self._run(words, check, self._settings.environments.install_seconds, on_line, (lock,))
        if _NAMES_URL.search((folder / "requirements.txt").read_text(encoding="utf-8")):
            _refuse_local_wheels(folder, output)

    def compile(self, packages: Path, python: Path, check: Check, lock: int) -> None:
        """Compile packages, without running any of their code: an environment's own Python would, by `.pth` files.

        Files that are not valid for this Python, such as templates, stay as they are.

        Args:
            packages: Their folder.
            python: The interpreter below the environment.
            check: Called periodically; an exception ends it.
            lock: As in `install`.

        Raises:
            UvError: It took too long.
        """
        words = [str(python), "-I", "-S", "-m", "compileall", "-qq", "-j", "0", str(packages)]
        self._run_program(words, {}, check, self._settings.environments.install_seconds, passed=(lock,))

    def clean_cache(self) -> None:
        """Remove downloaded packages; those of environments stay, because the environments link them."""
        self._run(["cache", "clean"], lambda: None, _FIND_SECONDS)

    def _run(
        self,
        words: Sequence[str],
        check: Check,
        seconds: float,
        on_line: OnLine = lambda _: None,
        passed: tuple[int, ...] = (),
    ) -> str:
        """Run uv to its end and return its output."""
        self._root.mkdir(parents=True, exist_ok=True)
        env = {name: value for name, value in os.environ.items() if _PASSED_NAMES.match(name)}
        env |= {"UV_CACHE_DIR": str(self.cache), "UV_PYTHON_INSTALL_DIR": str(self._root / "python")}
        env |= {"UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        code, output = self._run_program([find_uv_bin(), *words], env, check, seconds, on_line, passed)
        if code:
            raise UvError(f"uv ended with exit code {code}", output)
        return output

    def _run_program(
        self,
        words: Sequence[str],
        env: dict[str, str],
        check: Check,
        seconds: float,
        on_line: OnLine = lambda _: None,
        passed: tuple[int, ...] = (),
    ) -> tuple[int, str]:
        """Run a program to its end; return its exit code and its output."""
        with subprocess.Popen(  # noqa: S603 - words of ours
            words,
            cwd="/",  # not in a folder whose pyproject.toml would configure it
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=passed,
            start_new_session=True,
        ) as process:
            try:
                output = self._read(process, check, seconds, on_line)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, output

    def _read(self, process: "subprocess.Popen[bytes]", check: Check, seconds: float, on_line: OnLine) -> str:
        assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
        until, data, line = time.monotonic() + seconds, b"", b""
        while True:
            check()
            if time.monotonic() > until:
                raise UvError(f"it was not done within {seconds:g} seconds", data.decode(errors="replace"))
            short = describe_shortage([self._root], self._settings.disk.min_free_mb)
            if short is not None:
                raise LaunchError("disk_full", short)
            if not wait([process.stdout.fileno()], _CHECK_SECONDS):
                continue
            block = os.read(process.stdout.fileno(), _BLOCK_BYTES)
            if not block:
                return data.decode(errors="replace")
            data = (data + block)[-_MAX_OUTPUT_BYTES:]
            *lines, line = (line + block).split(b"\n")
            for one in lines:
                on_line(one.decode(errors="replace").strip())


def _refuse_local_wheels(environment: Path, output: str) -> None:
    """Refuse packages that were files of this machine: uv follows an index's link to any file (`file:///…`).

    uv has no option against that, but it stores the time of such a file beside the package.
    """
    for found in environment.glob("lib/python*/site-packages/*.dist-info/uv_cache.json"):
        name = found.parent.name.removesuffix(".dist-info")
        problem = f"{name} is a file of the worker's machine, which an address in requirements may not lead to."
        raise UvError(problem, f"{output}\nerror: {problem}\n")


def explain(error: UvError) -> str:
    """Say for the user what uv's output means."""
    text = _summarize(error.output) or str(error)
    if _NEEDS_BUILD.search(error.output):
        return (
            f"{text} Only packages with a wheel for this machine are installed before the command. Install the others "
            "in the job's command: `pip install …`; or have an administrator set GRADIENT_ENVIRONMENTS__BUILDS=true."
        )
    return text


def _summarize(output: str) -> str:
    """Return the errors in uv's output on one line."""
    lines = [line.strip() for line in output.splitlines()]
    first = next((number for number, line in enumerate(lines) if line.startswith("error")), None)
    if first is None:
        return " ".join(lines[-3:])[-_MAX_DETAIL:]
    causes = [line.partition("cause: ")[2] or line for line in lines[first:] if line and not line.startswith("hint")]
    text = ": ".join(causes).removeprefix("error: ")
    return text if len(text) <= _MAX_DETAIL else f"{text[: _MAX_DETAIL - 1]}…"
