"""Follows one attempt on the VMs of its node by what they report in the bucket.

Their output becomes that of the job in its control folder, as if it ran here. What is there, and the last report of
each VM in `hosts/RANK/`, tells the next worker where to continue: nothing is lost or doubled, whichever side dies.
"""

import json
import logging
import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import GradientError, StoreUnavailable
from core.storage.artifacts.scan import Skipped
from core.system.filesystem import write_atomically
from worker.backends.base import Exit, Handle, LaunchError
from worker.backends.hosts_log import HostsLog, describe_host, host_folder
from worker.backends.tpu import times
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.storage.job_storage import OpenBucket, region_of
from worker.backends.tpu.vm.reports import (
    END_REASONS,
    FAILED,
    PHASES,
    SILENT,
    End,
    append_new,
    parse_left,
    parse_report,
)
from worker.runner.control_files import STOPPING_FILE, WARNED_FILE, read_control, write_control_file
from worker.runner.stores import REPORT_STEPS, STREAMED_FILES

if TYPE_CHECKING:
    from worker.backends.tpu.storage.mailbox import Mailbox

logger = logging.getLogger(__name__)

KILL_FILE = "killed"
WARNING_FILE = "warning"
REPORT_FILE, LEFT_FILE = "report", "left"
NO_END = "not sent: it did not report the end of its job"  # the reason for a VM that was given up
_FINAL_STEPS = 15  # allowed for the report of an end after the job was killed
_LEFT_BYTES = 16 << 20
MISSING_CHARACTERS = 1000
_NO_END = End(None, None, math.inf, "")
_OUTPUT_SECONDS = 10.0  # of one look at the output: signs of life are looked for in between


class Host:
    """One VM of an attempt."""

    def __init__(self, control: Path, rank: int, addresses: list[str]) -> None:
        self.rank = rank
        self.name = describe_host(rank, addresses)
        self.vm = f"the TPU VM, {self.name}," if self.name else "the TPU VM"
        self.folder = host_folder(control, rank)
        self.folder.mkdir(parents=True, exist_ok=True)
        content = None
        with suppress(FileNotFoundError):
            content = (self.folder / REPORT_FILE).read_bytes()
        self.report = parse_report(content)
        self.ended = content is not None
        self.answered_at = self.checked_at = time.monotonic()
        self._content: bytes | None = None
        self._trouble = ""

    @property
    def silence(self) -> float:
        return self.checked_at - self.answered_at

    @property
    def silent(self) -> bool:
        return self.silence >= times.VM_SILENT_SECONDS + 2 * REPORT_STEPS * times.VM_POLL_SECONDS

    @property
    def progress(self) -> int:
        return PHASES.index(self.report.phase)

    @property
    def doing(self) -> str:
        """Current step of the start, with the last trouble in it."""
        if self.report.phase == "pulling":
            return f"{self.vm} pulls {self.report.detail}"
        if self.report.phase == "prepared":
            return f"{self.vm} waits for the others"
        return f"{self.vm} is starting{f', and tries again: {self._trouble}' if self._trouble else ''}"

    def read(self, mailbox: "Mailbox") -> None:
        content = mailbox.get(REPORT_FILE)
        self.checked_at = time.monotonic()
        if content != self._content:
            self._content, self.answered_at = content, self.checked_at
            self.report = parse_report(content)

    def check_start(self) -> None:
        """Raise `LaunchError` if it cannot run the job."""
        if self.report.phase == FAILED:
            text = self.report.detail or "no reason was given"
            raise LaunchError(self.report.reason, f"{self.vm} {text}" if self.name else text)
        if self.report.phase == "here":
            self._trouble = self.report.detail or self._trouble

    def late(self, seconds: float, *, alone: bool) -> LaunchError:
        """Return the error for a VM that is not done in time; `alone` if another one has reported from its network."""
        if not self.report.phase:
            reason = "tpu_unhealthy" if alone else "tpu_unreachable"
            return LaunchError(reason, f"{self.vm} has not reported in the bucket")
        reason = "image_pull" if self.report.phase == "pulling" else "launch_failed"
        return LaunchError(reason, f"{self.doing}: not done in {seconds:.0f} s")

    @property
    def end(self) -> End:
        return self.report.end or _NO_END

    def keep_end(self, report: bytes, left: bytes = b"") -> None:
        """Keep the report of its end; all of its output is here."""
        write_atomically(self.folder / LEFT_FILE, left, durable=False)
        write_atomically(self.folder / REPORT_FILE, report, durable=False)
        self.report, self.ended = parse_report(report), True

    def receive(self, mailbox: "Mailbox", files: dict[str, Path]) -> bool:
        """Bring its output here, and its end if it has reported one; return False if there was no time for all."""
        until = time.monotonic() + _OUTPUT_SECONDS
        if not all(append_new(mailbox, name, file, until) for name, file in files.items()):
            return False
        if self.report.end is not None and self._content is not None:
            self.keep_end(self._content, mailbox.get(LEFT_FILE, _LEFT_BYTES) or b"")
        return True


