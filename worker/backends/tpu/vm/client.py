"""Runs a job on a TPU VM: stages it in the bucket, and follows what the VM reports there.

The reports become the files of the job's control folder, as if it ran here. Each part of the output is named by its
start offset, and the file here shows where to continue: so nothing is lost or duplicated, whichever side dies.
"""

import json
import logging
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from core.errors import GradientError, StoreUnavailable
from core.settings import Settings
from worker.backends.base import (
    STOPPING_FILE,
    WORKSPACE,
    WRAPPER,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    read_control,
    read_exit_code,
    write_control_file,
)
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.storage.job_storage import OpenBucket, region_of
from worker.backends.tpu.vm.agent import HEARTBEAT_STEPS, PART_BYTES, STREAMED_FILES

if TYPE_CHECKING:
    from worker.backends.tpu.storage import JobBucket, Mailbox

logger = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_THREADS = 4
_KILL_FILE, _END_FILE = "killed", "vm_ended"
_FAILURES = frozenset({"image_pull", "launch_failed", "stopped_by_user"})
_FINAL_STEPS = 15  # allowed for the report of an end after the job was killed


@dataclass(slots=True)
class _VmStatus:
    polled_at: float = 0.0
    poll: Future[None] | None = None
    alive: bytes | None = None
    answered_at: float = 0.0
    renewed_at: float = 0.0
    requested: str | None = None
    killed_at: float | None = None


