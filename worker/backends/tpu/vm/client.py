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
    STOPPING,
    WORKSPACE,
    WRAPPER,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    note_control,
    read_control,
    read_exit_code,
)
from worker.backends.tpu.node_state import Trouble
from worker.backends.tpu.storage.job_storage import OpenBucket, region_of
from worker.backends.tpu.vm.agent import BEAT_STEPS, FOLLOWED, PART_BYTES

if TYPE_CHECKING:
    from worker.backends.tpu.storage import JobBucket, Relay

logger = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_THREADS = 4
_KILLED, _ENDED = "killed", "vm_ended"
_FAILURES = frozenset({"image_pull", "launch_failed", "stopped_by_user"})
_LAST_STEPS = 15  # allowed for the report of an end after the job was killed


@dataclass(slots=True)
class _Followed:
    looked_at: float = 0.0
    look: Future[None] | None = None
    alive: bytes | None = None
    heard_at: float = 0.0
    renewed_at: float = 0.0
    wished: str | None = None
    killed_at: float | None = None


class OnVm:
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
        self._followed: dict[str, _Followed] = {}

    def startup(self, spec: LaunchSpec, zone: str) -> str:
        """Return the start-up script of a VM in this zone; it contains the URL of the job's token.

        Raises:
            LaunchError: The URL cannot be signed.
        """
        bucket = self._open(region_of(zone))
        relay = bucket.relay(spec.job_id, spec.attempt)
        try:
            token_url = bucket.token_url(spec.job_id, spec.attempt)
        except GradientError as error:
            raise _refused(error) from error
        told = {
            "bucket": relay.bucket,
            "prefix": relay.prefix,
            "model": relay.prefix.partition("/vm/")[0] + "/model/",
            "seconds": self._settings.vm_poll_seconds,
            "token_url": token_url,
        }
        return (
            (_HERE / "startup.sh")
            .read_text()
            .replace("@SETTINGS@", json.dumps(told))
            .replace("@WRAPPER@", WRAPPER.read_text().rstrip())
            .replace("@AGENT@", "\n".join(map(_written, sorted((_HERE / "agent").glob("*.py")))))
        )

    def stage(self, spec: LaunchSpec, zone: str, env: dict[str, str]) -> None:
        """Upload the job for the VM; nothing is billed yet.

        Raises:
            LaunchError: It cannot be uploaded.
        """
        relay = self._relay(zone, spec.job_id, spec.attempt)
        job = _job(spec, spec.container or self._image, env)
        with tempfile.NamedTemporaryFile(suffix=".tar.gz") as packed:
            with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
                archive.add(spec.workspace, arcname=".")
            packed.flush()
            try:
                relay.put("workspace.tar.gz", Path(packed.name))
                relay.put("job.json", json.dumps(job).encode())
            except GradientError as error:
                raise _refused(error) from error

    def started(
        self, spec: LaunchSpec, zone: str, say: Callable[[str], None], lost: Callable[[], Trouble | None]
    ) -> None:
        """Wait until the VM runs the job.

        Args:
            spec: The attempt.
            zone: The VM's zone.
            say: Called with what is waited for; raises if the start must be aborted.
            lost: Returns the reason that the VM cannot run the job any more, if there is one.

        Raises:
            LaunchError: The VM does not run the job.
        """
        bucket = self._open(region_of(zone))
        relay = bucket.relay(spec.job_id, spec.attempt)
        until = time.monotonic() + self._settings.probe_seconds
        renew_at = 0.0
        while True:
            if time.monotonic() >= renew_at and _renewed(bucket, spec):
                renew_at = time.monotonic() + self._renew_seconds
            told = _told(relay)
            phase = told.get("phase")
            if phase == "running":
                return
            if phase == "failed":
                reason = told.get("reason")  # sent by the VM: only known reasons are believed
                raise LaunchError(str(reason) if reason in _FAILURES else "launch_failed", str(told.get("detail")))
            trouble = lost()
            if trouble is not None:
                raise LaunchError(trouble.reason, trouble.detail)
            if phase is None and time.monotonic() >= until:
                raise LaunchError("tpu_unreachable", "the TPU VM has not told of itself in the bucket")
            say(f"the TPU VM pulls {told['detail']}" if phase == "pulling" else "the TPU VM starts up")
            time.sleep(self._settings.poll_seconds)

    def poll(self, handle: Handle) -> Exit | None:
        """Return how the job ended, if known here; reads the bucket in another thread."""
        control = Path(handle["control"])
        code, reason = read_exit_code(control), read_control(control, _ENDED)
        if code is not None or reason is not None:
            return Exit(code, None if code is not None else "vanished")
        followed = self._of(handle)
        with self._lock:
            due = time.monotonic() - followed.looked_at >= self._settings.vm_poll_seconds
            if due and (followed.look is None or followed.look.done()):
                followed.looked_at = time.monotonic()
                followed.look = self._pool.submit(self._look, handle, followed)
        if read_control(control, _KILLED) is not None:
            followed.killed_at = followed.killed_at or time.monotonic()
            if time.monotonic() - followed.killed_at >= _LAST_STEPS * self._settings.vm_poll_seconds:
                return Exit(None, "vanished")  # the VM is gone, or might as well be
        return None

    def silent(self, handle: Handle) -> Trouble | None:
        """Return a problem if the VM has not reported for long."""
        followed = self._of(handle)
        quiet = time.monotonic() - followed.heard_at if followed.heard_at else 0.0
        if quiet < self._settings.unhealthy_seconds + 2 * BEAT_STEPS * self._settings.vm_poll_seconds:
            return None
        return Trouble("tpu_unhealthy", f"{handle['name']}: the TPU VM has told nothing for {quiet:.0f} s")

    def stop(self, handle: Handle, *, grace: bool) -> None:
        """Request that the job end; the VM reads the request at its next step."""
        note_control(Path(handle["control"]), STOPPING if grace else _KILLED, "asked to end")
        self._of(handle).looked_at = 0.0

    def destroy(self, zone: str, job_id: str, attempt: int) -> None:
        """Remove the staged files, even where the bucket is kept: they may hold secrets."""
        with self._lock:
            self._followed.pop(f"{job_id}-{attempt}", None)
        try:
            self._relay(zone, job_id, attempt).clear()
        except GradientError:  # the job's whole prefix is removed after this, with retries
            logger.info("bucket_not_emptied", exc_info=True)

    def _relay(self, zone: str, job_id: str, attempt: int) -> "Relay":
        return self._open(region_of(zone)).relay(job_id, attempt)

    def _of(self, handle: Handle) -> _Followed:
        with self._lock:
            return self._followed.setdefault(handle["name"], _Followed(heard_at=time.monotonic()))

    def _look(self, handle: Handle, followed: _Followed) -> None:
        try:
            bucket = self._open(region_of(handle["zone"]))
            if time.monotonic() - followed.renewed_at >= self._renew_seconds or not followed.renewed_at:
                bucket.renew_token(handle["job_id"], handle["attempt"])
                followed.renewed_at = time.monotonic()
            self._pass(bucket.relay(handle["job_id"], handle["attempt"]), Path(handle["control"]), followed)
        except (GradientError, OSError):
            logger.warning("tpu_vm_not_looked_at", exc_info=True, extra={"job_id": handle["job_id"]})
        except Exception:  # an error in a pool's thread would be lost otherwise
            logger.exception("tpu_vm_look_failed", extra={"job_id": handle["job_id"]})

    def _pass(self, relay: "Relay", control: Path, followed: _Followed) -> None:
        wish = _wish(control)
        if wish is not None and wish != followed.wished:
            relay.put("wish", wish.encode())
            followed.wished = wish
        ended = relay.get("exit")  # read first: everything reported before the end is there then
        for name in FOLLOWED:
            _append(relay, control / name, name)
        alive = relay.get("alive")
        if alive != followed.alive:
            followed.alive, followed.heard_at = alive, time.monotonic()
        if ended is not None:
            code = json.loads(ended).get("code")
            known = isinstance(code, int) and 0 <= code <= 255  # noqa: PLR2004 - POSIX exit codes are bytes
            note_control(control, "exit" if known else _ENDED, str(code))


