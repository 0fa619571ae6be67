"""Starts jobs on TPU VMs: stages them in the bucket, and brings the VMs what they have to run."""

import json
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import GradientError, StoreUnavailable
from core.formatting import MIB
from core.settings import Settings
from worker.backends.base import DEFAULT_SHM_BYTES, WRAPPER, Exit, Handle, LaunchError, LaunchSpec
from worker.backends.tpu import times
from worker.backends.tpu.cancellation import Check, pause
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.provisioning.startup_parts import resource_names, write_programs
from worker.backends.tpu.storage.job_storage import WORKSPACE_FOLDER, OpenBucket, region_of
from worker.backends.tpu.vm import slices
from worker.backends.tpu.vm.follower import KILL_FILE, WARNING_FILE, Follower
from worker.backends.tpu.vm.job_description import VM_FOLDERS, describe_job
from worker.backends.tpu.vm.vm_sessions import session_token
from worker.runner.control_files import STOPPING_FILE, write_control_file

if TYPE_CHECKING:
    from worker.backends.tpu.storage.mailbox import Mailbox

_HERE = Path(__file__).parent
SHUTDOWN = (_HERE / "shutdown.sh").read_text()  # the script that each VM runs when it is shut down
_THREADS = 4


class VmClient:
    """See the module, and `Follower`; usable from any thread."""

    def __init__(self, opened: OpenBucket, settings: Settings) -> None:
        self._open = opened
        self._settings = settings.tpu
        self._image = settings.docker.default_image
        self._statsd_port, self._job_bytes = settings.statsd.port, settings.disk.job_mb * MIB or None
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tpu-vm")
        self._lock = threading.Lock()
        self._followers: dict[str, Follower] = {}

    def startup(self, spec: LaunchSpec, zone: str, *, in_slice: bool = False) -> str:
        """Return the start-up script of each VM of a node in this zone; it contains the URL of the job's token.

        Raises `LaunchError`: the URL cannot be signed.
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
            **{name: f"{mailbox.prefix.partition('/vm/')[0]}/{name}/" for name in ("model", WORKSPACE_FOLDER)},
            "slice": in_slice,
            "job_id": spec.job_id,
            "statsd_port": self._statsd_port,
            "outputs": list(spec.job_spec.outputs),
            "max_bytes": self._job_bytes,
            "seconds": times.VM_POLL_SECONDS,
            "token_url": token_url,
            "abandoned_seconds": times.VM_ABANDONED_SECONDS,
            "collect_seconds": times.VM_COLLECT_SECONDS,
            "resources": resource_names(spec, zone, self._settings),
        }
        return (
            (_HERE / "startup.sh")
            .read_text()
            .replace("@SETTINGS@", json.dumps(settings))
            .replace("@WRAPPER@", WRAPPER.read_text().rstrip())
            .replace("@RUNNER@", write_programs())
        )

    def stage(self, spec: LaunchSpec, zone: str) -> None:
        """Upload the job's workspace for the VM; nothing is billed yet. Raises `LaunchError`: it cannot be uploaded."""
        mailbox = self._mailbox(zone, spec.job_id, spec.attempt)
        with tempfile.NamedTemporaryFile(suffix=".tar.gz") as packed:
            with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
                archive.add(spec.workspace, arcname=".", filter=partial(_check_member, spec.check))
            packed.flush()
            try:
                mailbox.put("workspace.tar.gz", Path(packed.name))
            except GradientError as error:
                raise _to_launch_error(error) from error

    def deliver(self, spec: LaunchSpec, zone: str, env: dict[str, str], addresses: list[str]) -> None:
        """Tell each host of the node what it has to run. Raises `LaunchError`: it cannot be uploaded."""
        mailbox = self._mailbox(zone, spec.job_id, spec.attempt)
        token = session_token(spec.control).hex()
        for rank in range(len(addresses)):
            variables = env | VM_FOLDERS | slices.host_environment(rank, addresses)
            job = describe_job(spec, spec.container or self._image, variables, DEFAULT_SHM_BYTES)
            job["sessions"] = {"address": addresses[rank], "token": token}
            try:
                mailbox.of_host(rank).put("job.json", json.dumps(job).encode())
            except GradientError as error:
                raise _to_launch_error(error) from error

    def wait_until_running(
        self,
        handle: Handle,
        report: Callable[[str], None],  # called with what is waited for; raises if the start must be aborted
        find_failure: Callable[[], NodeFailure | None],
        check: Check,
    ) -> int:
        """Wait until the node's VM, or each of its VMs, runs the job; return the port for sessions, of host 0.

        Raises `LaunchError`: the VM does not run the job.

        `find_failure`: returns the reason that the VM cannot run the job any more, if there is one.
        """
        with self._lock:
            self._followers[handle["name"]] = follower = Follower(self._open, handle)
        until, here = time.monotonic() + times.PROBE_SECONDS, False
        while True:
            mailbox = _poll(follower)
            for host in follower.hosts:
                host.check_start()
            slowest = min(follower.hosts, key=lambda host: host.progress)
            if slowest.report.phase == "running":
                return follower.hosts[0].report.port
            if (failure := find_failure()) is not None:
                raise LaunchError(failure.reason, failure.detail)
            if slowest.report.phase == "prepared" and mailbox is not None:  # all of them start their job at once
                with suppress(StoreUnavailable):  # they wait; the next look repeats it
                    mailbox.put("start", b"")
            if slowest.report.phase and not here:
                here, until = True, time.monotonic() + times.VM_START_SECONDS
            if time.monotonic() >= until:
                alone = any(host.report.phase for host in follower.hosts)
                raise slowest.late(times.VM_START_SECONDS, alone=alone)
            report(slowest.doing)
            pause(self._settings.poll_seconds, check)

    def ended(self, handle: Handle) -> Exit | None:
        """Return how the job ended, if known here; reads the bucket in another thread."""
        follower = self.follower(handle)
        with self._lock:
            is_due = time.monotonic() - follower.polled_at >= times.VM_POLL_SECONDS and follower.ended() is None
            if is_due and (follower.polling is None or follower.polling.done()):
                follower.polled_at = time.monotonic()
                follower.polling = self.pool.submit(follower.follow)
        return follower.ended()

    def warn(self, handle: Handle) -> None:
        write_control_file(Path(handle["control"]), WARNING_FILE, "asked to warn")

    def signal(self, handle: Handle, *, grace: bool) -> None:
        """Request that the job end; the VM reads the request at its next step."""
        write_control_file(Path(handle["control"]), STOPPING_FILE if grace else KILL_FILE, "asked to end")
        self.follower(handle).polled_at = 0.0

    def destroy(self, zone: str, job_id: str, attempt: int) -> None:
        """Remove the staged files, even where the bucket is kept: they may hold secrets."""
        with self._lock:
            self._followers.pop(f"{job_id}-{attempt}", None)
        with suppress(GradientError):  # the job's whole prefix is removed after this, with retries
            self._mailbox(zone, job_id, attempt).clear()

    def _mailbox(self, zone: str, job_id: str, attempt: int) -> "Mailbox":
        return self._open(region_of(zone)).mailbox(job_id, attempt)

    def follower(self, handle: Handle) -> Follower:
        """Return what is known here of the VMs of an attempt."""
        with self._lock:
            if handle["name"] not in self._followers:
                self._followers[handle["name"]] = Follower(self._open, handle)
            return self._followers[handle["name"]]


def _poll(follower: Follower) -> "Mailbox | None":
    """Read the reports of a start; None: the bucket does not answer. Raises `LaunchError`: it refuses."""
    try:
        return follower.poll()
    except StoreUnavailable:
        return None
    except GradientError as error:
        raise _to_launch_error(error) from error


def _to_launch_error(error: GradientError) -> LaunchError:
    away = isinstance(error, StoreUnavailable)
    return LaunchError("tpu_api_unavailable" if away else "bucket_refused", error.message)


def _check_member(check: Check, member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Pack every member, unless the start must be aborted."""
    check()
    return member
