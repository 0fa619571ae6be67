"""Logs of jobs on a host that shares only the network with its service."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from core.errors import StoreUnavailable
from core.storage.joblogs.store import JobLogs
from core.storage.joblogs.writer import LogSink
from worker.service_link.link import ServiceLink


class ServiceLogs(JobLogs):
    """Sends logs to the service. The job's own output is the only copy here."""

    def __init__(self, root: Path, link: ServiceLink) -> None:
        super().__init__(root)
        self._link = link

    def open_writer(self, job_id: str, attempt: int) -> LogSink:
        return ServiceLogWriter(self._link, f"jobs/{job_id}/{attempt}/log")

    def size(self, job_id: str, attempt: int) -> int:
        return int(self._link.read_json("GET", f"jobs/{job_id}/{attempt}/log")["size"])

    def notify_followers(self, job_id: str) -> None:
        with suppress(StoreUnavailable):
            self._link.request("POST", f"jobs/{job_id}/changed")


class _Unsent(NamedTuple):
    data: bytes
    end: int  # the position after it
    query: dict[str, int]


class ServiceLogWriter:
    """Appends the output of one attempt to its job's log at the service, one request for each block.

    A block that could not be sent is kept, and `flush` sends it; there is at most one.
    """

    def __init__(self, link: ServiceLink, path: str) -> None:
        self._link = link
        self._path = path
        self._unsent: _Unsent | None = None
        self._position = self._remaining = 0
        self._send(b"", {})

    @property
    def position(self) -> int:
        return self._unsent.end if self._unsent else self._position

    @property
    def remaining_bytes(self) -> int:
        return max(0, self._remaining - (len(self._unsent.data) if self._unsent else 0))

    def append(self, data: bytes, at_ms: int, *, source_bytes: int | None = None) -> None:
        del at_ms  # the service's clock counts
        moved = len(data) if source_bytes is None else source_bytes
        if data or moved:
            self._accept(_Unsent(data, self.position + moved, {"source_bytes": moved}))

    def append_gap(self, skipped_bytes: int, resume_source_offset: int, at_ms: int) -> None:
        del skipped_bytes, at_ms
        self._accept(_Unsent(b"", resume_source_offset, {"resume": resume_source_offset}))

    def flush(self) -> None:
        if self._unsent is not None:
            self._send(self._unsent.data, {"offset": self._position} | self._unsent.query)

    def sync(self) -> None:
        self.flush()
        self._send(b"", {"sync": 1})

    def close(self, *, sync: bool = True) -> None:
        if sync:
            self.sync()

    def _accept(self, block: _Unsent) -> None:
        self.flush()
        self._unsent = block
        with suppress(StoreUnavailable):
            self.flush()

    def _send(self, data: bytes, query: dict[str, int]) -> None:
        stored = self._link.read_json("POST", self._path, data, query)
        self._position, self._remaining = stored["position"], stored["remaining"]
        self._unsent = None
