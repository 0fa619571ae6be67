"""Runs a job on a TPU VM: stages it in the bucket, and follows what the VM reports there.

The reports become the files of the job's control folder, as if it ran here. Each part of the output is named by its
start offset, and the file here shows where to continue: so nothing is lost or duplicated, whichever side dies.
"""

import json
import logging
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import GradientError, StoreUnavailable
from core.formatting import MIB
from core.settings import Settings
from core.system.filesystem import write_atomically
from worker.backends.base import DEFAULT_SHM_BYTES, WRAPPER, Exit, Handle, LaunchSpec
from worker.backends.tpu import times
from worker.backends.tpu.cancellation import Check, pause
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.provisioning.startup_parts import resource_names, write_programs
from worker.backends.tpu.storage.job_storage import WORKSPACE_FOLDER, OpenBucket, region_of
from worker.backends.tpu.vm import slices
from worker.backends.tpu.vm.agent import HEARTBEAT_STEPS, STREAMED_FILES
from worker.backends.tpu.vm.job_description import VM_FOLDERS, describe_job
from worker.backends.tpu.vm.reports import (
    END_REASONS,
    StartingHost,
    append_parts,
    check_failure,
    parse_report,
    parse_usage,
    to_launch_error,
    write_reported_end,
)
from worker.backends.tpu.vm.slices import END_FILE, LEFT_FILE, MISSING_FILE
from worker.backends.tpu.vm.vm_sessions import session_token
from worker.runner.control_files import STOPPING_FILE, read_control, read_exit_code, write_control_file

if TYPE_CHECKING:
    from worker.backends.tpu.storage import Mailbox, RegionBucket

logger = logging.getLogger(__name__)

_HERE = Path(__file__).parent
SHUTDOWN = (_HERE / "shutdown.sh").read_text()  # the script that each VM runs when it is shut down
_THREADS = 4
_KILL_FILE = "killed"
_FINAL_STEPS = 15  # allowed for the report of an end after the job was killed
_LEFT_BYTES = 16 << 20
_EXCHANGE_SECONDS = 10.0  # of one look at the output: signs of life are looked for in between


@dataclass(slots=True)
class _VmStatus:
    polled_at: float = 0.0
    poll: Future[None] | None = None
    heartbeat: bytes | None = None
    collecting: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    answered_at: float = 0.0
    checked_at: float = 0.0
    aligned: set[str] = field(default_factory=set)
    renewed_at: float = 0.0
    requested: str | None = None
    killed_at: float | None = None
    hosts: "list[_VmStatus]" = field(default_factory=list)
    log: slices.SliceLog | None = None
    failed_at: float | None = None


