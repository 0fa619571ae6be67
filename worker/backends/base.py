"""The interface of backends, which launch jobs.

All calls except `build`, `launch` and `await_end` return soon. Loops, time limits, retries and state belong to
`worker.attempt.pipeline`; a backend translates. A job's output and its exit code are in files of its control folder, on
every backend (`worker/runner/control_files.py`).
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from core.catalogue.backends import Capabilities
from core.catalogue.registry_hosts import RegistryCredentials
from core.formatting import MIB
from core.jobs.spec import container_options as options
from core.jobs.spec.job_spec import JobSpec
from core.system.filesystem import FULL_DISK_ERRNOS, write_atomically
from worker.backends.metric_sockets import MetricSockets
from worker.runner.control_files import KEEP_FILE, LAUNCHED_FILE
from worker.runner.stop_signal import signal_number

Handle = dict[str, Any]
"""Identifies a launched job: plain JSON with a `version`, storable in the job's row.

`notes` are for the job's user.
`gpus` may describe the job's GPUs: for each its index and, as far as known, uuid, name, memory (bytes), serial, driver
and cuda. `image` describes the image it runs, and `allocation` its TPU or job in Slurm, as in `Attempt`.
`sandboxed` and `own_network` are set for a process of this host: whether it runs in a sandbox, and whether that has a
network of its own, into which `ports` (external, internal) of this host lead; `leads_out`:
whether that reaches more than localhost, unless the job wants none. `over` is added to destroy what an
attempt left that is over, when nobody stores its outputs any more.
"""

WRAPPER = Path(__file__).parent.parent / "wrapper" / "run.sh"  # the script that every job runs under

LOGIN_PATH = WRAPPER.with_name("login_path.sh")  # the profile that keeps the job's PATH in login shells of containers

WORKSPACE, ARTIFACTS = options.WORKSPACE, options.ARTIFACTS
FIRST_UID = 1_879_048_192  # of the user IDs of projects, on a host whose worker runs as root; nothing else uses them
TOKEN_PORT = 8473  # of this host, where jobs beside their TPU ask for fresh tokens; 0: they keep the first
DEFAULT_SHM_BYTES = 1 << 30  # of shared memory (/dev/shm) of a job that requests none
STORAGE, CONTROL = "/storage", "/.gradient/control"
DATASETS = f"{STORAGE}/datasets"  # paths of a job's folders when the backend mounts them
CACHES = {
    "HF_HOME": "cache/huggingface",
    "TORCH_HOME": "cache/torch",
    "PIP_CACHE_DIR": "cache/pip",
    "UV_CACHE_DIR": "cache/uv",
}
"""Variables of libraries that download, each with its folder in the storage, where it outlives the job."""

Progress = Callable[[str, str | None], None]  # called with a phase and a detail; raises if the start must be aborted


class FindLogin(Protocol):
    """Finds the login for an image's registry; returns None if there is none.

    Raises LaunchError if the stored login cannot be read.
    """

    def __call__(self, image: str, *, push: bool = False) -> RegistryCredentials | None:
        """Return the login to pull the image, or to push it."""


@dataclass(frozen=True, slots=True)
class PortForward:
    external: int
    internal: int


def _mib(count: int | None) -> int | None:
    return count * MIB if count is not None else None


def no_check() -> None:
    """Abort nothing."""


def _no_login(image: str, *, push: bool = False) -> None:
    del image, push


@dataclass(frozen=True, slots=True)
class ImageBuild:
    dockerfile: str
    target: str | None = None  # reference that it is pushed to, or None


@dataclass(frozen=True, slots=True)
class JobPython:
    """The Python of a job that runs without a container."""

    # virtual environment of this attempt alone, in its scratch folder: the only one that the job may write
    folder: Path
    shared: Path  # virtual environment of the requirements, which jobs share and none may write
    interpreter: Path
    for_uv: bool = False  # whether `uv run` and `uv sync` use it for the project in the workspace

    def environment(self) -> dict[str, str]:
        """Return the variables that activate it; PATH lacks the folders of the system."""
        of_uv = {"UV_PROJECT_ENVIRONMENT": str(self.folder), "UV_NO_SYNC": "1"} if self.for_uv else {}
        path = f"{self.folder / 'bin'}{os.pathsep}{self.shared / 'bin'}"
        return {"PATH": path, "VIRTUAL_ENV": str(self.folder), **of_uv}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Everything a backend needs to start one attempt; plain values.

    `env`: the command's whole environment, except what the machine itself sets (PATH, HOME).
    """

    name: str  # unique for job and attempt, so that a launch whose reply was lost can be found by it
    job_id: str
    attempt: int
    project_id: str
    machine_type: str
    job_spec: JobSpec = field(repr=False)
    container: str | None  # image reference, or None
    env: dict[str, str] = field(repr=False)  # it may hold secrets
    workspace: Path  # folder on this host that the job works in (`/paperspace`)
    artifacts: Path  # folder on this host for the job's outputs (`/artifacts`)
    storage: Path  # folder on this host that the project's jobs share (`/storage`)
    datasets: Path  # folder on this host that all jobs can read (`/storage/datasets`)
    control: Path
    gpus: tuple[str, ...]
    working_dir: str | None = None  # folder that the command starts in, as the job sees it; None: its workspace
    build: ImageBuild | None = None  # the image to build for it, in place of `container`; None: none
    # Ports of the host reserved for the job. They are forwarded to the job's own ports; a job without a network of its
    # own listens on them directly, at the ports in `GRADIENT_PORT_<internal>`.
    ports: tuple[PortForward, ...] = ()
    login: FindLogin = _no_login
    python: JobPython | None = None  # its Python, if it runs without a container
    rank: int = 0  # among the nodes of its array
    host_network: bool = False  # whether it is a node that others on other hosts reach
    is_first_node: bool = False  # whether other nodes join its network
    first_node: tuple[str, int] | None = None  # job and attempt of rank 0, whose network it shares; None: its own
    check: Callable[[], None] = no_check  # raises if the start must be aborted; cheap, and usable from any thread
    resume: Callable[[], None] = no_check  # has an attempt that waits elsewhere launched again
    together: bool = False  # whether it may be submitted with other members of its array, by `submit_members`
    before_launch: Callable[[], None] = no_check  # called when its folders are ready for the command

    def base_handle(self) -> Handle:
        return base_handle(self.job_id, self.attempt, self.control)

    @property
    def memory_bytes(self) -> int | None:
        return _mib(self.job_spec.memory_mb)

    @property
    def stop_signal(self) -> int:
        """Number of the signal of a stop, if no image names another."""
        return signal_number(self.job_spec.stop_signal)

    @property
    def warning_signal(self) -> int | None:
        """Number of the signal of the warning before its time is up; None: it wants no warning."""
        warning = self.job_spec.warning()
        return None if warning is None else signal_number(warning.signal)

    @property
    def shared_mem_bytes(self) -> int | None:
        return _mib(self.job_spec.shared_mem_mb)


