"""The reports of a job's VMs in the bucket: start, output, use of chips, and end."""

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import GradientError, StoreUnavailable
from core.storage.artifacts.scan import Skipped
from worker.backends.base import LaunchError
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.vm.agent import PART_BYTES
from worker.backends.tpu.vm.slices import END_FILE, ENDED_AT_FILE, LEFT_FILE, MISSING_BYTES, MISSING_FILE, host_folder
from worker.runner.control_files import write_control_file

if TYPE_CHECKING:
    from worker.backends.tpu.storage import Mailbox

_PHASES = ("", "here", "pulling", "prepared", "running")
_FAILURES = frozenset({"image_pull", "launch_failed", "stopped_by_user"})
_MOST_LEFT = 2002  # entries of a report of what was left: an agent reports no more
_TEXT_CHARACTERS = 1000  # characters of a text that are stored: the VM can send another at each look
_NAME = re.compile(r"cpu_percent|memory_bytes|processes|tpu([0-9]|1[0-5])_(percent|memory_bytes)")
_PORT = re.compile(r"[0-9]{1,5}")
_MAX_PORT = 65535
_TOO_LARGE = 1 << 60
END_REASONS = {
    "no_worker": "no worker contacted the TPU VM for too long, so it saved the outputs and asked Google to delete it",
    "restarted": "the TPU VM restarted while the job was running, as it does for Google's maintenance",
    "shut_down": "the TPU VM was shut down while the job was running",
    "silent": "the TPU VM did not report the end of its job",
}
"""Ends without an exit code that a VM reports, all of them `tpu_lost`."""
_NO_REASON = "process_lost"
_MAX_EXIT_CODE = 255  # POSIX exit codes are bytes
_TOO_LATE = 1 << 40
_PART_NAME = re.compile(r"[0-9]{20}")


class StartingHost:
    """A VM before it runs the job. `name`: its name among the hosts of a slice; empty: it is the only one."""

    def __init__(self, mailbox: "Mailbox", name: str) -> None:
        self._mailbox = mailbox
        self._name = f"the TPU VM, {name}," if name else "the TPU VM"
        self._trouble = self._detail = ""
        self.phase = ""

    @property
    def progress(self) -> int:
        return _PHASES.index(self.phase)

    @property
    def session_port(self) -> int:
        """Port of the VM that takes users' sessions, once it runs the job; 0: it does not say."""
        text = self._detail if _PORT.fullmatch(self._detail) else "0"
        return int(text) if int(text) <= _MAX_PORT else 0

    @property
    def doing(self) -> str:
        """Current step, with the last trouble in it."""
        if self.phase == "pulling":
            return f"{self._name} pulls {self._detail}"
        if self.phase == "prepared":
            return f"{self._name} waits for the others"
        return f"{self._name} is starting{f', and tries again: {self._trouble}' if self._trouble else ''}"

    def update(self) -> None:
        """Read its report. Raises `LaunchError`: it cannot run the job."""
        status = _read_status(self._mailbox)
        phase, detail = _text(status.get("phase")), _text(status.get("detail"))
        if phase == "failed":
            reason = _text(status.get("reason"))  # sent by the VM: only known reasons are accepted
            text = detail or "no reason was given"
            text = text if self._name == "the TPU VM" else f"{self._name} {text}"
            raise LaunchError(reason if reason in _FAILURES else "launch_failed", text)
        if phase in _PHASES:
            self.phase = phase
            self._detail = detail
        if phase == "here":
            self._trouble = detail or self._trouble

    def late(self, seconds: float, *, alone: bool) -> LaunchError:
        """Return the error for a VM that is not done in time; `alone` if another one has reported from its network."""
        if not self.phase:
            reason = "tpu_unhealthy" if alone else "tpu_unreachable"
            return LaunchError(reason, f"{self._name} has not reported in the bucket")
        reason = "image_pull" if self.phase == "pulling" else "launch_failed"
        return LaunchError(reason, f"{self.doing}: not done in {seconds:.0f} s")


def check_failure(failure: NodeFailure | None) -> None:
    """Raise if the node is of no use any more."""
    if failure is not None:
        raise LaunchError(failure.reason, failure.detail)


def to_launch_error(error: GradientError) -> LaunchError:
    """Return a bucket's error as the end of a start."""
    away = isinstance(error, StoreUnavailable)
    return LaunchError("tpu_api_unavailable" if away else "bucket_refused", error.message)


