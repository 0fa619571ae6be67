"""Many followers of live logs: the delay of each line, other calls meanwhile, and the server's memory and CPU time."""

import itertools
import multiprocessing
import os
import re
import selectors
import shlex
import socket
import time
from bisect import bisect_right
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

from bench import bounds
from bench.measure import Goal, Result, Series, Size
from bench.server.reads import new_database
from bench.service import (
    INTERPRETER,
    NO_LIMITS,
    ROOT,
    Connection,
    Service,
    cpu_seconds,
    run_server,
    server_processes,
    submit_many,
    wait_for,
)

_CASES = ((80, 1), (200, 1), (1000, 1), (200, 200))
"""Followers and logs."""
_PROGRAM = "import time, itertools\nfor n in itertools.count(1): print(n, time.time(), flush=True); time.sleep({})"
_INTERVALS = {1: 0.05, 200: 1.0}
"""Seconds between the lines of a log, by the number of logs."""
_CONNECT_SECONDS = 60
_END_SECONDS = 60
_START_SECONDS = 300
_CALL_SECONDS = 40
_CALLS = ("/health", "/jobs?limit=20", "stop")
_LINE = re.compile(rb'"line":\d+,"timestamp":"[^"]*","message":"(\d+) ([\d.]+)"')
_MIB = 1024**2


def run(size: Size) -> Result:
    """Measure each number of followers, with a server of its own."""
    cases = _CASES[: size.pick(len(_CASES), 1)]
    checkouts = {"service": ROOT} | ({"before": size.before} if size.before else {})
    delays = {case: Series(f"{case[0]} followers of {case[1]} logs: printed → received", "ms") for case in cases}
    table: list[dict[str, Any]] = []
    goals: list[Goal] = []
    for followers, logs in cases:
        for name, checkout in checkouts.items():
            processes = size.processes if name == "service" else 1
            settings = NO_LIMITS | {
                "GRADIENT_LIMITS__STREAMS": "0",
                "GRADIENT_API__MAX_CONNECTIONS": "4096",
                "GRADIENT_API__MAX_CONNECTIONS_PER_CLIENT": "4096",
                "GRADIENT_WORKER__SLOTS": str(logs + 1),
            }
            with ExitStack() as stack:
                if size.database:
                    settings["GRADIENT_DATABASE__URL"] = stack.enter_context(new_database(size.database))
                several = ["--processes", str(processes)] if processes > 1 else []
                service = stack.enter_context(run_server("up", *several, checkout=checkout, **settings))
                outcome = _measure(service, followers, logs, size.pick(10, 2))
            table.append({"server": name, "followers": followers, "logs": logs} | outcome.columns())
            if name == "service":
                delays[followers, logs].rounds.append(outcome.delays or [float("inf")])
                what = f"{followers} followers of {logs} logs"
                goals.append(
                    Goal(f"{what}: share that got every line once", 1 - outcome.wrong / followers, 1.0, at_most=False)
                )
                slower = max(outcome.busy[call].p99 / outcome.idle[call].p99 for call in _CALLS)
                goals.append(Goal(f"{what}: p99 of other calls, of nobody following", slower, bounds.FOLLOWED_CALLS))
                goals.append(Goal(f"{what}: memory, RSS, MiB", outcome.memory, bounds.BUSY_MEMORY_MIB))
    return Result(list(delays.values()), goals, table)


