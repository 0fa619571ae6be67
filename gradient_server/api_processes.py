"""The API in several processes: starts them, starts those again that end, and ends with them."""

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from service.siblings import FIRST, Channel, open_channels

logger = logging.getLogger(__name__)

_RESTART_SECONDS = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT)
_READY = signal.SIGUSR1
_SIGNALS = (*_ENDING, _READY, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1


class ApiProcess(NamedTuple):
    """One process of the API.

    Attributes:
        number: Its number.
        channels: Channels between all of them; empty: it is the only one.
        ready: Call this before the process serves; None: the API was ready before, and this replaces a process.
    """

    number: int
    channels: Sequence[Channel]
    ready: Callable[[], None] | None

    @property
    def is_first(self) -> bool:
        """True for the process that has what exists once."""
        return self.number == FIRST


def run_processes(count: int, run: Callable[[ApiProcess], int]) -> int:
    """Run processes until a signal, which each of them gets; return the exit code.

    The others start once the first is ready. If that one fails before, its exit code is returned.

    Args:
        count: Number of processes.
        run: What each does, in a fork of this process, which must have neither threads nor connections.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    return _Supervisor(count, run).run()


class _Supervisor:
    def __init__(self, count: int, run: Callable[[ApiProcess], int]) -> None:
        self._run = run
        self._channels = open_channels(count)
        self._running: dict[int, int] = {}
        """The number of each process, by pid."""
        self._due: dict[int, float] = {FIRST: 0.0}
        """Time of each start that is to come, monotonic, by number."""
        self._ready = self._stopping = False
        self._exit_code = 0

    def run(self) -> int:
        while self._due or self._running:
            self._start_due()
            wait = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            signalled = signal.sigwaitinfo(_SIGNALS) if wait is None else signal.sigtimedwait(_SIGNALS, wait)
            number = signalled.si_signo if signalled else None
            if number == _READY:
                self._start_others()
            elif number in _ENDING:
                self._stop(signal.Signals(number))
            self._reap()
        return self._exit_code

    def _start_due(self) -> None:
        for number in [number for number, at in self._due.items() if at <= time.monotonic()]:
            del self._due[number]
            self._running[self._fork(number)] = number

    def _fork(self, number: int) -> int:
        supervisor = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        _end_with(supervisor)
        os.setpgid(0, 0)  # Ctrl-C reaches the supervisor alone, which passes it on
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        ready = None if self._ready else lambda: os.kill(supervisor, _READY)
        sys.exit(self._run(ApiProcess(number, self._channels, ready)))

    def _start_others(self) -> None:
        if not self._ready and not self._stopping:
            self._due |= {number: 0.0 for number in range(len(self._channels)) if number != FIRST}
        self._ready = True

    def _stop(self, number: signal.Signals) -> None:
        self._stopping = True
        self._due.clear()
        for pid in self._running:
            os.kill(pid, number)

    def _reap(self) -> None:
        # Of all children: as process 1 of a container it also gets those of processes that have ended.
        while (ended := _next_ended()) is not None:
            pid, code = ended
            number = self._running.pop(pid, None)
            if number is None or self._stopping:
                continue
            if not self._ready and code > 0:
                self._exit_code = code
                continue
            logger.error("api_process_ended", extra={"number": number, "pid": pid, "exit_code": code})
            self._due[number] = time.monotonic() + _RESTART_SECONDS


def _next_ended() -> tuple[int, int] | None:
    """Return pid and exit code of a child that has ended; None if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _end_with(supervisor: int) -> None:
    """Let the kernel kill this process when the supervisor ends, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
