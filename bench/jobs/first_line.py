"""Latency from a submission to the job's first line at a reader, and to its end, against a plain process."""

import shlex
import time

from bench import bounds
from bench.floors.processes import run_and_read
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import INTERPRETER, Connection, Service, follow, run_server, submit

_WARM_UP = 3
_REST_SECONDS = 0.25  # the worker still cleans up after a job when its end is visible
_COMMAND = [INTERPRETER, "-S", "-c", "import time;print(time.time())"]
"""The same for both: without what this machine adds to each start of its interpreter by files in site-packages."""


def run(size: Size) -> Result:
    """Run one job, then one process, in turn, on an idle service."""
    submitted = Series("submit", "ms")
    started = Series("submit → line printed", "ms")
    first = Series("submit → first line read", "ms")
    ended = Series("submit → end seen", "ms")
    ours = (submitted, started, first, ended)
    bare = (Series("bare: first line read", "ms"), Series("bare: end seen", "ms"))
    with run_server("up") as service, service.connect() as connection:
        for _ in range(_WARM_UP):
            _measure_job(service, connection)
        for _ in range(size.rounds):
            for measured in (*ours, *bare):
                measured.begin_round()
            for _ in range(size.pick(20, 3)):
                time.sleep(_REST_SECONDS)
                for measured, value in zip(ours, _measure_job(service, connection), strict=True):
                    measured.add(value)
                for measured, seconds in zip(bare, run_and_read(_COMMAND)[1:], strict=True):
                    measured.add(seconds * 1000)
    goal = ratio_goal("submit → first line read, p50, times a bare process", first, bare[0], bounds.FIRST_LINE)
    return Result([*ours, *bare], [goal])


def _measure_job(service: Service, connection: Connection) -> tuple[float, float, float, float]:
    """Return the milliseconds from the submission to: its answer, the print, the line read, the end."""
    wall, began = time.time(), time.perf_counter()
    job_id = submit(connection, shlex.join(_COMMAND))
    times = {"answer": time.perf_counter() - began}
    for name, data in follow(service, job_id):
        times.setdefault(name, time.perf_counter() - began)
        if name == "line":
            times.setdefault("print", float(data["message"]) - wall)
    return times["answer"] * 1000, times["print"] * 1000, times["line"] * 1000, times["end"] * 1000