class VmAgentClient:
    """See the module; usable from any thread."""

    def __init__(self, opened: OpenBucket, settings: Settings) -> None:
        self._open = opened
        self._settings = settings.tpu
        self._image = settings.docker.default_image
        self._statsd_port, self._job_bytes = settings.statsd.port, settings.disk.job_mb * MIB or None
        self._renew_seconds = times.TOKEN_SECONDS / 6  # an outage of Google's for half an hour does no harm
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tpu-vm")
        self._lock = threading.Lock()
        self._statuses: dict[str, _VmStatus] = {}

    def startup(self, spec: LaunchSpec, zone: str, *, in_slice: bool = False) -> str:
        """Return the start-up script of each VM of a node in this zone; it contains the URL of the job's token.

        Raises `LaunchError`: the URL cannot be signed.
        """
        bucket = self._open(region_of(zone))
        mailbox = bucket.mailbox(spec.job_id, spec.attempt)
        try:
            token_url = bucket.token_url(spec.job_id, spec.attempt)
        except GradientError as error:
            raise to_launch_error(error) from error
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
            .replace("@AGENT@", write_programs())
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
                raise to_launch_error(error) from error

    def deliver(self, spec: LaunchSpec, zone: str, env: dict[str, str], addresses: list[str]) -> None:
        """Tell each host of the node what it has to run. Raises `LaunchError`: it cannot be uploaded."""
        mailbox = self._mailbox(zone, spec.job_id, spec.attempt)
        token = session_token(spec.control).hex()
        for rank, mailbox_of_host in enumerate(_host_mailboxes(mailbox, addresses)):
            variables = env | VM_FOLDERS | slices.host_environment(rank, addresses)
            job = describe_job(spec, spec.container or self._image, variables, DEFAULT_SHM_BYTES)
            job["sessions"] = {"address": addresses[rank], "token": token}
            try:
                mailbox_of_host.put("job.json", json.dumps(job).encode())
            except GradientError as error:
                raise to_launch_error(error) from error

    def wait_until_running(
        self,
        spec: LaunchSpec,
        zone: str,
        addresses: list[str],
        report: Callable[[str], None],  # called with what is waited for; raises if the start must be aborted
        find_failure: Callable[[], NodeFailure | None],
    ) -> int:
        """Wait until the node's VM, or each of its VMs, runs the job; return the port for sessions, of host 0.

        Raises `LaunchError`: the VM does not run the job.

        `find_failure`: returns the reason that the VM cannot run the job any more, if there is one.
        """
        bucket = self._open(region_of(zone))
        mailbox = bucket.mailbox(spec.job_id, spec.attempt)
        names = [slices.describe_host(rank, addresses) if len(addresses) > 1 else "" for rank in range(len(addresses))]
        hosts = [
            StartingHost(mailbox_of_host, name)
            for mailbox_of_host, name in zip(_host_mailboxes(mailbox, addresses), names, strict=True)
        ]
        until, renew_at, here = time.monotonic() + times.PROBE_SECONDS, 0.0, False
        while True:
            if time.monotonic() >= renew_at and _renew_token(bucket, spec):
                renew_at = time.monotonic() + self._renew_seconds
            for host in hosts:
                host.update()
            slowest = min(hosts, key=lambda host: host.progress)
            if slowest.phase == "running":
                return hosts[0].session_port
            check_failure(find_failure())
            _let_go(mailbox, slowest)
            if slowest.phase and not here:
                here, until = True, time.monotonic() + times.VM_START_SECONDS
            if time.monotonic() >= until:
                alone = any(host.phase for host in hosts)
                raise slowest.late(times.VM_START_SECONDS, alone=alone)
            report(slowest.doing)
            pause(self._settings.poll_seconds, spec.check)

    def ended(self, handle: Handle) -> Exit | None:
        """Return how the job ended, if known here; reads the bucket in another thread."""
        control = Path(handle["control"])
        code, reason = read_exit_code(control), read_control(control, END_FILE)
        if code is not None or reason is not None:
            host = slices.read_host(handle)
            if code is None and reason in END_REASONS:
                ended = Exit(None, "tpu_lost", END_REASONS[reason])
            else:
                ended = Exit(code, None if code is not None else "process_lost")
            ended = ended if host is None else slices.name_host(ended, host)
            return replace(ended, at=slices.read_end_time(control, len(handle.get("hosts", ()))))
        status = self._status_of(handle)
        with self._lock:
            is_due = time.monotonic() - status.polled_at >= times.VM_POLL_SECONDS
            if is_due and (status.poll is None or status.poll.done()):
                status.polled_at = time.monotonic()
                status.poll = self.pool.submit(self._read_reports, handle, status)
        if read_control(control, _KILL_FILE) is not None:
            status.killed_at = status.killed_at or time.monotonic()
            if time.monotonic() >= self._give_up_at(status.killed_at, _list_unreported(control, status)):
                write_control_file(control, MISSING_FILE, slices.NO_END)
                return Exit(None, "process_lost")  # the VM is lost, or does not respond
        return None

    def silent(self, handle: Handle) -> NodeFailure | None:
        """Return a problem if the VM has not reported for long, as far as the bucket could be looked at."""
        status, control = self._status_of(handle), Path(handle["control"])
        for rank, host in enumerate(status.hosts or [status]):
            if not self._is_silent(host) or (status.hosts and slices.has_ended(slices.host_folder(control, rank))):
                continue
            vm = "the TPU VM"
            if status.hosts:
                write_control_file(control, slices.HOST_FILE, str(rank))
                vm = slices.describe_host(rank, handle["hosts"])
            quiet = host.checked_at - host.answered_at
            return NodeFailure("tpu_unhealthy", f"{handle['name']}: {vm} has not reported for {quiet:.0f} s")
        return None

    def _is_silent(self, host: _VmStatus) -> bool:
        longest = times.UNHEALTHY_SECONDS + 2 * HEARTBEAT_STEPS * times.VM_POLL_SECONDS
        return host.checked_at - host.answered_at >= longest

    def _give_up_at(self, killed_at: float, hosts: list[_VmStatus]) -> float:
        """Return when VMs that had to end their job are given up: later while one of them still sends artifacts."""
        sends = any(host.collecting and host.answered_at > killed_at and not self._is_silent(host) for host in hosts)
        seconds = times.VM_COLLECT_SECONDS if sends else 0.0
        return killed_at + _FINAL_STEPS * times.VM_POLL_SECONDS + seconds

    def sample(self, handle: Handle) -> dict[str, float]:
        """Return the use of the VM and of its chips; of a slice, those of host 0."""
        status = self._status_of(handle)
        return dict(status.hosts[0].usage if status.hosts else status.usage)

    def signal(self, handle: Handle, *, grace: bool) -> None:
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
        current = time.monotonic()
        with self._lock:
            if handle["name"] not in self._statuses:
                hosts = [_VmStatus(answered_at=current) for _ in handle.get("hosts", ())]
                self._statuses[handle["name"]] = _VmStatus(answered_at=current, hosts=hosts)
            return self._statuses[handle["name"]]

    def _read_reports(self, handle: Handle, status: _VmStatus) -> None:
        try:
            bucket = self._open(region_of(handle["zone"]))
            if time.monotonic() - status.renewed_at >= self._renew_seconds or not status.renewed_at:
                bucket.renew_token(handle["job_id"], handle["attempt"])
                status.renewed_at = time.monotonic()
            mailbox = bucket.mailbox(handle["job_id"], handle["attempt"])
            if status.hosts:
                self._exchange_with_slice(mailbox, handle, status)
            else:
                self._send_request(mailbox, status, _requested_action(Path(handle["control"])))
                files = {name: Path(handle["control"], name) for name in STREAMED_FILES}
                self._receive(mailbox, Path(handle["control"]), status, files)
        except StoreUnavailable:  # the VM cannot report either: its time begins again
            for report in (status, *status.hosts):
                report.answered_at = report.checked_at = time.monotonic()
            logger.warning("tpu_vm_not_checked", exc_info=True, extra={"job_id": handle["job_id"]})
        except (GradientError, OSError):
            logger.warning("tpu_vm_not_checked", exc_info=True, extra={"job_id": handle["job_id"]})
        except Exception:  # an error in a pool's thread would be lost otherwise
            logger.exception("tpu_vm_check_failed", extra={"job_id": handle["job_id"]})

    def _exchange_with_slice(self, mailbox: "Mailbox", handle: Handle, status: _VmStatus) -> None:
        """Follow each host of a slice; one that fails ends all."""
        control, count = Path(handle["control"]), len(status.hosts)
        request, kill_at = _requested_action(control), float("inf")
        if slices.first_failure(control, count) is not None:
            status.failed_at = status.failed_at or time.monotonic()
            kill_at = status.failed_at + handle["stop_grace"]
            request = "kill" if time.monotonic() >= kill_at else request or "stop"
        self._send_request(mailbox, status, request)
        for rank, host in enumerate(status.hosts):
            folder = slices.host_folder(control, rank)
            # Numbers for charts come from one host: the others' would be the same steps again.
            files = {"log": folder / "log"} | ({"metrics.jsonl": control / "metrics.jsonl"} if rank == 0 else {})
            if not slices.has_ended(folder) and not self._receive(mailbox.of_host(rank), folder, host, files):
                status.polled_at = 0.0
        status.log = status.log or slices.SliceLog(control, count)
        status.log.merge()
        missing = _list_unreported(control, status)
        given_up = time.monotonic() >= self._give_up_at(kill_at, missing)
        slices.write_end(
            control, count, given_up=given_up or (request is not None and all(map(self._is_silent, missing)))
        )

    def _send_request(self, mailbox: "Mailbox", status: _VmStatus, request: str | None) -> None:
        if request is not None and request != status.requested:
            mailbox.put("stop_request", request.encode())
            status.requested = request

    def _receive(self, mailbox: "Mailbox", control: Path, status: _VmStatus, files: dict[str, Path]) -> bool:
        """Bring what a VM reports; return False if there was no time for all of it."""
        heartbeat = mailbox.get("heartbeat")
        status.checked_at = time.monotonic()
        if heartbeat != status.heartbeat:
            status.heartbeat, status.answered_at = heartbeat, status.checked_at
        reported = parse_report(heartbeat)
        status.usage = parse_usage(reported.get("usage"))
        status.collecting = reported.get("collecting") is True
        # Read before the output: everything reported before the end is there then.
        ended = mailbox.get("exit") if reported.get("ended", True) else None
        until = time.monotonic() + _EXCHANGE_SECONDS
        if not all(append_parts(mailbox, file, name, reported, status.aligned, until) for name, file in files.items()):
            status.polled_at = 0.0
            return False
        if ended is not None:
            write_atomically(control / LEFT_FILE, mailbox.get("left", _LEFT_BYTES) or b"", durable=False)
            write_reported_end(control, parse_report(ended))
        return True


