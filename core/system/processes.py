"""The processes of this host."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil


def running_processes(pids: Iterable[int] | None = None) -> Iterator[psutil.Process]:
    """Yield the processes with these pids, or all of the host, except those that have ended.

    `psutil.process_iter` keeps its objects from one call to the next. In a program that runs for long, one of them can
    stand for an earlier process with the same pid, and then refuses to signal the one that has it now.
    """
    for pid in psutil.pids() if pids is None else pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process
