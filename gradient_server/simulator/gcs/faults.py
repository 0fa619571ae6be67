import threading
import time
from dataclasses import dataclass

from gradient_server.simulator.gcs.objects import StorageError


@dataclass
class _Failure:
    status: int
    remaining: int
    method: str | None
    path: str
    seconds: float = 0.0

    def matches(self, method: str, path: str) -> bool:
        return self.remaining > 0 and self.method in {None, method} and self.path in path


class StorageFaults:
    """Pending faults; `mend` removes all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear_faults()

    def clear_faults(self) -> None:
        with self._lock:
            self._failures: list[_Failure] = []
            self._broken: list[_Failure] = []
            self._delays: list[_Failure] = []

    def fail(self, status: int, times: int = 1, *, method: str | None = None, path: str = "") -> None:
        """Answer the next requests with this status.

        Args:
            status: The HTTP status, such as 503.
            method: Only requests of this method; `UPLOAD` for uploads of objects.
            path: Only requests whose path and query contain this; for `UPLOAD`, the object's name.
        """
        with self._lock:
            self._failures.append(_Failure(status, times, method, path))

    def disconnect_uploads(self, times: int = 1, *, path: str = "") -> None:
        """Close the connection in the middle of the next uploads' bodies."""
        with self._lock:
            self._broken.append(_Failure(0, times, None, path))

    def slow(self, seconds: float, *, method: str | None = None, path: str = "") -> None:
        """Wait before each answer, or before those to some requests; see `fail`."""
        with self._lock:
            self._delays.append(_Failure(0, 1, method, path, seconds))

    def apply_fault(self, method: str, path: str) -> None:
        with self._lock:
            delay = sum(one.seconds for one in self._delays if one.matches(method, path))
        time.sleep(delay)
        with self._lock:
            found = next((one for one in self._failures if one.matches(method, path)), None)
            if found is not None:
                found.remaining -= 1
                raise StorageError(found.status, "backendError", f"A fault on request: {found.status}.")

    def disconnects(self, path: str) -> bool:
        """Return whether to break off this upload, counting it."""
        with self._lock:
            found = next((one for one in self._broken if one.matches("", path)), None)
            if found is not None:
                found.remaining -= 1
            return found is not None
