import signal
import time
from contextlib import suppress

from core.errors import StoreUnavailable
from core.formatting import format_short_duration
from core.jobs.guarded_updates import record_warning
from worker.attempt.disk_quota import Launched
from worker.context import WorkerContext
from worker.runner.control_files import WARNED_FILE, read_control, write_control_file

_RECORDED = "recorded"
_MAX_PAUSE_SECONDS = 60.0


class EndWarning:
    """Warns the main program of a job before its time is up, as soon as it handles the signal."""

    def __init__(self, context: WorkerContext, launched: Launched) -> None:
        self._context, self._launched, self._control = context, launched, launched.scratch.control
        self._option = launched.job.spec.warning()
        self._due, self._next_at, self._pause = "", 0.0, 1.0  # `due`: what comes, once it is time to warn
        if read_control(self._control, WARNED_FILE) == _RECORDED:
            self._option = None

    def is_due(self, deadline: float) -> bool:
        """Return whether it is time to warn, or to try again. `deadline`: by the monotonic clock."""
        now = time.monotonic()
        return self._option is not None and max(deadline - self._option.seconds, self._next_at) <= now < deadline

    def send_if_due(self, deadline: float | None, what: str) -> None:
        """Warn, if it is time to. `what`: what comes at the deadline; None: nothing comes."""
        if self._option is None:
            return
        taken_at = self._launched.backend.taken_at(self._launched.handle)
        if taken_at is not None and (deadline is None or taken_at < deadline):
            deadline, what = taken_at, "its machine is taken away"
        if read_control(self._control, WARNED_FILE) is not None:
            self._record(f"SIG{self._option.signal}, {self._due}" if self._due else f"SIG{self._option.signal}")
        elif deadline is not None and self.is_due(deadline):
            now = time.monotonic()
            self._due = f"{format_short_duration(round(deadline - now))} before {what}"
            self._next_at, self._pause = now + self._pause, min(2 * self._pause, _MAX_PAUSE_SECONDS)
            number = signal.Signals[f"SIG{self._option.signal}"]
            self._launched.backend.warn(self._launched.handle, number)

    def close(self) -> None:
        """Record a warning that reached no program."""
        if self._option is not None and self._due:
            self._record(f"not sent: no program handled SIG{self._option.signal}")

    def _record(self, detail: str) -> None:
        with suppress(StoreUnavailable):  # it is recorded later
            self._context.write(lambda session: record_warning(session, self._launched.job, detail))
            write_control_file(self._control, WARNED_FILE, _RECORDED)
            self._option = None
