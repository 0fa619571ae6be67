"""The contract of whatever runs jobs.

Calls return soon, but for `launch`. Loops, time limits, retries and state belong to `worker.attempt`; a backend
translates. What a job prints, and how it ended, is in the files of its control folder, whichever backend runs it:
`log`, `start.lock`, `started` (the wrapper's pid), `exit`, `metrics.jsonl` (written by `worker/wrapper/run.sh`, except
the last), and `stopping` once `stop` was called. `RESERVED` are there before the wrapper is, filled with spaces.
`command` is what the wrapper runs.
"""

import errno
import logging
import os
import secrets
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from core.image_registry import Login
from core.jobs import options

logger = logging.getLogger(__name__)

Handle = dict[str, Any]
"""How a launched job is found again: plain JSON with a `version`, storable in the job's row.

Under `cards` it may hold what the job's cards are: for each its index, and, as far as is known, uuid, name, memory
(bytes), serial, driver and cuda.
What is known of the image it runs stands in it as `image`, and of its TPU as `tpu`: zone, name, type and url.
"""

WRAPPER = Path(__file__).parent.parent / "wrapper" / "run.sh"
"""What every job runs under."""

STOPPING = "stopping"
"""The control file that `stop` leaves: whoever adopts the job knows that it did not end by itself."""

RESERVED = ("started", "exit")
"""Control files that the wrapper overwrites in place, so that a full disk cannot keep it from that."""

WORKSPACE = options.WORKSPACE
ARTIFACTS, STORAGE, CONTROL = "/artifacts", "/storage", "/.gradient/control"
DATASETS = f"{STORAGE}/datasets"
"""Where a job finds its folders when the backend mounts them."""

Progress = Callable[[str, str | None], None]
"""Told a phase and what is being done in it; raises if the start has to be given up."""

_MAX_CONTROL_BYTES = 64


class FindLogin(Protocol):
    """How to sign in to the registry of an image; None: nobody says. Raises BackendError if that cannot be read."""

    def __call__(self, image: str, *, push: bool = False) -> Login | None:
        """The sign-in that may be used to pull the image, or to push it."""


@dataclass(frozen=True, slots=True)
class PortMap:
    """A port of the host that leads to one of the job's."""

    external: int
    internal: int


def _nobody(image: str, *, push: bool = False) -> None:
    del image, push


@dataclass(frozen=True, slots=True)
class Build:
    """An image to be built from the workspace.

    Attributes:
        dockerfile: Path of its Dockerfile in the workspace.
        target: Reference that it is pushed to, or None.
    """

    dockerfile: str
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Everything a backend needs to start one attempt; plain values.

    Attributes:
        name: Unique for job and attempt, so that a lost reply is found again by it.
        command: For the shell.
        container: Image reference, or None.
        env: The command's whole environment, but for what the machine itself sets (PATH, HOME).
        workspace: Folder on this host that the job works in (`/paperspace`).
        artifacts: Folder on this host for what the job leaves (`/artifacts`).
        project_id: Whose job it is.
        storage: Folder on this host that the project's jobs share (`/storage`).
        datasets: Folder on this host that all jobs may read (`/storage/datasets`).
        control: Folder on this host for the wrapper's files.
        cards: The host's cards that are the job's alone, by index or UUID.
        cpus: Limit of CPUs, or None.
        memory_bytes: Limit of memory, or None.
        stop_grace: Seconds between SIGTERM and SIGKILL when the machine itself takes the job down.
        shared_mem_bytes: Size of /dev/shm, or None.
        working_dir: Where the command begins, as the job finds it; None: in its workspace.
        user: `UID:GID`, or None for the host's choice.
        pull_policy: Always, IfNotPresent or Never; None: as the host's settings say.
        build: The image that is built for it, in place of `container`; None: none is.
        ports: Ports of the host that are the job's alone. What is not a machine of its own has the job listen on them
            (`GRADIENT_PORT_<internal>` says so); else they lead to the job's own.
        login: How to sign in to the registry of its image.
    """

    name: str
    job_id: str
    attempt: int
    project_id: str
    machine_type: str
    command: str
    container: str | None
    env: dict[str, str] = field(repr=False)  # it may hold secrets
    workspace: Path
    artifacts: Path
    storage: Path
    datasets: Path
    control: Path
    cards: tuple[str, ...]
    cpus: float | None
    memory_bytes: int | None
    stop_grace: float
    shared_mem_bytes: int | None = None
    working_dir: str | None = None
    user: str | None = None
    pull_policy: str | None = None
    build: Build | None = None
    ports: tuple[PortMap, ...] = ()
    login: FindLogin = _nobody


@dataclass(frozen=True, slots=True)
class Exit:
    """How a job ended.

    Attributes:
        code: Exit code, or None if there is none (the machine went away, say).
        reason: A name in REASONS where the code alone does not tell; None: it does.
        detail: What is known beside it.
    """

    code: int | None
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """How a backend runs jobs; a worker makes a job's folders and environment by it."""

    containers: bool
    """It runs the job in the container that was asked for."""
    mounts: bool
    """The job finds its folders at WORKSPACE, ARTIFACTS, STORAGE and CONTROL; else only by its environment."""


