"""Functions that run as jobs: `@gradient_jobs.remote(machine_type="T4")`."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import pickle
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gradient_cli import wheel
from gradient_cli.errors import ServerError, UsageError
from gradient_cli.workspace.dependencies.imports import distributions_of
from gradient_jobs.client import Client, Job
from gradient_jobs.errors import LibraryMissing
from gradient_jobs.options import JobOptions, build_spec
from gradient_jobs.records import JobFailed, ResultNotLoaded
from gradient_jobs.remote_call import CALL, FACTS, RESULT, is_job
from gradient_jobs.submission import submit

if TYPE_CHECKING:
    from typing_extensions import Unpack


R = TypeVar("R")
_UNKNOWN = "unknown"
LOG = logging.getLogger("gradient_jobs")

_PROGRAM = "gradient_call.zip"
_MAIN = b"from gradient_jobs.remote_call import run\n\nrun()\n"
_LIBRARIES = ("gradient_cli", "gradient_jobs", "pathspec", "cloudpickle")
_NOT_FOUND = 404
_REFUSED = ("command", "workspace", "include")


class RemoteTraceback(Exception):
    """The traceback of an exception inside a job, as text; it is the exception's cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def remote(
    *,
    client: Client | None = None,
    files: Sequence[str] = (),
    requirements: Sequence[str] = (),
    **options: Unpack[JobOptions],
) -> Callable[[Callable[..., R]], RemoteFunction[R]]:
    """Make a function run as a job when it is called.

    Args:
        client: The server; None: the server of `Client()`, created at the first call.
        files: Files and folders below the current folder that the function needs; the job finds them under the same
            paths, and can import modules from them.
        requirements: Packages to install in the job, as lines of a requirements.txt.
        options: The options of `Client.jobs.create`, such as `machine_type`.
    """
    refused = [name for name in _REFUSED if name in options]
    if refused:
        raise UsageError(f"{refused[0]}: not allowed for a function", hint="Name the files that it needs in `files`.")

    def decorate(function: Callable[..., R]) -> RemoteFunction[R]:
        return RemoteFunction(function, client, files, requirements, options)

    return decorate