def _written(file: Path) -> str:
    """Return the shell command that writes a file of the agent on the VM."""
    return f"cat >\"$place/agent/{file.name}\" <<'GRADIENT_AGENT'\n{file.read_text().rstrip()}\nGRADIENT_AGENT"


def _renewed(bucket: "JobBucket", spec: LaunchSpec) -> bool:
    """Write a fresh token for an attempt; return False if Google does not answer."""
    try:
        bucket.renew_token(spec.job_id, spec.attempt)
    except StoreUnavailable:
        return False
    except GradientError as error:
        raise _refused(error) from error
    return True


def _refused(error: GradientError) -> LaunchError:
    away = isinstance(error, StoreUnavailable)
    return LaunchError("tpu_api_away" if away else "bucket_refused", error.message)


def _wish(control: Path) -> str | None:
    if read_control(control, _KILLED) is not None:
        return "kill"
    return "stop" if read_control(control, STOPPING) is not None else None


def _append(relay: "Relay", file: Path, name: str) -> None:
    """Append the new part of a file that the job writes on its VM."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        for part in relay.names(name, f"{max(0, size - PART_BYTES):020d}"):
            begins = int(part) if part.isdecimal() else -1  # the job controls its VM, and can write there too
            wanted = 0 <= begins <= size < begins + PART_BYTES
            content = relay.get(f"{name}/{part}", PART_BYTES) if wanted else None
            # A write may have been cut short by a full disk or a crash: only what is missing is added.
            rest = memoryview(content or b"")[max(0, size - begins) :]
            while rest:
                written = os.write(descriptor, rest)
                rest, size = rest[written:], size + written
    finally:
        os.close(descriptor)


def _told(relay: "Relay") -> dict[str, object]:
    with suppress(StoreUnavailable, ValueError):
        return dict(json.loads(relay.get("status") or b"{}"))
    return {}


def _job(spec: LaunchSpec, image: str, env: dict[str, str]) -> dict[str, object]:
    """Describe the job for the VM."""
    login = spec.login(image)
    limits = {
        "cpus": spec.cpus,
        "memory": spec.memory_bytes,
        "shm-size": spec.shared_mem_bytes,
        "user": spec.user,
    }
    within = None
    if spec.working_dir is not None:
        asked = PurePosixPath(spec.working_dir)
        root = next((one for one in (WORKSPACE, str(spec.workspace)) if asked.is_relative_to(one)), None)
        within = str(asked.relative_to(root)) if root is not None else None
    return {
        "command": spec.command,
        "image": image,
        "env": env,
        "pull": spec.pull_policy,
        "login": None
        if login is None
        else {"host": login.host, "username": login.username, "password": login.password},
        "options": [f"--{name}={value}" for name, value in limits.items() if value is not None],
        "working_dir": spec.working_dir,
        "folder": within,
    }