class BackendError(Exception):
    """The backend could not do it.

    Args:
        reason: A name in REASONS.
        detail: For the user.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Backend(Protocol):
    """Runs jobs on one kind of machine."""

    capabilities: Capabilities

    def unready(self) -> str | None:
        """Why no job can be started here now, for the operator; None: it can."""

    def cards(self) -> tuple[str, ...] | None:
        """Accelerator cards that this backend can give to jobs; None: it counts none."""

    def taken_cards(self, cards: Collection[str]) -> dict[str, str]:
        """Those of these cards that something uses now, and what that is, in words; they are no job's of ours."""

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        """Create the attempt under its name, call `confirm`, then start it.

        May be repeated by anyone at any time: what is there is found by its name, and runs once. The only call that
        may take long (an image is pulled, say); it tells its progress.

        Args:
            spec: What to start.
            confirm: Checks the lease between create and start; raises if it is lost. Nothing is started then.
            progress: What is being done until then.

        Raises:
            BackendError: It cannot be started.
        """

    def poll(self, handle: Handle) -> Exit | None:
        """How the job ended; None while it runs."""

    def stop(self, handle: Handle, *, grace: bool) -> None:
        """Ask all of the job's processes to end (SIGTERM), or, without grace, end them (SIGKILL)."""

    def sample(self, handle: Handle) -> dict[str, float]:
        """What the job uses now: cpu_percent (100 is one CPU), memory_bytes, processes, …; empty if unknown.

        Of its cards, numbered from 0: gpu0_percent (100 is all of it), gpu0_memory_bytes, gpu0_watts, gpu0_celsius.
        """

    def layer_bytes(self, handle: Handle) -> int:
        """Bytes on disk that the job has written outside of its folders.

        Raises:
            BackendError: That cannot be known now.
        """

    def destroy(self, handle: Handle) -> None:
        """Remove whatever `launch` made, outputs excepted; destroying the missing is success."""

    def list_owned(self) -> list[Handle]:
        """Everything on this host that some `launch` of ours made and that is still there."""


@dataclass(frozen=True, slots=True)
class Unused:
    """An image that a job brought to this host, and that nothing uses now.

    Attributes:
        reference: Its name, else its id.
        bytes: Its size; layers that it shares with others count in each.
        used_at: When a job last used it, Unix seconds.
        built: Whether it was built here.
    """

    reference: str
    bytes: int
    used_at: float
    built: bool


@runtime_checkable
class ImageKeeper(Protocol):
    """A backend that runs jobs in images, and has them on this host."""

    def build(self, spec: LaunchSpec, progress: Progress) -> str:
        """Build the attempt's image, push it if it has a target, run nothing; the image's digest.

        Raises:
            BackendError: It cannot be built or pushed.
        """

    def images(self) -> tuple[str, ...] | None:
        """References of the images that are here, those that jobs used last first; None: the engine does not tell."""

    def data_folder(self) -> Path | None:
        """The folder of this host that images and containers lie in; None: it is not known now, or not here."""

    def prune_images(self, *, everything: bool, dry_run: bool = False) -> list[Unused]:
        """Remove images that jobs brought and nothing uses, the longest unused first.

        Args:
            everything: All of them; else only what the disk and their age ask for.
            dry_run: Only say which; how far the disk would need it cannot be known before, so all that may go.

        Raises:
            BackendError: The engine does not answer.
        """


class CloudBackend(Backend, Protocol):
    """A backend whose machines are made in a cloud, and bill until somebody deletes them."""

    def remove_strays(self, owned: Callable[[str, int], bool], over: Callable[[str], bool]) -> int:
        """Delete what is there of ours and no job's, found by what was written down and by its labels.

        Args:
            owned: Whether a worker runs this attempt of this job.
            over: Whether this is a job of this service's that has ended for good.

        Returns:
            How much was deleted, or found to be gone.
        """


def read_control(control: Path, name: str) -> str | None:
    """The first line of a small file that the wrapper wrote; None if it is not there (yet), or not whole.

    The job's own code can write in this folder too: links are not followed, nothing but a regular file is read,
    and no more of it than the wrapper ever writes.
    """
    try:
        descriptor = os.open(control / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        line, end, _ = os.read(descriptor, _MAX_CONTROL_BYTES).decode("ascii", "replace").partition("\n")
        return line if end else None
    finally:
        os.close(descriptor)


def handle_of(job_id: str, attempt: int, control: Path) -> Handle:
    """What every handle has: enough for `destroy`."""
    name = f"{job_id}-{attempt}"
    return {"version": 1, "name": name, "job_id": job_id, "attempt": attempt, "control": str(control)}


def note_control(control: Path, name: str, detail: str) -> None:
    """Leave a note beside the wrapper's files; the job, which can write there too, must not lead it elsewhere.

    Any file of that name is replaced, not written: it may be a link, or another name of a file outside.
    """
    path = control / name
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{detail}\n".encode("ascii", "replace"))
        finally:
            os.close(descriptor)
    except OSError:  # the disk is full, say: what was to be done to the job is done all the same
        logger.warning("not_noted", exc_info=True, extra={"note": name})


def write_command(spec: LaunchSpec) -> None:
    """Leave the command where the wrapper reads it, whole at any moment: others may launch the attempt as well.

    A link that an earlier start left there is replaced, not followed.

    Raises:
        BackendError: It cannot be written.
    """
    new = spec.control / f"command-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o644)  # the folder is closed to others; the job may be another user than we are
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{spec.command}\n")
        new.replace(spec.control / "command")
    except OSError as error:
        raise BackendError("disk_full" if error.errno == errno.ENOSPC else "launch_failed", str(error)) from error


def read_exit_code(control: Path) -> int | None:
    """The exit code that the wrapper wrote, 0 to 255; None if there is none or it makes no sense."""
    text = read_control(control, "exit")
    if text is None or not text.isdecimal():
        return None
    code = int(text)
    return code if code <= 255 else None  # noqa: PLR2004 - POSIX exit codes are bytes
