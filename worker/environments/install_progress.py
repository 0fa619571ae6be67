"""Reports an installation by what uv prints."""

import re

from worker.backends.base import Progress

INSTALLING = "installing"
"""The phase of an installation, except for its downloads."""

_DOWNLOADING = "downloading"
_RESOLVED = re.compile(r"Resolved (\d+) packages?")
_DOWNLOAD = re.compile(r"(Downloading|Downloaded) (\S+)")


class InstallProgress:
    """Called with each line that uv prints.

    Args:
        report: Called with a phase and its detail.

    Attributes:
        count: The number of packages, as words; empty until it is known.
    """

    def __init__(self, source: str, report: Progress) -> None:
        self._source = source
        self._report = report
        self._started = self._completed = 0
        self.count = ""

    def __call__(self, line: str) -> None:
        """Report the step that a line announces."""
        if found := _RESOLVED.match(line):
            self.count = f"{found[1]} package{'' if found[1] == '1' else 's'}"
            self._report(INSTALLING, f"{self.count} for {self._source}")
        elif found := _DOWNLOAD.match(line):
            ended = found[1] == "Downloaded"
            self._started, self._completed = self._started + (not ended), self._completed + ended
            self._report(_DOWNLOADING, f"{self._source}: {self._completed} of {self._started} ({found[2]})")
