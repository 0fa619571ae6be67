import re
import time
from collections.abc import Callable

from worker.backends.base import Progress

INSTALLING = "installing"  # the phase of an installation, except for its downloads

_DOWNLOADING = "downloading"
_RESOLVED = re.compile(r"Resolved (\d+) packages?")
_DOWNLOAD = re.compile(r"(Downloading|Downloaded|Building|Built) ((\S+).*)")
_QUIET_SECONDS = 4.0


class InstallProgress:
    """The progress of an installation, called with each line that uv prints.

    `report`: called with a phase and its detail. `check`: called periodically; an exception ends the installation, or
    the wait for another one.
    """

    def __init__(self, source: str, report: Progress, check: Callable[[], None]) -> None:
        self._source = source
        self._report = report
        self._check = check
        self._began = self._reported = time.monotonic()
        self._waiting: dict[str, str] = {}
        self._step = INSTALLING, source
        self.count = ""  # the number of packages, as words; empty until it is known

    def __call__(self, line: str) -> None:
        if match := _RESOLVED.match(line):
            self.count = f"{match[1]} package{'' if match[1] == '1' else 's'}"
            self._tell(INSTALLING, f"{self.count} for {self._source}")
        elif match := _DOWNLOAD.match(line):
            step, text, name = match.groups()
            if step.endswith("ing"):
                self._waiting[name] = text
            else:
                self._waiting.pop(name, None)
            phase = _DOWNLOADING if step.startswith("Download") else INSTALLING
            self._tell(phase, f"{self._source}: {self._describe_waiting() or f'{text} is here'}")

    def announce(self, *, waits: bool) -> None:
        """Report the beginning of an installation, here or by another job."""
        also = " (another job is installing the same packages)" if waits else " (only once: later jobs reuse them)"
        self._tell(INSTALLING, f"{self._source}{also}")

    def check(self) -> None:
        """Report that the last step goes on, if nothing was reported for some seconds."""
        self._check()
        if time.monotonic() - self._reported > _QUIET_SECONDS:
            phase, detail = self._step
            waiting = self._describe_waiting()
            detail = f"{self._source}: {waiting}" if waiting else detail
            self._reported = time.monotonic()
            self._report(phase, f"{detail}, {self._reported - self._began:.0f} s")

    def _describe_waiting(self) -> str:
        """Name the first of what is being downloaded or built; how much is to come, uv does not tell."""
        first, *others = [*self._waiting.values()] or [""]
        return f"{first} and {len(others)} more" if others else first

    def _tell(self, phase: str, detail: str) -> None:
        self._step, self._reported = (phase, detail), time.monotonic()
        self._report(phase, detail)