def _list_unreported(control: Path, status: _VmStatus) -> list[_VmStatus]:
    """List the VMs that have not reported the end of their job."""
    if not status.hosts:
        return [status]
    return [host for rank, host in enumerate(status.hosts) if not slices.has_ended(slices.host_folder(control, rank))]


def _check_member(check: Check, member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Pack every member, unless the start must be aborted."""
    check()
    return member


def _renew_token(bucket: "RegionBucket", spec: LaunchSpec) -> bool:
    """Write a fresh token for an attempt; return False if Google does not answer."""
    try:
        bucket.renew_token(spec.job_id, spec.attempt)
    except StoreUnavailable:
        return False
    except GradientError as error:
        raise to_launch_error(error) from error
    return True


def _host_mailboxes(mailbox: "Mailbox", addresses: list[str]) -> "list[Mailbox]":
    """Return the objects of each host; a node of one host has no folders for them."""
    return [mailbox] if len(addresses) == 1 else [mailbox.of_host(rank) for rank in range(len(addresses))]


def _let_go(mailbox: "Mailbox", slowest: StartingHost) -> None:
    """Let the hosts of a slice start their job, all of them at once, when the slowest is prepared."""
    if slowest.phase == "prepared":
        with suppress(StoreUnavailable):  # they wait; the next look repeats it
            mailbox.put("start", b"")


def _requested_action(control: Path) -> str | None:
    if read_control(control, _KILL_FILE) is not None:
        return "kill"
    return "stop" if read_control(control, STOPPING_FILE) is not None else None