class Follower:
    """See the module; one thread at a time may call `follow`, any may call the others."""

    def __init__(self, opened: OpenBucket, handle: Handle) -> None:
        """`handle`: with `zone`, and `hosts`: the addresses of a slice."""
        self._open = opened
        self._handle = handle
        self._control = Path(handle["control"])
        addresses = handle["hosts"] or [""]
        self.hosts = [Host(self._control, rank, addresses) for rank in range(len(addresses))]
        self._log = HostsLog(self._control, len(addresses)) if handle["hosts"] else None
        self._over = False
        self._requested: str | None = None
        self._warning_sent = False
        self._killed_at = self._failed_at = math.inf
        self._renewed_at = -math.inf
        self.polled_at = 0.0
        self.polling: Future[None] | None = None

    def poll(self) -> "Mailbox":
        """Read the reports of the VMs, and renew the job's token. Raises `GradientError`."""
        bucket, handle = self._open(region_of(self._handle["zone"])), self._handle
        if time.monotonic() - self._renewed_at >= times.TOKEN_SECONDS / 6:  # an outage of half an hour does no harm
            bucket.renew_token(handle["job_id"], handle["attempt"])
            self._renewed_at = time.monotonic()
        mailbox = bucket.mailbox(handle["job_id"], handle["attempt"])
        for host in self.hosts:
            if not host.ended:
                host.read(mailbox.of_host(host.rank))
        return mailbox

    def follow(self) -> None:
        """Exchange all with the VMs that have not ended."""
        with self._logged():
            if not all(host.ended for host in self.hosts):
                self._exchange(self.poll())
        with self._logged():
            self._give_up()
            if self._log is not None:
                self._log.merge([host.ended for host in self.hosts])
            if all(host.ended for host in self.hosts):
                if (code := self._culprit().end.code) is not None:
                    write_control_file(self._control, "exit", str(code))
                self._over = True

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except (GradientError, OSError) as error:
            if isinstance(error, StoreUnavailable):  # the VMs cannot report either: their time begins again
                for host in self.hosts:
                    host.answered_at = host.checked_at = time.monotonic()
            logger.warning("tpu_vm_not_checked", exc_info=True, extra={"job_id": self._handle["job_id"]})
        except Exception:  # an error in a pool's thread would be lost otherwise
            logger.exception("tpu_vm_check_failed", extra={"job_id": self._handle["job_id"]})

    def _exchange(self, mailbox: "Mailbox") -> None:
        request = self._request()
        if request is not None and request != self._requested:
            mailbox.put("stop_request", request.encode())
            self._requested = request
        if not self._warning_sent and read_control(self._control, WARNING_FILE) is not None:
            mailbox.put("warning", b"now")
            self._warning_sent = True
        if any(host.report.warned for host in self.hosts) and read_control(self._control, WARNED_FILE) is None:
            write_control_file(self._control, WARNED_FILE, "on the TPU VM")
        for host in self.hosts:
            # Numbers for charts come from one host: the others' would be the same steps again.
            files = {name: self._control / name for name in STREAMED_FILES if host.rank == 0}
            if self._log is not None:
                files["log"] = host.folder / "log"
            if not host.ended and not host.receive(mailbox.of_host(host.rank), files):
                self.polled_at = 0.0

    def _request(self) -> str | None:
        """Return what the VMs are asked to do; one that fails ends all."""
        now = time.monotonic()
        if read_control(self._control, KILL_FILE) is not None:
            self._killed_at = min(self._killed_at, now)
        if any(host.ended and host.end.code != 0 for host in self.hosts):
            self._failed_at = min(self._failed_at, now)
            self._killed_at = min(self._killed_at, self._failed_at + self._handle["stop_grace"])
        if now >= self._killed_at:
            return "kill"
        return "stop" if self._failed_at <= now or read_control(self._control, STOPPING_FILE) is not None else None

    def _give_up(self) -> None:
        """End the wait for VMs that had to end their job; later while one of them still sends artifacts."""
        missing = [host for host in self.hosts if not host.ended]
        if self._request() is None or not missing:
            return
        sends = any(
            host.report.collecting and host.answered_at > self._killed_at and not host.silent for host in missing
        )
        until = self._killed_at + _FINAL_STEPS * times.VM_POLL_SECONDS + (times.VM_COLLECT_SECONDS if sends else 0.0)
        if time.monotonic() >= until or all(host.silent for host in missing):
            for host in missing:
                end = {"reason": SILENT if self._log is not None else None, "missing": NO_END}
                host.keep_end(json.dumps({"end": end}).encode())

    def _culprit(self) -> Host:
        """Return the host that the end is due to: one that was given up, else the one that failed first."""
        failed = [host for host in self.hosts if host.end.code != 0]
        return min(failed, key=lambda host: (host.end.reason != SILENT, host.end.at), default=self.hosts[0])

    def ended(self) -> Exit | None:
        if not self._over:
            return None
        host = self._culprit()
        end, at = host.end, max(host.end.at for host in self.hosts)
        when = at if at < math.inf else None
        if end.code and host.name:
            text = f"{host.name} failed first, with exit code {end.code}. See its log with `jobs logs --rank`."
            return Exit(end.code, "tpu_host_failed", text, at=when)
        if end.code is not None:
            return Exit(end.code, at=when)
        why = END_REASONS.get(end.reason or "")
        detail = ": ".join(filter(None, (host.name, why))) or None
        return Exit(None, "tpu_lost" if why else "process_lost", detail, at=when)

    def silent(self) -> NodeFailure | None:
        """Return a problem if a VM has not reported for long, as far as the bucket could be looked at."""
        host = next((host for host in self.hosts if not host.ended and host.silent), None)
        if host is None:
            return None
        text = f"{self._handle['name']}: {host.name or 'the TPU VM'} has not reported for {host.silence:.0f} s"
        return NodeFailure("tpu_unhealthy", text)

    def given_up(self) -> str:
        """Return the name of the first host of a slice that was given up; empty: none was."""
        return next((host.name for host in self.hosts if host.end.reason == SILENT), "")

    def usage(self) -> dict[str, float]:
        """Return the use of the VM and of its chips; of a slice, those of host 0."""
        return dict(self.hosts[0].report.usage)

    def node_exits(self) -> dict[str, int | None]:
        """See `Backend.node_exits`."""
        return {str(host.rank): host.end.code for host in self.hosts if host.ended and host.name}


def read_left(control: Path, count: int) -> tuple[list[Skipped], list[str]]:
    """Return what the hosts of a job left out of its artifacts, and notes on it; of a slice those of the first host.

    `count`: hosts of the slice; 0 without one.
    """
    skipped: list[Skipped] = []
    notes: list[str] = []
    missing = []
    for rank in range(max(1, count)):
        folder = host_folder(control, rank)
        with suppress(FileNotFoundError):
            left, remarks = parse_left((folder / LEFT_FILE).read_bytes())
            prefix = f"hosts/{rank}/" if rank else ""
            skipped += [Skipped(prefix + path, why) for path, why in left]
            notes += remarks if not rank else []
            end = parse_report((folder / REPORT_FILE).read_bytes()).end
            if end is not None and end.missing:
                missing.append(f"rank {rank}: {end.missing}" if count else end.missing)
    if missing:
        skipped.append(Skipped(".", f"on the TPU VM, {'; '.join(missing)}"[:MISSING_CHARACTERS]))
    return skipped, notes
