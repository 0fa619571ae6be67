"""The processes of this host."""

from collections.abc import Iterator
from contextlib import suppress

import psutil


def running_processes() -> Iterator[psutil.Process]:
    """Yield every process.

    `psutil.process_iter` keeps its objects from one call to the next. In a program that runs for long, one of them can
    stand for an earlier process with the same pid, and then refuses to signal the one that has it now.
    """
    for pid in psutil.pids():
        with suppress(psutil.Error):  # it has ended
            yield psutil.Process(pid)
