import time
from dataclasses import dataclass

from gradient_server.simulator.gcs.objects import StorageError


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
