"""The start of a job on its VMs, as they report it in the bucket."""

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from core.errors import GradientError, StoreUnavailable
from worker.backends.base import LaunchError
from worker.backends.tpu.node_state import NodeFailure

if TYPE_CHECKING:
    from worker.backends.tpu.storage import Mailbox

_PHASES = ("", "here", "pulling", "prepared", "running")
_FAILURES = frozenset({"image_pull", "launch_failed", "stopped_by_user"})
_TEXT_CHARACTERS = 1000  # characters of a text that are stored: the VM can send another at each look


class StartingHost:
    """A VM before it runs the job. `name`: its name among the hosts of a slice; empty: it is the only one."""

    def __init__(self, mailbox: "Mailbox", name: str) -> None:
        self._mailbox = mailbox
        self._name = f"the TPU VM, {name}," if name else "the TPU VM"
        self._trouble = self._image = ""
        self.phase = ""

    @property
    def progress(self) -> int:
        return _PHASES.index(self.phase)

    @property
    def doing(self) -> str:
        """Current step, with the last trouble in it."""
        if self.phase == "pulling":
            return f"{self._name} pulls {self._image}"
        if self.phase == "prepared":
            return f"{self._name} waits for the others"
        return f"{self._name} starts up{f', and tries again: {self._trouble}' if self._trouble else ''}"

    def update(self) -> None:
        """Read its report. Raises `LaunchError`: it cannot run the job."""
        status = _read_status(self._mailbox)
        phase, detail = _text(status.get("phase")), _text(status.get("detail"))
        if phase == "failed":
            reason = _text(status.get("reason"))  # sent by the VM: only known reasons are accepted
            words = detail or "no reason was given"
            words = words if self._name == "the TPU VM" else f"{self._name} {words}"
            raise LaunchError(reason if reason in _FAILURES else "launch_failed", words)
        if phase in _PHASES:
            self.phase = phase
            self._image = detail
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
        found = json.loads(content or b"{}")
        if isinstance(found, dict):
            return found
    return {}


def _text(value: object) -> str:
    """Return a text of the VM, shortened; empty for anything else."""
    return value[:_TEXT_CHARACTERS] if isinstance(value, str) else ""


def _read_status(mailbox: "Mailbox") -> dict[str, object]:
    try:
        return parse_report(mailbox.get("status"))
    except StoreUnavailable:
        return {}
    except GradientError as error:
        raise to_launch_error(error) from error