@dataclass(frozen=True, slots=True)
class Exit:
    code: int | None  # exit code, or None if there is none (for example, the machine was lost)
    reason: str | None = None  # a name in REASONS if the code alone is not enough; else None
    detail: str | None = None
    memory_bytes: int | None = None  # the memory in use that ended it; None if it ended otherwise
    at: float | None = field(default=None, compare=False)  # Unix time of its end; None: that of its exit file


class WaitsElsewhere(Exception):
    """An attempt waits in a queue elsewhere; its `resume` is called when `launch` is to be repeated."""


class LaunchError(Exception):
    """An attempt cannot be set up, started, measured or removed."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    @classmethod
    def of(cls, error: OSError) -> Self:
        return cls("disk_full" if error.errno in FULL_DISK_ERRNOS else "launch_failed", str(error))


class Backend(Protocol):
    """Launches jobs on one kind of machine: five calls, which may be repeated, and what it can do.

    Backends inherit from this class. What follows `owned` has a default.
    """

    capabilities: Capabilities

    @abstractmethod
    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        """Create the attempt under its name, call `confirm`, then start it.

        Any worker may repeat this at any time: what exists is found by its name, and runs once. This is the only call
        that may take long, for example to pull an image; it reports its progress.

        Args:
            confirm: Checks the lease between create and start; raises if it is lost, and then nothing is started.
            progress: Called with what is being done until then.
        """

    @abstractmethod
    def ended(self, handle: Handle) -> Exit | None:
        """Return how the job ended; None while it is alive.

        One answer to both: between two calls, what knows the exit (an engine, a machine) could be gone.
        """

    @abstractmethod
    def signal(self, handle: Handle, *, grace: bool) -> None:
        """Send the signal of a stop to its processes, in the order of `termination.py`, or SIGKILL to all at once."""

    @abstractmethod
    def destroy(self, handle: Handle) -> None:
        """Remove everything that `launch` created, except outputs; a missing job is not an error."""

    @abstractmethod
    def owned(self) -> list[Handle]:
        """List everything on this host that a launch of this service created and that still exists."""

    shared: Callable[[], bool] = staticmethod(lambda: True)
    """Returns whether more than one key is valid here, so that jobs must be kept from one another."""

    def warn(self, handle: Handle, number: int) -> None:
        """Send a signal to the main programs that handle it; called again until there is a WARNED_FILE."""

    def taken_at(self, handle: Handle) -> float | None:
        """Return when the machine will be taken away, by the monotonic clock; None: nobody has said so."""
        del handle
        return None

    def unavailable_reason(self) -> str | None:
        """Return the reason, for the operator, that no job can be started here now; None if jobs can be started."""
        return None

    def has_containers(self) -> bool:
        """Return whether jobs can have containers here, if they are optional and not everywhere."""
        return False

    def gpus(self) -> tuple[str, ...] | None:
        """Return the GPUs that this backend can give to jobs; None if it does not count any."""
        return None

    def taken_gpus(self, gpus: Collection[str]) -> dict[str, str]:
        """Return which of these GPUs something uses now, with a description; no job of ours holds them."""
        del gpus
        return {}

    def broken_gpus(self, gpus: Collection[str]) -> dict[str, str]:
        """Return which of these GPUs are broken, and how that shows: now, or since a job was launched with them."""
        del gpus
        return {}

    def await_end(self, handle: Handle, seconds: float) -> None:
        """Wait until a job that was just launched here has ended; at most this long, or not at all."""

    def sample(self, handle: Handle) -> dict[str, float]:
        """Return the job's current usage: cpu_percent (100 is one CPU), memory_bytes, processes, …; empty if unknown.

        For its GPUs, numbered from 0: gpu0_percent (100 is all of it), gpu0_memory_bytes, gpu0_watts, gpu0_celsius. For
        the chips of a TPU: tpu0_percent, tpu0_memory_bytes.
        """
        del handle
        return {}

    def node_exits(self, handle: Handle) -> dict[str, int | None]:
        """Return the exit code of each host of the job's machine that has ended, by its rank; None: there is none."""
        del handle  # most machines are one host
        return {}

    def host_address(self) -> str | None:
        """Return the address at which this backend's jobs reach the worker's host; None: they cannot, or not now."""
        return "127.0.0.1"  # of processes; in containers that is another

    def layer_bytes(self, handle: Handle) -> int:
        """Return the bytes on disk that the job has written outside of its folders."""
        del handle  # what is written elsewhere cannot be attributed to the job
        return 0

    def written_bytes(self, handle: Handle) -> int:
        """Return the bytes that the job's processes have written so far, to files or not; 0 if unknown."""
        del handle
        return 0

    def submit_members(self, names: Collection[str], limit: int | None) -> None:
        """Submit the members of an array that wait for it, of which at most `limit` may run at once."""
        del names, limit  # each was launched by itself

    def metric_sockets(self) -> MetricSockets | None:
        """Return the sockets that jobs send metrics to, each its own; None: there are no such jobs."""
        return None

    def release(self, handle: Handle) -> None:
        """Give back what costs money by the second, once the command has ended; `destroy` follows, and tries again."""
        del handle  # nothing here does


