import signal
import threading
from types import FrameType, TracebackType
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Remembers that SIGTERM or SIGINT arrived, so that a training can end after a step.

    As a context manager it handles the signals while the block runs and restores the earlier handlers afterwards. A
    second SIGINT interrupts at once. Outside the main thread Python cannot handle signals; there it does nothing.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None  # the signal that arrived first, or None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]  # what signal.signal returned before

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number)
