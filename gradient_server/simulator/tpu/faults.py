import threading
import time
from dataclasses import dataclass, field

import grpc

HANG = 24 * 3600.0  # a delay longer than every timeout, in seconds


@dataclass(frozen=True, slots=True)
class TpuFault:
    code: grpc.StatusCode | None = None  # gRPC status of the response; None: the call succeeds, after the delay
    message: str = "as the simulator was told"
    reason: str = ""  # Google's error code (ErrorInfo.reason); empty: none
    delay: float = 0.0  # seconds after which Google asks to be asked again (RetryInfo); 0: it does not say
    seconds: float = 0.0
    done: bool = False  # the work is done all the same, and only the response is lost
    times: int = 1  # number of calls it affects; 0: all from now on


@dataclass(slots=True)
class TpuFaults:
    """Pending faults by method name. Thread-safe."""

    stopped: threading.Event
    _pending: dict[str, list[TpuFault]] = field(default_factory=dict)
    _call_counts: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, method: str, fault: TpuFault) -> None:
        """Add a fault for the next calls of a method; `*` is every method."""
        with self._lock:
            self._pending.setdefault(method, []).append(fault)

    def clear(self) -> None:
        with self._lock:
            self._pending.clear()
            self._call_counts.clear()

    def next(self, method: str) -> TpuFault | None:
        with self._lock:
            for name in (method, "*"):
                faults = self._pending.get(name)
                if not faults:
                    continue
                fault = faults[0]
                self._call_counts[name] = self._call_counts.get(name, 0) + 1
                if fault.times and self._call_counts[name] >= fault.times:
                    faults.pop(0)
                    self._call_counts[name] = 0
                return fault
        return None

    def wait(self, seconds: float, context: grpc.ServicerContext | None) -> None:
        """Sleep for `seconds`, or until the client cancels or the server stops."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and (context is None or context.is_active()) and not self.stopped.wait(0.02):
            pass
