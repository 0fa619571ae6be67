"""Functions that run as jobs: `@gradient_jobs.remote(machine_type="T4")`."""

from __future__ import annotations

import functools
import json
import os
import pickle
import platform
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gradient_cli import wheel
from gradient_cli.errors import ServerError, UsageError
from gradient_jobs.client import Client, Job
from gradient_jobs.errors import JobFailed, LibraryMissing
from gradient_jobs.options import JobOptions, build_spec
from gradient_jobs.remote_call import CALL, FACTS, RESULT, is_job
from gradient_jobs.submission import submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Unpack

R = TypeVar("R")

_PROGRAM = "gradient_call.zip"
_MAIN = b"from gradient_jobs.remote_call import run\n\nrun()\n"
_LIBRARIES = ("gradient_cli", "gradient_jobs", "pathspec", "cloudpickle")
_NOT_FOUND = 404
_REFUSED = ("command", "workspace", "include")


class RemoteTraceback(Exception):
    """The traceback of an exception inside of a job, as text; the exception's cause."""

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
        client: The server; None: that of `Client()`, at the first call.
        files: Files and folders below the current folder that the function needs; the job finds them under the same
            paths, and can import modules from them.
        requirements: Packages to install in the job, as lines of a requirements.txt.
        options: Those of `Client.jobs.create`, such as `machine_type`.
    """
    refused = [name for name in _REFUSED if name in options]
    if refused:
        raise UsageError(f"{refused[0]}: not possible with a function", hint="`files` names the files that it needs.")

    def decorate(function: Callable[..., R]) -> RemoteFunction[R]:
        return RemoteFunction(function, client, files, requirements, options)

    return decorate


class RemoteFunction(Generic[R]):
    """A function that runs as a job.

    Calling it submits a job, prints the job's output, and returns the function's result. Inside of a job, it is the
    plain function.
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
        """Run the function as a job, print the job's output, and return the result; the errors are those of `result`.

        Ctrl-C leaves the job running.
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
                    hint="Open files, connections and locks inside of the function, and pass plain data.",
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
    """A function that runs as a job, or did.

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
            JobFailed: The job ended without a result, for example because it was stopped; or the function raised an
                exception that cannot be loaded here, for example of a library that only the job has. Its cause is a
                RemoteTraceback then, too.
            TimedOut: The job has not ended in time; it goes on.
        """
        self.job.wait(timeout)
        try:
            outcome = pickle.loads(self.job.artifacts.read(RESULT))  # noqa: S301  of the user's own job
        except ServerError as error:
            if error.status != _NOT_FOUND:
                raise
            self.job.raise_for_state()
            raise JobFailed(f"job {self.job.id} left no result", self.job) from None
        if "error" not in outcome:
            value: R = outcome["value"]
            return value
        raised = _load_error(outcome["error"]) or JobFailed(f"{outcome['summary']} (in job {self.job.id})", self.job)
        raise raised from RemoteTraceback(outcome["traceback"])


def _load_error(data: bytes | None) -> Exception | None:
    """Return the function's exception; None if it could not be sent, or cannot be loaded here."""
    try:
        error: Exception | None = pickle.loads(data) if data else None  # noqa: S301  of the user's own job
    except Exception:  # noqa: BLE001  of any kind: it is only described then
        return None
    return error


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


def _fill(folder: Path, payload: bytes, function: Callable[..., Any], files: Sequence[str]) -> None:
    """Write the job's workspace: the files, and a program with the call and the libraries that it needs."""
    for given in files:
        path = os.path.relpath(given)
        if path == ".." or path.startswith("../") or not os.path.exists(path):
            problem = "does not exist" if not os.path.exists(path) else "is not below the current folder"
            raise UsageError(f"files: {given!r} {problem}", hint="Name files and folders below the current folder.")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(path):
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy2(path, target)
    facts = {"python": platform.python_version(), "function": function.__name__}
    call = {"__main__.py": _MAIN, FACTS: json.dumps(facts).encode(), CALL: payload}
    (folder / _PROGRAM).write_bytes(wheel.pack({**call, **wheel.package_files(*_LIBRARIES)}))