class RemoteFunction(Generic[R]):
    """A function that runs as a job.

    Calling it submits a job, prints the job's output, and returns the function's result. Inside a job, it is the plain
    function.
    """

    def __init__(
        self,
        function: Callable[..., R],
        client: Client | None,
        files: Sequence[str],
        requirements: Sequence[str],
        options: JobOptions,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._client = client
        self._files = files
        self._requirements = requirements
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> R:  # noqa: ANN401  those of the function
        """Run the function as a job, print the job's output, and return the result.

        It raises the same errors as `result`. Ctrl-C leaves the job running.
        """
        if is_job():
            return self._function(*args, **kwargs)
        call = self.submit(*args, **kwargs)
        for line in call.job.follow():
            print(line, flush=True)
        return call.result()

    def local(self, *args: Any, **kwargs: Any) -> R:  # noqa: ANN401  those of the function
        return self._function(*args, **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> RemoteCall[R]:  # noqa: ANN401  those of the function
        """Submit the function as a job, and return without waiting for it.

        Raises:
            UsageError: The function or its arguments cannot be sent, or a file is not below the current folder.
            LibraryMissing: cloudpickle is not installed.
        """
        try:
            import cloudpickle  # noqa: PLC0415  optional
        except ImportError:
            raise LibraryMissing("a function as a job", "cloudpickle") from None
        with _by_value(cloudpickle, self._function.__module__):
            try:
                payload: bytes = cloudpickle.dumps((self._function, args, kwargs))
            except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
                raise UsageError(
                    f"{self._function.__name__}: cannot be sent to a job: {error}",
                    hint="Open files, connections and locks inside the function, and pass plain data.",
                ) from error
        with tempfile.TemporaryDirectory(prefix="gradient-") as folder:
            _fill(Path(folder), payload, self._function, self._files)
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            options: dict[str, Any] = {"name": self._function.__name__, "python": version, **self._options}
            if self._requirements:
                options["packages"] = [*self._requirements, *options.get("packages", ())]
            if self._options.get("container"):
                del options["python"]  # it is the image's
            options |= {"command": f"python {_PROGRAM}", "workspace": folder}
            api = (self._client or Client())._api  # noqa: SLF001  of this package
            return RemoteCall(Job(api, submit(api, *build_spec(options, filed=False))))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without its client, which has a key and a connection.
        return RemoteFunction, (self._function, None, self._files, self._requirements, self._options)


class RemoteCall(Generic[R]):
    """A function that is running or has run as a job.

    Attributes:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self.job = job

    def result(self, timeout: float | None = None) -> R:
        """Wait for the job's end, and return what the function returned.

        The result is unpickled, which can run code: as with any pickle, trust the job that wrote it.

        Args:
            timeout: Seconds; None: no limit.

        Raises:
            Exception: The one that the function raised; its cause is a RemoteTraceback.
            ResultNotLoaded: What the function returned cannot be unpickled here, for example because a package is
                missing or has another version. It stays in the job's artifact gradient_result.pickle.
            JobFailed: The job ended without a result, for example because it was stopped; or the function raised an
                exception that cannot be loaded here, for example from a library that only the job has. In that case,
                too, its cause is a RemoteTraceback.
            TimedOut: The job has not ended in time; it keeps running.
        """
        self.job.wait(timeout)
        try:
            stored = io.BytesIO(self.job.artifacts.read(RESULT))
        except ServerError as error:
            if error.status != _NOT_FOUND:
                raise
            self.job.raise_for_state()
            raise JobFailed(f"job {self.job.id} left no result", self.job) from None
        outcome: dict[str, Any] = {}
        try:
            outcome = pickle.load(stored)  # noqa: S301  of the user's own job
            if "error" not in outcome:
                value: R = pickle.load(stored)  # noqa: S301  the same
                return value
        except Exception as error:
            raise _not_loaded(self.job, error, outcome.get("versions", {})) from error
        raised = _load_error(outcome["error"]) or JobFailed(f"{outcome['summary']} (in job {self.job.id})", self.job)
        raise raised from RemoteTraceback(outcome["traceback"])


def _not_loaded(job: Job, error: Exception, versions: dict[str, str]) -> ResultNotLoaded:
    """Return the error for a result that cannot be loaded here. `versions`: those of the job."""
    here = {name: _version_here(name) for name in versions}
    differing = [name for name, version in versions.items() if here[name] not in {version, _UNKNOWN}]
    there = ", ".join(f"{name} {versions[name]}" for name in differing)
    missing = ", ".join(f"{name} {here[name]}" if here[name] else f"no {name}" for name in differing)
    text = f"job {job.id}: its result cannot be loaded here: {type(error).__name__}: {error}."
    text += f" The job has {there}; here: {missing}." if differing else ""
    names = {name: (*distributions_of(name), name)[0] for name in differing if name != "Python"}
    packages = " ".join(f"{distribution}=={versions[name]}" for name, distribution in names.items())
    advice = (
        f"Run `pip install {packages}` here" if packages else "Return plain data, such as numbers, lists and strings"
    )
    fetch = f"the value is kept in its artifact: `gradient-cli jobs artifacts get {job.id} {RESULT}`"
    return ResultNotLoaded(text, job, f"{advice}, and call result() again; {fetch}.")


def _version_here(module: str) -> str:
    """Return the version of a module of this program, empty if it is missing."""
    if module == "Python":
        return platform.python_version()
    for distribution in (*distributions_of(module), module):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "" if importlib.util.find_spec(module) is None else _UNKNOWN


def _load_error(data: bytes | None) -> Exception | None:
    """Return the function's exception; None if it could not be sent, or cannot be loaded here."""
    try:
        error: object = pickle.loads(data) if data else None  # noqa: S301  of the user's own job
    except Exception:  # noqa: BLE001  of any kind: it is only described then
        return None
    return error if isinstance(error, Exception) else None


@contextmanager
def _by_value(cloudpickle: Any, name: str) -> Iterator[None]:  # noqa: ANN401  a module
    """Let a function's own module be sent with it, unless it is installed or the main program, which is sent anyway."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or name == "__main__" or "site-packages" in Path(file).parts:
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _special(folder: str, names: list[str]) -> list[str]:
    """Return what is left out of a folder, and name it unless it is a cache."""
    left_out = []
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            # A link to a folder that it is in would be followed for ever.
            special = os.path.islink(path) and f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(path)}/")
        else:
            special = not os.path.isfile(path)
        if special:
            LOG.warning(
                "files: %s was left out: it is not a file, or it is a broken link or a link to a folder above it",
                path,
            )
        if special or name == "__pycache__":
            left_out.append(name)
    return left_out


def _fill(folder: Path, payload: bytes, function: Callable[..., Any], files: Sequence[str]) -> None:
    """Write the job's workspace: the files, and a program with the call and the libraries that it needs."""
    for given in files:
        path = os.path.relpath(given)
        if path == ".." or path.startswith("../") or not os.path.exists(path):
            problem = "does not exist" if not os.path.exists(path) else "is not below the current folder"
            raise UsageError(f"files: {given!r} {problem}", hint="Name files and folders below the current folder.")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (os.path.isdir(path) or os.path.isfile(path)):
            raise UsageError(f"files: {given!r} is neither a file nor a folder", hint="Leave it out.")
        try:
            if os.path.isdir(path):
                shutil.copytree(path, target, ignore=_special, dirs_exist_ok=True)
            else:
                shutil.copy2(path, target)
        except OSError as error:  # shutil.Error lists what failed
            failed = error.args[0] if isinstance(error, shutil.Error) else [(path, target, error)]
            problem = f"files: {given!r} cannot be read: {failed[0][0]}: {failed[0][2]}"
            raise UsageError(problem, hint="Fix the permissions, or name other files.") from error
    facts = {"python": platform.python_version(), "function": function.__name__}
    call = {"__main__.py": _MAIN, FACTS: json.dumps(facts).encode(), CALL: payload}
    (folder / _PROGRAM).write_bytes(wheel.pack({**call, **wheel.package_files(*_LIBRARIES)}))
