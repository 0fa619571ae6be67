"""The reports of a job's VMs in the bucket. A job can write there, too: nothing about them is certain."""

import json
import math
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.storage.artifacts.scan import Skipped
from core.system.filesystem import write_all
from worker.runner.stores import PART_BYTES

if TYPE_CHECKING:
    from worker.backends.tpu.storage.mailbox import Mailbox

PHASES = ("", "here", "pulling", "prepared", "running")
FAILED = "failed"
_FAILURES = frozenset({"image_pull", "launch_failed", "stopped_by_user"})
_MOST_LEFT = 2002  # entries of a report of what was left: a VM reports no more
_TEXT_CHARACTERS = 1000  # characters of a text that are stored: the VM can send another at each look
_USAGE = re.compile(r"cpu_percent|memory_bytes|processes|tpu([0-9]|1[0-5])_(percent|memory_bytes)")
_MAX_PORT = 65535
_TOO_LARGE = 1 << 60
SILENT = "silent"
END_REASONS = {
    "no_worker": "no worker contacted the TPU VM for too long, so it saved the outputs and asked Google to delete it",
    "restarted": "the TPU VM restarted while the job was running, as it does for Google's maintenance",
    "shut_down": "the TPU VM was shut down while the job was running",
    SILENT: "the TPU VM did not report the end of its job",
}
"""Ends without an exit code that a VM reports, all of them `tpu_lost`; any other is `process_lost`."""
_MAX_EXIT_CODE = 255  # POSIX exit codes are bytes
_TOO_LATE = 1 << 40


@dataclass(frozen=True, slots=True)
class End:
    """The end of a job on one VM, or of the wait for it."""

    code: int | None
    reason: str | None  # a name in END_REASONS if there is no code
    at: float  # Unix time by the VM's clock; infinite: it is unknown
    missing: str  # why artifacts were left on the VM; empty: none were


@dataclass(frozen=True, slots=True)
class Report:
    phase: str = ""
    detail: str = ""
    reason: str = "launch_failed"  # of a start that failed
    port: int = 0  # of the VM, for sessions; 0: none
    usage: Mapping[str, float] = field(default_factory=dict)
    collecting: bool = False
    warned: bool = False
    end: End | None = None


def parse_report(content: bytes | None) -> Report:
    report = _object(content)
    phase, reason, end = report.get("phase"), report.get("reason"), report.get("end")
    return Report(
        phase=phase if isinstance(phase, str) and phase in (*PHASES, FAILED) else "",
        detail=_text(report.get("detail")),
        reason=reason if isinstance(reason, str) and reason in _FAILURES else "launch_failed",
        port=_integer(report.get("port"), _MAX_PORT) or 0,
        usage=_usage(report.get("usage")),
        collecting=report.get("collecting") is True,
        warned=report.get("warned") is True,
        end=None if end is None else _parse_end(_dict(end)),  # whatever it says, it is one
    )


def _parse_end(end: dict[str, Any]) -> End:
    code, reason, at = _integer(end.get("code"), _MAX_EXIT_CODE), end.get("reason"), end.get("at")
    return End(
        code=code,
        reason=reason if isinstance(reason, str) and reason in END_REASONS and code is None else None,
        at=float(at) if isinstance(at, int | float) and 0 <= at < _TOO_LATE else math.inf,  # NaN is not
        missing=_line(_text(end.get("missing"))),
    )


def parse_left(content: bytes | None) -> tuple[list[Skipped], list[str]]:
    """Return what a VM left out of the artifacts, with the reasons, and its notes."""
    report = _object(content)
    skipped = [Skipped(_text(path), _text(why)) for path, why in filter(_is_pair, _list(report.get("skipped")))]
    return skipped, [text for text in map(_text, _list(report.get("notes"))) if text]


def _object(content: bytes | None) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):  # the second: it is nested too deeply
        return _dict(json.loads(content or b"{}"))
    return {}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value[:_MOST_LEFT] if isinstance(value, list) else []


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2  # noqa: PLR2004 - path and reason


def _text(value: object) -> str:
    """Return a text of the VM, shortened; empty for anything else."""
    return value[:_TEXT_CHARACTERS].encode(errors="replace").decode() if isinstance(value, str) else ""


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _integer(value: object, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def _usage(reported: object) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in _dict(reported).items()
        if _USAGE.fullmatch(name) and type(value) in {int, float} and 0 <= value < _TOO_LARGE
    }


def append_new(mailbox: "Mailbox", name: str, file: Path, until: float) -> bool:
    """Append what is new of a file that a VM sends in parts; return False if there was no time for all of it.

    The size of the file here tells where to continue, also after a write that was cut short.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while time.monotonic() < until:
            part, start = divmod(os.fstat(descriptor).st_size, PART_BYTES)
            content = mailbox.get(f"{name}/{part}", PART_BYTES - start, start) or b""
            write_all(descriptor, content)
            if start + len(content) < PART_BYTES:
                return True
    finally:
        os.close(descriptor)
    return False
