"""Latency for authenticated clients under abuse by others: silent connections, huge bodies, sign-ins."""

import itertools
import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from bench import bounds
from bench.measure import Goal, Result, Series, Size
from bench.service import Service, run_server

_SILENT = 1000
_SIGN_INS_A_SECOND = 80
_MIB = 1024**2
_PATHS = ("/health", "/jobs")
_TIMEOUT = 60.0
_NICENESS = 19  # strangers have processors of their own


def run(size: Size) -> Result:
    """Apply each load in turn, in each round, and send single requests, each over a new connection."""
    count = size.pick(200, 10)
    loads: dict[str, Callable[[Service], Iterator[None]]] = {
        "idle": _idle,
        f"{_SILENT} half-sent requests": _silent,
        "bodies of 400 MB": _bodies,
        f"{_SIGN_INS_A_SECOND} sign-ins a second": _sign_ins,
    }
    series = {(path, load): Series(f"GET {path}, {load}", "ms") for load in loads for path in _PATHS}
    with ExitStack() as stack:
        service = stack.enter_context(run_server("api"))
        for _ in range(size.rounds):
            for load, apply in loads.items():
                with _own_process(apply, service):
                    for path in _PATHS:
                        series[path, load].begin_round()
                        for _ in range(count):
                            series[path, load].add(_get(service, path))
    goals = [
        Goal(f"p99 of GET {path}, {load}, of idle", series[path, load].p99 / series[path, "idle"].p99, bounds.ABUSE)
        for (path, load) in series
        if load != "idle"
    ]
    return Result(list(series.values()), goals)


def _get(service: Service, path: str) -> float:
    began = time.perf_counter()
    with service.get(path) as answer:
        answer.read()
    return (time.perf_counter() - began) * 1000


@contextmanager
def _own_process(load: Callable[[Service], Iterator[None]], service: Service) -> Iterator[None]:
    """Apply a load from a process of its own: threads of this one would delay the requests that are timed."""
    fork = multiprocessing.get_context("fork")
    ready, ended = fork.Event(), fork.Event()

    def apply() -> None:
        os.nice(_NICENESS)
        with contextmanager(load)(service):
            ready.set()
            ended.wait()

    process = fork.Process(target=apply)
    process.start()
    try:
        if not ready.wait(_TIMEOUT):
            raise TimeoutError(f"waited {_TIMEOUT:.0f} s for the load to begin")
        yield
    finally:
        ended.set()
        process.join()


def _idle(_service: Service) -> Iterator[None]:
    yield


def _silent(service: Service) -> Iterator[None]:
    with ExitStack() as stack:
        for number in range(_SILENT):
            opened = stack.enter_context(_connect(service, number))
            opened.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        yield


def _bodies(service: Service) -> Iterator[None]:
    head = b"POST /users/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    with _repeat(lambda number: _send(service, number, head, 400), threads=4):
        yield


def _sign_ins(service: Service) -> Iterator[None]:
    def sign_in(number: int) -> None:
        body = json.dumps({"email": f"user{number}@example.org", "password": "a guess of a stranger"}).encode()
        head = f"POST /users/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with _connect(service, number) as opened:
            opened.sendall(head + body)
            opened.recv(_MIB)

    with _repeat(sign_in, threads=_SIGN_INS_A_SECOND, seconds=1.0):
        yield


def _send(service: Service, number: int, head: bytes, mib: int) -> None:
    with _connect(service, number) as opened:
        opened.sendall(head + f"Content-Length: {mib * _MIB}\r\n\r\n".encode())
        block = bytes(_MIB)
        for _ in range(mib):
            opened.sendall(block)


def _connect(service: Service, number: int) -> socket.socket:
    """Connect from one of many addresses, as different strangers would."""
    return socket.create_connection(("127.0.0.1", service.port), _TIMEOUT, (f"127.0.{1 + number % 250}.1", 0))


@contextmanager
def _repeat(act: Callable[[int], None], *, threads: int, seconds: float = 0.0) -> Iterator[None]:
    """Repeat an action in several threads, in each at most once every `seconds`, and evenly in all of them."""
    ended, numbers = threading.Event(), itertools.count()

    def go_on(index: int) -> None:
        ended.wait(index / threads * seconds)
        while not ended.is_set():
            began = time.monotonic()
            with suppress(OSError):  # the service closes the connection, as intended
                act(next(numbers))
            ended.wait(max(0.0, began + seconds - time.monotonic()))

    running = [threading.Thread(target=go_on, args=[index]) for index in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in running:
            thread.join()