@dataclass(slots=True)
class _Found:
    """Figures of one case: delays of lines in ms, followers that missed something, other calls in ms, MiB, CPUs."""

    idle: dict[str, Series]
    busy: dict[str, Series]
    delays: list[float] = field(default_factory=list)
    wrong: int = 0
    errors: int = 0
    memory: float = 0.0
    cpus: float = 0.0
    load: float = 0.0

    def columns(self) -> dict[str, Any]:
        """Return the figures for the table."""
        ordered = sorted(self.delays) or [float("inf")]
        calls = {
            f"{call.strip('/').partition('?')[0]}P99Ms": f"{self.busy[call].p99:.1f}/{self.idle[call].p99:.1f}"
            for call in _CALLS
        }
        return {
            "wrong": self.wrong,
            "lineP50Ms": round(ordered[len(ordered) // 2], 1),
            "lineP99Ms": round(ordered[-(len(ordered) // 100) - 1], 1),
            **calls,
            "callErrors": self.errors,
            "rssMib": round(self.memory),
            "cpus": round(self.cpus, 2),
            "load": round(self.load, 1),
        }


def _measure(service: Service, followers: int, logs: int, seconds: int) -> _Found:
    command = shlex.join([INTERPRETER, "-c", _PROGRAM.format(_INTERVALS[logs])])
    with service.connect() as connection:
        ids = submit_many(connection, command, logs)
        (ended,) = submit_many(connection, "true", 1)
    service.wait(ended, _START_SECONDS)
    for job_id in ids:
        wait_for(lambda job_id=job_id: service.job(job_id)["state"] == "Running" or None, "its start", _START_SECONDS)
    outcome = _Found(*({call: Series(call, "ms") for call in _CALLS} for _ in range(2)))
    _call(service, ended, outcome.idle, outcome, seconds)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    client = context.Process(target=_follow, args=(service, (ids * followers)[:followers], theirs))
    client.start()
    try:
        ours.recv()
        began, spent = time.time(), cpu_seconds(service.pid)
        _call(service, ended, outcome.busy, outcome, seconds)
        until = time.time()
        outcome.cpus = (cpu_seconds(service.pid) - spent) / (until - began)
        outcome.memory = sum(process.memory_info().rss for process in server_processes(service.pid)) / _MIB
        outcome.load = os.getloadavg()[0]
        _stop(service, ids)
        ours.send((began, until))
        outcome.wrong, outcome.delays = ours.recv()
    finally:
        client.terminate()
        client.join()
    return outcome


def _stop(service: Service, ids: list[str]) -> None:
    with service.connect() as connection:
        for job_id in ids:
            connection.post(f"/jobs/{job_id}/stop?now=true", b"")
    for job_id in ids:
        service.wait(job_id)


def _call(service: Service, ended: str, series: dict[str, Series], outcome: _Found, seconds: float) -> None:
    """Make the calls in turn for some seconds, and at least one of each; stops are of a job that has ended."""
    deadline = time.monotonic() + seconds
    for measured in series.values():
        measured.begin_round()
    connection = Connection(service.port, service.headers, _CALL_SECONDS)
    for call in itertools.cycle(_CALLS):
        began = time.perf_counter()
        try:
            status, _ = connection.post(f"/jobs/{ended}/stop", b"") if call == "stop" else connection.get(call)
        except OSError:
            status = 0
            connection = Connection(service.port, service.headers, _CALL_SECONDS)
        series[call].add((time.perf_counter() - began) * 1000)
        outcome.errors += status != 200  # noqa: PLR2004 - OK
        if call == _CALLS[-1] and time.monotonic() > deadline:
            return


def _follow(service: Service, ids: list[str], pipe: Pipe) -> None:
    """Follow logs until their ends, in a process of its own that only receives until then; report what was received."""
    received: dict[socket.socket, list[tuple[float, bytes]]] = {}
    fields = {"host": "127.0.0.1", "accept": "text/event-stream", **service.headers}
    headers = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    waiting = selectors.DefaultSelector()
    for job_id in ids:
        with suppress(OSError):
            stream = socket.create_connection(("127.0.0.1", service.port), _CONNECT_SECONDS)
            stream.sendall(f"GET /jobs/{job_id}/logs HTTP/1.1\r\n{headers}\r\n".encode())
            received[stream] = []
            waiting.register(stream, selectors.EVENT_READ)
    connected: set[socket.socket] = set()
    deadline, reported = time.monotonic() + _CONNECT_SECONDS, False
    stopping = None
    while waiting.get_map():
        for key, _ in waiting.select(0.5):
            stream = key.fileobj
            assert isinstance(stream, socket.socket)  # noqa: S101 - it was registered
            data = stream.recv(_MIB)
            received[stream].append((time.time(), data))
            if b"event: line" in data:
                connected.add(stream)
            if not data or b"event: end" in data:
                waiting.unregister(stream)
        if not reported and (len(connected) == len(ids) or time.monotonic() > deadline):
            reported = True
            pipe.send(None)
        if stopping is None and pipe.poll():
            stopping, deadline = pipe.recv(), time.monotonic() + _END_SECONDS
        if stopping is not None and time.monotonic() > deadline:
            break
    began, until = stopping or pipe.recv()
    delays: list[float] = []
    complete = [_check(chunks, began, until, delays) for chunks in received.values()]
    pipe.send((len(ids) - sum(complete), delays))


def _check(chunks: list[tuple[float, bytes]], began: float, until: float, delays: list[float]) -> bool:
    """Add the delays of lines printed meanwhile; return whether every line came once, in order, and then the end."""
    data = b"".join(chunk for _, chunk in chunks)
    ends = list(itertools.accumulate(len(chunk) for _, chunk in chunks))
    numbers = []
    for match in _LINE.finditer(data):
        numbers.append(int(match[1]))
        printed = float(match[2])
        if began <= printed <= until:
            delays.append((chunks[bisect_right(ends, match.end() - 1)][0] - printed) * 1000)
    return numbers == list(range(1, len(numbers) + 1)) and b"event: end" in data
