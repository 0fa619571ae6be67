"""The simulated Cloud Storage with faults."""

import time
from dataclasses import dataclass

from gradient_server.simulator.gcs.api import StorageApi
from gradient_server.simulator.gcs.objects import BucketStore, StorageError
from gradient_server.simulator.gcs.server import GcsSimulator, StorageHandler


@dataclass
class _Fault:
    kind: str
    remaining: int
    method: str | None
    path: str
    amount: float = 0.0  # the status of a failure, the seconds of a delay


class StorageFaults:
    """Pending faults of requests of a method, `UPLOAD` for uploads of objects.

    `path`: part of their path and query; for `UPLOAD`, of the object's name.
    """

    def __init__(self) -> None:
        self._faults: list[_Fault] = []

    def clear_faults(self) -> None:
        self._faults = []

    def fail(self, status: int, times: int = 1, *, method: str | None = None, path: str = "") -> None:
        """Answer the next requests with this status."""
        self._faults.append(_Fault("failure", times, method, path, status))

    def disconnect_uploads(self, times: int = 1, *, path: str = "") -> None:
        """Close the connection in the middle of the next uploads' bodies."""
        self._faults.append(_Fault("disconnect", times, None, path))

    def slow(self, seconds: float, *, method: str | None = None, path: str = "") -> None:
        """Wait before each answer."""
        self._faults.append(_Fault("delay", 1, method, path, seconds))

    def apply_fault(self, method: str, path: str) -> None:
        time.sleep(sum(fault.amount for fault in self._matching("delay", method, path)))
        for fault in self._matching("failure", method, path)[:1]:
            fault.remaining -= 1
            raise StorageError(int(fault.amount), f"A fault on request: {fault.amount:g}.")

    def disconnects(self, path: str) -> bool:
        """Return whether to break off this upload, counting it."""
        faults = self._matching("disconnect", None, path)[:1]
        for fault in faults:
            fault.remaining -= 1
        return bool(faults)

    def _matching(self, kind: str, method: str | None, path: str) -> list[_Fault]:
        return [
            fault
            for fault in self._faults
            if fault.kind == kind and fault.remaining > 0 and fault.method in {None, method} and fault.path in path
        ]


class FaultyGcs(GcsSimulator):
    """The server with fault injection."""

    def __init__(self, others=None):
        super().__init__(others=others)
        self.faults, self.buckets = StorageFaults(), _Buckets()
        self.buckets.faults = self.faults
        self.server.api = _Api(self.buckets, self.tokens, others or {})
        self.server.api.faults = self.faults
        self.server.RequestHandlerClass = _Handler


class _Buckets(BucketStore):
    def put(self, bucket, name, content, fields, conditions):
        self.faults.apply_fault("UPLOAD", name)
        return super().put(bucket, name, content, fields, conditions)

    def begin(self, bucket, name, fields, conditions):
        self.faults.apply_fault("UPLOAD", name)
        return super().begin(bucket, name, fields, conditions)

    def finish(self, upload):
        self.uploads.pop(upload.id, None)
        return super().put(upload.bucket, upload.name, upload.content, upload.fields, upload.conditions)


class _Api(StorageApi):
    def dispatch(self, request):
        self.faults.apply_fault(request.method, request.target)
        return super().dispatch(request)


class _Handler(StorageHandler):
    def read_body(self):
        body = super().read_body()
        if self.command in {"POST", "PUT"} and self.server.simulator.faults.disconnects(self.path):
            self.server.simulator.record_request(f"{self.command} {self.path}")
            raise ConnectionResetError
        return body
