"""What a simulated API can be made to do wrong."""

import threading
import time
from dataclasses import dataclass, field

import grpc

HANG = 24 * 3600.0
"""A delay that outlasts every patience."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way of going wrong.

    Attributes:
        code: gRPC status that is answered; None: the call succeeds, late.
        message: What is said beside it.
        reason: Google's code for it (ErrorInfo.reason); empty: none is given.
        seconds: How long the answer takes.
        done: The work is done all the same, and only the answer is lost.
        times: How many calls it strikes; 0: all from now on.
    """

    code: grpc.StatusCode | None = None
    message: str = "as the simulator was told"
    reason: str = ""
    seconds: float = 0.0
    done: bool = False
    times: int = 1


@dataclass(slots=True)
class Faults:
    """The faults that are still to come, by the method's name; any thread may add some."""

    stopped: threading.Event
    _waiting: dict[str, list[Fault]] = field(default_factory=dict)
    _struck: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, method: str, fault: Fault) -> None:
        """Have the next calls of a method go wrong; `*` is every method."""
        with self._lock:
            self._waiting.setdefault(method, []).append(fault)

    def clear(self) -> None:
        """All goes well from now on."""
        with self._lock:
            self._waiting.clear()
            self._struck.clear()

    def next(self, method: str) -> Fault | None:
        """The fault that strikes this call, if one does."""
        with self._lock:
            for name in (method, "*"):
                faults = self._waiting.get(name)
                if not faults:
                    continue
                fault = faults[0]
                self._struck[name] = self._struck.get(name, 0) + 1
                if fault.times and self._struck[name] >= fault.times:
                    faults.pop(0)
                    self._struck[name] = 0
                return fault
        return None

    def wait(self, seconds: float, context: grpc.ServicerContext) -> None:
        """Take so long, but not longer than somebody waits for the answer."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and context.is_active() and not self.stopped.wait(0.02):
            pass
