"""Job logs: one per job, raw bytes on disk with an index of lines and times.

One writer at a time, in any process, which may be killed at any byte: a record of the index commits the raw
bytes before it, and bytes past the last record are cut off when the log is opened again. Readers only
see committed bytes, so they may be in any process and need no lock.
"""

import os
from contextlib import suppress
from pathlib import Path

from core.ids import checked_job_id
from core.storage.joblogs.reader import LogLine, LogReader
from core.storage.joblogs.writer import DEFAULT_MAX_BYTES, LogSink, LogWriter
from core.system.untrusted_folders import remove_tree

__all__ = ["JobLogs", "LogLine", "LogReader", "LogWriter"]

_NOTIFY_FILE = "changed"


class JobLogs:
    def __init__(self, root: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def directory(self, job_id: str) -> Path:
        """Return the folder of a job's log; it exists once a writer was opened."""
        return Path(self._root, checked_job_id(job_id)[:3], job_id)

    def open_writer(self, job_id: str, attempt: int) -> LogSink:
        """Open the log for one attempt, continuing after the last commit.

        Only one writer may be open for a job; the caller's lease ensures that.
        """
        return LogWriter(self.directory(job_id), attempt, max_bytes=self._max_bytes)

    def reader(self, job_id: str) -> LogReader:
        """Return a reader, which holds no open file between calls; the log of a job without output reads as empty."""
        return LogReader(self.directory(job_id))

    def size(self, job_id: str, attempt: int) -> int:
        """Return the bytes of a job's log, for the worker that runs this attempt."""
        del attempt  # a job has one log
        return self.reader(job_id).size

    def notify_followers(self, job_id: str) -> None:
        """Wake the log's followers, because the job's row has changed.

        Followers also poll, so it is not an error if this fails (the disk is full, or there is no log yet).
        """
        with suppress(OSError):
            file = os.open(f"{self.directory(job_id)}/{_NOTIFY_FILE}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, b".")
            finally:
                os.close(file)

    def notified_at(self, job_id: str) -> int:
        """Return the time of the last `notify_followers`, in nanoseconds of the file system's clock; 0: never."""
        try:
            return (self.directory(job_id) / _NOTIFY_FILE).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def remove(self, job_id: str) -> None:
        """Delete the log; it is not an error if there is none."""
        remove_tree(self.directory(job_id))