class VmAgentClient:
    """See the module; usable from any thread.

    Args:
        opened: Opens the bucket of a region.
        settings: The service's.
    """

    def __init__(self, opened: OpenBucket, settings: Settings) -> None:
        self._open = opened
        self._settings = settings.tpu
        self._image = settings.docker.default_image
        self._renew_seconds = settings.bucket.token_seconds / 6  # an outage of Google's for half an hour does no harm
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tpu-vm")
        self._lock = threading.Lock()
        self._statuses: dict[str, _VmStatus] = {}

    def startup(self, spec: LaunchSpec, zone: str) -> str:
        """Return the start-up script of a VM in this zone; it contains the URL of the job's token.

        Raises:
            LaunchError: The URL cannot be signed.
        """
        bucket = self._open(region_of(zone))
        mailbox = bucket.mailbox(spec.job_id, spec.attempt)
        try:
            token_url = bucket.token_url(spec.job_id, spec.attempt)
        except GradientError as error:
            raise _to_launch_error(error) from error
        settings = {
            "bucket": mailbox.bucket,
            "prefix": mailbox.prefix,
            "model": mailbox.prefix.partition("/vm/")[0] + "/model/",
            "seconds": self._settings.vm_poll_seconds,
            "token_url": token_url,
        }
        return (
            (_HERE / "startup.sh")
            .read_text()
            .replace("@SETTINGS@", json.dumps(settings))
            .replace("@WRAPPER@", WRAPPER.read_text().rstrip())
            .replace("@AGENT@", "\n".join(map(_shell_heredoc, sorted((_HERE / "agent").glob("*.py")))))
        )

    def stage(self, spec: LaunchSpec, zone: str, env: dict[str, str]) -> None:
        """Upload the job for the VM; nothing is billed yet.

        Raises:
            LaunchError: It cannot be uploaded.
        """
        mailbox = self._mailbox(zone, spec.job_id, spec.attempt)
        job = _describe_job(spec, spec.container or self._image, env)
        with tempfile.NamedTemporaryFile(suffix=".tar.gz") as packed:
            with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
                archive.add(spec.workspace, arcname=".")
            packed.flush()
            try:
                mailbox.put("workspace.tar.gz", Path(packed.name))
                mailbox.put("job.json", json.dumps(job).encode())
            except GradientError as error:
                raise _to_launch_error(error) from error

    def wait_until_running(
        self, spec: LaunchSpec, zone: str, report: Callable[[str], None], find_failure: Callable[[], NodeFailure | None]
    ) -> None:
        """Wait until the VM runs the job.

        Args:
            spec: The attempt.
            zone: The VM's zone.
            report: Called with what is waited for; raises if the start must be aborted.
            find_failure: Returns the reason that the VM cannot run the job any more, if there is one.

        Raises:
            LaunchError: The VM does not run the job.
        """
        bucket = self._open(region_of(zone))
        mailbox = bucket.mailbox(spec.job_id, spec.attempt)
        until = time.monotonic() + self._settings.probe_seconds
        renew_at = 0.0
        while True:
            if time.monotonic() >= renew_at and _renew_token(bucket, spec):
                renew_at = time.monotonic() + self._renew_seconds
            status = _read_status(mailbox)
            phase = status.get("phase")
            if phase == "running":
                return
            if phase == "failed":
                reason = status.get("reason")  # sent by the VM: only known reasons are accepted
                raise LaunchError(str(reason) if reason in _FAILURES else "launch_failed", str(status.get("detail")))
            failure = find_failure()
            if failure is not None:
                raise LaunchError(failure.reason, failure.detail)
            if phase is None and time.monotonic() >= until:
                raise LaunchError("tpu_unreachable", "the TPU VM has not told of itself in the bucket")
            report(f"the TPU VM pulls {status['detail']}" if phase == "pulling" else "the TPU VM starts up")
            time.sleep(self._settings.poll_seconds)

    def poll(self, handle: Handle) -> Exit | None:
        """Return how the job ended, if known here; reads the bucket in another thread."""
        control = Path(handle["control"])
        code, reason = read_exit_code(control), read_control(control, _END_FILE)
        if code is not None or reason is not None:
            return Exit(code, None if code is not None else "process_lost")
        status = self._status_of(handle)
        with self._lock:
            is_due = time.monotonic() - status.polled_at >= self._settings.vm_poll_seconds
            if is_due and (status.poll is None or status.poll.done()):
                status.polled_at = time.monotonic()
                status.poll = self._pool.submit(self._read_reports, handle, status)
        if read_control(control, _KILL_FILE) is not None:
            status.killed_at = status.killed_at or time.monotonic()
            if time.monotonic() - status.killed_at >= _FINAL_STEPS * self._settings.vm_poll_seconds:
                return Exit(None, "process_lost")  # the VM is lost, or does not respond
        return None

    def silent(self, handle: Handle) -> NodeFailure | None:
        """Return a problem if the VM has not reported for long."""
        status = self._status_of(handle)
        quiet = time.monotonic() - status.answered_at if status.answered_at else 0.0
        if quiet < self._settings.unhealthy_seconds + 2 * HEARTBEAT_STEPS * self._settings.vm_poll_seconds:
            return None
        return NodeFailure("tpu_unhealthy", f"{handle['name']}: the TPU VM has told nothing for {quiet:.0f} s")

    def stop(self, handle: Handle, *, grace: bool) -> None:
        """Request that the job end; the VM reads the request at its next step."""
        write_control_file(Path(handle["control"]), STOPPING_FILE if grace else _KILL_FILE, "asked to end")
        self._status_of(handle).polled_at = 0.0

    def destroy(self, zone: str, job_id: str, attempt: int) -> None:
        """Remove the staged files, even where the bucket is kept: they may hold secrets."""
        with self._lock:
            self._statuses.pop(f"{job_id}-{attempt}", None)
        try:
            self._mailbox(zone, job_id, attempt).clear()
        except GradientError:  # the job's whole prefix is removed after this, with retries
            logger.info("bucket_not_emptied", exc_info=True)

    def _mailbox(self, zone: str, job_id: str, attempt: int) -> "Mailbox":
        return self._open(region_of(zone)).mailbox(job_id, attempt)

    def _status_of(self, handle: Handle) -> _VmStatus:
        with self._lock:
            return self._statuses.setdefault(handle["name"], _VmStatus(answered_at=time.monotonic()))

    def _read_reports(self, handle: Handle, status: _VmStatus) -> None:
        try:
            bucket = self._open(region_of(handle["zone"]))
            if time.monotonic() - status.renewed_at >= self._renew_seconds or not status.renewed_at:
                bucket.renew_token(handle["job_id"], handle["attempt"])
                status.renewed_at = time.monotonic()
            self._exchange(bucket.mailbox(handle["job_id"], handle["attempt"]), Path(handle["control"]), status)
        except (GradientError, OSError):
            logger.warning("tpu_vm_not_looked_at", exc_info=True, extra={"job_id": handle["job_id"]})
        except Exception:  # an error in a pool's thread would be lost otherwise
            logger.exception("tpu_vm_look_failed", extra={"job_id": handle["job_id"]})

    def _exchange(self, mailbox: "Mailbox", control: Path, status: _VmStatus) -> None:
        request = _requested_action(control)
        if request is not None and request != status.requested:
            mailbox.put("wish", request.encode())
            status.requested = request
        ended = mailbox.get("exit")  # read first: everything reported before the end is there then
        for name in STREAMED_FILES:
            _append_parts(mailbox, control / name, name)
        alive = mailbox.get("alive")
        if alive != status.alive:
            status.alive, status.answered_at = alive, time.monotonic()
        if ended is not None:
            code = json.loads(ended).get("code")
            known = isinstance(code, int) and 0 <= code <= 255  # noqa: PLR2004 - POSIX exit codes are bytes
            write_control_file(control, "exit" if known else _END_FILE, str(code))


