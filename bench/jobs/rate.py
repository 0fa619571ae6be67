"""Rate of trivial jobs from their submission to the end of the last one, against a loop of the same commands."""

import sqlite3
import subprocess
import time
from contextlib import closing

from bench import bounds
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import NO_LIMITS, Connection, Service, cpu_seconds, run_server, submit_many, wait_for

_COMMAND = "true"
_WARM_UP = 10
_LONGEST_SECONDS = 600


def run(size: Size) -> Result:
    """Submit jobs and wait until all have ended; then run the same commands directly, one by one."""
    ours = Series("jobs, submission → end of the last", "1/s")
    server = Series("server's CPU time per job", "ms")
    floor = Series("bash -c true, one by one", "1/s")
    count = size.pick(300, 20)
    with run_server("up", **NO_LIMITS) as service, service.connect() as connection:
        _measure(service, connection, _WARM_UP)
        for _ in range(size.rounds):
            for measured in (ours, server, floor):
                measured.begin_round()
            for measured, value in zip((ours, server), _measure(service, connection, count), strict=True):
                measured.add(value)
            began = time.perf_counter()
            for _ in range(count):
                subprocess.run(["/bin/bash", "-c", _COMMAND], check=True)
            floor.add(count / (time.perf_counter() - began))
    goal = ratio_goal("jobs a second, of bare processes", ours, floor, bounds.JOBS_RATE, at_most=False)
    return Result([ours, server, floor], [goal])


def _measure(service: Service, connection: Connection, count: int) -> tuple[float, float]:
    """Return jobs per second, and the milliseconds of the server's own CPU time per job."""
    before, began = cpu_seconds(service.pid), time.perf_counter()
    submit_many(connection, _COMMAND, count)
    # Not by requests, which would take CPU time of the server.
    with closing(sqlite3.connect(service.home / "gradient.db")) as database:
        wait_for(lambda: all_ended(database), "the end of all jobs", _LONGEST_SECONDS)
    took = time.perf_counter() - began
    return count / took, 1000 * (cpu_seconds(service.pid) - before) / count


def all_ended(database: sqlite3.Connection) -> bool | None:
    return database.execute("SELECT 1 FROM jobs WHERE finished_at IS NULL LIMIT 1").fetchone() is None or None