@dataclass(frozen=True, slots=True)
class UnusedImage:
    """An image that was pulled or built for a job and is not used now."""

    reference: str
    bytes: int
    used_at: float  # time of the last use by a job, Unix seconds
    built: bool


@runtime_checkable
class ImageBackend(Protocol):
    """A backend that runs jobs in images, and stores the images on this host."""

    def build(self, spec: LaunchSpec, progress: Progress) -> str:
        """Build the attempt's image, push it if it has a target, and run nothing; return the image's digest."""

    def data_folder(self) -> Path | None:
        """Return this host's folder of images and containers; None if it is unknown now, or not on this host."""

    def prune_images(self, *, everything: bool, dry_run: bool = False) -> list[UnusedImage]:
        """Remove unused images that were pulled or built for jobs, the longest unused first.

        Args:
            everything: Remove all of them, not only those due by disk usage and age.
            dry_run: Only return them. How many the disk would need cannot be known in advance, so all candidates are
                returned.
        """


class CloudBackend(Backend, Protocol):
    """A backend whose machines are created in a cloud, and cost money until they are deleted."""

    def remove_orphans(self, is_owned: Callable[[str, int], bool], is_finished: Callable[[str], bool]) -> int:
        """Delete this service's machines that no job owns, found by the resource inventory and by label.

        `is_finished`: whether this job of this service has ended, and all of its outputs are stored. Returns the number
        of machines deleted, or found to be deleted already.
        """


def base_handle(job_id: str, attempt: int, control: Path) -> Handle:
    """Build the fields that every handle has: enough for `destroy`."""
    name = f"{job_id}-{attempt}"
    return {"version": 1, "name": name, "job_id": job_id, "attempt": attempt, "control": str(control)}


def scratch_handle(attempts: Path, job_id: str, attempt: int) -> Handle:
    """Build the handle of an attempt whose folders are in this one, where those of all attempts are."""
    return base_handle(job_id, attempt, attempts / f"{job_id}-{attempt}" / "control")


def mark_launched(spec: LaunchSpec) -> None:
    """Record that the attempt's command is about to be started. Raises `LaunchError`: this cannot be recorded."""
    spec.before_launch()
    try:
        (spec.control.parent / LAUNCHED_FILE).touch()
    except OSError as error:
        raise LaunchError.of(error) from error


def write_command(spec: LaunchSpec) -> None:
    """Write the command for the wrapper, atomically: another worker may launch the attempt at the same time.

    A link that an earlier start left in its place is replaced, not followed.
    """
    command = f"{spec.job_spec.command}\n".encode()
    try:
        # The folder is closed to others; the job may run as another user, and its first line may name a program (#!).
        write_atomically(spec.control / "command", command, durable=False, mode=0o755)
        if spec.job_spec.keep_on_fail is not None:
            write_atomically(spec.control / KEEP_FILE, b"", durable=False, mode=0o644)
    except OSError as error:
        raise LaunchError.of(error) from error