def _shell_heredoc(file: Path) -> str:
    """Return the shell command that writes a file of the agent on the VM."""
    return f"cat >\"$place/agent/{file.name}\" <<'GRADIENT_AGENT'\n{file.read_text().rstrip()}\nGRADIENT_AGENT"


def _renew_token(bucket: "JobBucket", spec: LaunchSpec) -> bool:
    """Write a fresh token for an attempt; return False if Google does not answer."""
    try:
        bucket.renew_token(spec.job_id, spec.attempt)
    except StoreUnavailable:
        return False
    except GradientError as error:
        raise _to_launch_error(error) from error
    return True


def _to_launch_error(error: GradientError) -> LaunchError:
    away = isinstance(error, StoreUnavailable)
    return LaunchError("tpu_api_unavailable" if away else "bucket_refused", error.message)


def _requested_action(control: Path) -> str | None:
    if read_control(control, _KILL_FILE) is not None:
        return "kill"
    return "stop" if read_control(control, STOPPING_FILE) is not None else None


def _append_parts(mailbox: "Mailbox", file: Path, name: str) -> None:
    """Append the new part of a file that the job writes on its VM."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        for part in mailbox.names(name, f"{max(0, size - PART_BYTES):020d}"):
            begins = int(part) if part.isdecimal() else -1  # the job controls its VM, and can write there too
            wanted = 0 <= begins <= size < begins + PART_BYTES
            content = mailbox.get(f"{name}/{part}", PART_BYTES) if wanted else None
            # A write may have been cut short by a full disk or a crash: only what is missing is added.
            rest = memoryview(content or b"")[max(0, size - begins) :]
            while rest:
                written = os.write(descriptor, rest)
                rest, size = rest[written:], size + written
    finally:
        os.close(descriptor)


def _read_status(mailbox: "Mailbox") -> dict[str, object]:
    with suppress(StoreUnavailable, ValueError):
        return dict(json.loads(mailbox.get("status") or b"{}"))
    return {}


def _describe_job(spec: LaunchSpec, image: str, env: dict[str, str]) -> dict[str, object]:
    """Describe the job for the VM."""
    login = spec.login(image)
    limits = {
        "cpus": spec.job_spec.cpus,
        "memory": spec.memory_bytes,
        "shm-size": spec.shared_mem_bytes,
        "user": spec.job_spec.user,
    }
    within = None
    if spec.working_dir is not None:
        request = PurePosixPath(spec.working_dir)
        root = next((one for one in (WORKSPACE, str(spec.workspace)) if request.is_relative_to(one)), None)
        within = str(request.relative_to(root)) if root is not None else None
    return {
        "command": spec.job_spec.command,
        "image": image,
        "env": env,
        "pull": spec.job_spec.image_pull_policy,
        "login": None
        if login is None
        else {"host": login.host, "username": login.username, "password": login.password},
        "options": [f"--{name}={value}" for name, value in limits.items() if value is not None],
        "working_dir": spec.working_dir,
        "folder": within,
    }
