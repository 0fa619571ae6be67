"""The API in processes of its own: starts them, starts those again that end, and ends with them.

Meanwhile this process has the API's port open: nobody else can take it, and clients wait for an answer. For a single
process it is also a program that imports little, because it takes memory as long as the service runs.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from service.siblings import Channel

FIRST_PASSED = 3  # the first descriptor that systemd passes to a service
_FIRST = 0
_RESTART_SECONDS = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT)
_READY = signal.SIGUSR1
_SIGNALS = (*_ENDING, _READY, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1


class ApiProcess(NamedTuple):
    number: int
    channels: "Sequence[Channel]"  # channels between all of them; empty: it is the only one
    # call this before the process serves; None: the API was ready before, and this replaces a process
    ready: Callable[[], None] | None

    @property
    def is_first(self) -> bool:
        return self.number == _FIRST


def run_processes(count: int, run: Callable[[ApiProcess], int]) -> int:
    """Run processes until a signal, which each of them gets; return the exit code.

    The others start once the first is ready. If that one fails before, its exit code is returned. `run`: what each
    does, in a fork of this process, which must have neither threads nor connections.
    """
    from service.siblings import open_channels

    channels = open_channels(count)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def become(number: int, ready: Callable[[], None] | None) -> NoReturn:
        sys.exit(run(ApiProcess(number, channels, ready)))

    return _Supervisor(count, become).run()


def run_process(listener: socket.socket, restart: Sequence[str], run: Callable[[ApiProcess], int]) -> int:
    """Run a process until a signal, which it gets; return its exit code. This process becomes its supervisor.

    Args:
        restart: The command that starts the process again, which gets the socket as from systemd.
        run: What it does at first, in a fork of this process, which must have neither threads nor connections.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    supervisor = os.getpid()
    pid = os.fork()
    if pid > 0:
        listener.set_inheritable(True)
        command = [sys.executable, "-I", "-S", __file__, str(listener.fileno()), str(pid), *restart]
        os.execv(sys.executable, command)  # noqa: S606 - words of ours
    _follow(supervisor)
    return run(ApiProcess(_FIRST, (), lambda: os.kill(supervisor, _READY)))


class _Supervisor:
    """Starts processes, and starts those again that end.

    `become`: turns a fork of this process into one of them, given its number, and what to call when it is ready.
    """

    def __init__(
        self, count: int, become: Callable[[int, Callable[[], None] | None], NoReturn], first: int | None = None
    ) -> None:
        self._count = count
        self._become = become
        self._running: dict[int, int] = {} if first is None else {first: _FIRST}  # the number of each process, by pid
        self._due: dict[int, float] = {_FIRST: 0.0} if first is None else {}
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
        if pid == 0:
            _follow(supervisor)
            self._become(number, None if self._ready else lambda: os.kill(supervisor, _READY))
        return pid

    def _start_others(self) -> None:
        if not self._ready and not self._stopping:
            self._due |= {number: 0.0 for number in range(self._count) if number != _FIRST}
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
            _announce(f"The API's process {pid} ended ({code}); it is started again.")
            self._due[number] = time.monotonic() + _RESTART_SECONDS


def _announce(text: str) -> None:
    """Do what `core.monitoring.logging.announce` does, which would load too much."""
    as_json = os.environ.get("GRADIENT_LOG_FORMAT") == "json"
    print(json.dumps({"level": "error", "event": text}) if as_json else text, file=sys.stderr, flush=True)


def _next_ended() -> tuple[int, int] | None:
    """Return pid and exit code of a child that has ended; None if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _follow(supervisor: int) -> None:
    """Let the kernel kill this process when the supervisor ends, however it does, and let it alone pass Ctrl-C on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _start_again(descriptor: int, restart: list[str]) -> NoReturn:
    """Become the command, which gets the socket as systemd passes it (sd_listen_fds(3))."""
    if descriptor != FIRST_PASSED:
        os.dup2(descriptor, FIRST_PASSED)
        os.close(descriptor)
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
    os.execv(restart[0], restart)  # noqa: S606 - words of ours


if __name__ == "__main__":
    _descriptor, _pid, *_restart = sys.argv[1:]
    sys.exit(_Supervisor(1, lambda *_: _start_again(int(_descriptor), _restart), int(_pid)).run())
