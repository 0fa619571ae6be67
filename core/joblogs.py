"""What jobs print: one log per job, raw bytes on disk with an index of lines and times beside them.

One writer at a time, in any process, which may be killed at any byte: a record of the index commits the raw
bytes before it, and whatever lies past the last record is cut off when the log is opened again. Readers only
see what is committed, so they may be anywhere and need no lock.
"""

import re
from contextlib import suppress
from pathlib import Path

from core.errors import JobNotFound
from core.joblog_reader import LogLine, LogReader
from core.joblog_writer import DEFAULT_MAX_BYTES, LogWriter
from core.trees import remove_tree

__all__ = ["JobLogs", "LogLine", "LogReader", "LogWriter"]

_NUDGE = "changed"
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JobLogs:
    """All job logs under one directory."""

    def __init__(self, root: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def directory(self, job_id: str) -> Path:
        """Where the log of this job lies; it exists once a writer was opened.

        Raises:
            JobNotFound: No job could have this id, e.g. because it leads out of the directory.
        """
        if not _JOB_ID.fullmatch(job_id):
            raise JobNotFound(job_id)
        return self._root / job_id[:3] / job_id

    def open_writer(self, job_id: str, attempt: int) -> LogWriter:
        """Opens the log for one attempt, from where the last writer committed.

        Only one writer may be open for a job; the caller's lease sees to that.

        Raises:
            LeaseLost: A later attempt has already written.
        """
        return LogWriter(self.directory(job_id), attempt, max_bytes=self._max_bytes)

    def reader(self, job_id: str) -> LogReader:
        """A reader, which holds no open file between calls; a job that printed nothing yet reads as empty."""
        return LogReader(self.directory(job_id))

    def nudge(self, job_id: str) -> None:
        """Wakes whoever follows the log: the job's row has changed. Where nobody ever followed it does nothing.

        Followers look now and then anyway, so a nudge that cannot be given (the disk is full) is no failure.
        """
        with suppress(OSError), (self.directory(job_id) / _NUDGE).open("wb", buffering=0) as file:
            file.write(b".")

    def nudged_at(self, job_id: str) -> int:
        """When `nudge` was last called, in nanoseconds of the file system's clock; 0 if it never was."""
        try:
            return (self.directory(job_id) / _NUDGE).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def remove(self, job_id: str) -> None:
        """Deletes the log; deleting a missing one is success."""
        remove_tree(self.directory(job_id))