def parse_report(content: bytes | None) -> dict[str, object]:
    """Read an object that the VM wrote, where the job can write too: nothing about it is certain."""
    with suppress(ValueError, RecursionError):  # the second: it is nested too deeply
        report = json.loads(content or b"{}")
        if isinstance(report, dict):
            return report
    return {}


def _text(value: object) -> str:
    """Return a text of the VM, shortened; empty for anything else."""
    return value[:_TEXT_CHARACTERS].encode(errors="replace").decode() if isinstance(value, str) else ""


def _read_status(mailbox: "Mailbox") -> dict[str, object]:
    try:
        return parse_report(mailbox.get("status"))
    except StoreUnavailable:
        return {}
    except GradientError as error:
        raise to_launch_error(error) from error


def parse_usage(reported: object) -> dict[str, float]:
    """Return the figures among what a VM reported: the job can write there too, so only known names are accepted."""
    if not isinstance(reported, dict):
        return {}
    return {
        name: float(value)
        for name, value in reported.items()
        if _NAME.fullmatch(str(name)) and type(value) in {int, float} and 0 <= value < _TOO_LARGE
    }


def write_reported_end(control: Path, end: dict[str, object]) -> None:
    """Write a VM's report of the end to its control folder; whatever it says, there is an end.

    `end`: the report. The job can write it, too: only known values are accepted.
    """
    missing, at, code, reason = (end.get(name) for name in ("missing", "at", "code", "reason"))
    if isinstance(missing, str) and (line := _first_line(missing)):
        write_control_file(control, MISSING_FILE, line)
    if isinstance(at, int | float) and 0 <= at < _TOO_LATE:  # NaN is not
        write_control_file(control, ENDED_AT_FILE, str(float(at)))
    if type(code) is int and 0 <= code <= _MAX_EXIT_CODE:
        write_control_file(control, "exit", str(code))
    else:
        is_valid = isinstance(reason, str) and reason in END_REASONS
        write_control_file(control, END_FILE, str(reason) if is_valid else _NO_REASON)


def read_left(control: Path, count: int) -> tuple[list[Skipped], list[str]]:
    """Return what the hosts of a job left out of its artifacts, and notes on it; of a slice those of the first host.

    `count`: hosts of the slice; 0 without one. The job can write the report, too.
    """
    skipped: list[Skipped] = []
    notes: list[str] = []
    for rank in range(max(1, count)):
        with suppress(OSError):
            report = parse_report(((host_folder(control, rank) if count else control) / LEFT_FILE).read_bytes())
            prefix = f"hosts/{rank}/" if rank else ""
            skipped += [Skipped(prefix + _text(path), _text(why)) for path, why in _pairs(report.get("skipped"))]
            notes += [text for text in map(_text, _list(report.get("notes"))) if text and not rank]
    return skipped, notes


def _list(value: object) -> list[object]:
    return value[:_MOST_LEFT] if isinstance(value, list) else []


def _pairs(value: object) -> list[list[object]]:
    return [pair for pair in _list(value) if isinstance(pair, list) and len(pair) == 2]  # noqa: PLR2004 - path and reason


def _first_line(text: str) -> str:
    """Shorten a text of the VM for a control file, which has one line of ASCII."""
    line = " ".join(text.split()).encode("ascii", "replace")[: MISSING_BYTES - 1].decode("ascii")
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def append_parts(
    mailbox: "Mailbox", file: Path, name: str, reported: dict[str, object], aligned: set[str], until: float
) -> bool:
    """Append the new part of a file that the job writes on its VM; return False if there was no time for all of it.

    Args:
        reported: The VM's report, with the bytes that it has sent, if it says so.
        aligned: Names of files here that end where a part ends: the last worker may have died in the middle of one.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if reported.get(name) == size:
            return True
        start = size if name in aligned else max(0, size - PART_BYTES)
        for part, length in mailbox.sizes(name, f"{start:020d}"):
            if part > f"{size:020d}":
                break  # a part that begins later, or something else among the parts, of which there may be many
            if time.monotonic() >= until:
                return False
            begins = int(part) if _PART_NAME.fullmatch(part) else -1  # the job controls its VM, and can write there too
            if not 0 <= begins <= size < begins + min(length, PART_BYTES):
                continue
            content = mailbox.get(f"{name}/{part}", PART_BYTES)
            # A write may have been cut short by a full disk or a crash: only what is missing is added.
            rest = memoryview(content or b"")[max(0, size - begins) :]
            aligned.discard(name)
            while rest:
                written = os.write(descriptor, rest)
                rest, size = rest[written:], size + written
        aligned.add(name)
    finally:
        os.close(descriptor)
    return True
