"""Rate of trivial jobs from their submission to the end of the last one, against a loop of the same commands."""

import sqlite3
import subprocess
import time
from contextlib import ExitStack, closing

from bench import bounds
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import NO_LIMITS, ROOT, Service, cpu_seconds, run_server, submit_many, wait_for

_COMMAND = "true"
_WARM_UP = 10
_LONGEST_SECONDS = 600


def run(size: Size) -> Result:
    """Submit jobs and wait until all have ended; then run the same commands directly, one by one."""
    checkouts = {"": ROOT} | ({", before": size.before} if size.before else {})
    ours = {name: Series(f"jobs, submission → end of the last{name}", "1/s") for name in checkouts}
    server = {name: Series(f"server's CPU time per job{name}", "ms") for name in checkouts}
    floor = Series("bash -c true, one by one", "1/s")
    count = size.pick(300, 20)
    with ExitStack() as stack:
        services = {
            name: stack.enter_context(run_server("up", checkout=checkout, **NO_LIMITS))
            for name, checkout in checkouts.items()
        }
        for service in services.values():
            _measure(service, _WARM_UP)
        for number in range(size.rounds):
            for name in list(services)[:: -1 if number % 2 else 1]:
                for measured, value in zip((ours[name], server[name]), _measure(services[name], count), strict=True):
                    measured.begin_round()
                    measured.add(value)
            floor.begin_round()
            began = time.perf_counter()
            for _ in range(count):
                subprocess.run(["/bin/bash", "-c", _COMMAND], check=True)
            floor.add(count / (time.perf_counter() - began))
    goal = ratio_goal("jobs a second, of bare processes", ours[""], floor, bounds.JOBS_RATE, at_most=False)
    return Result([*ours.values(), *server.values(), floor], [goal])


def _measure(service: Service, count: int) -> tuple[float, float]:
    """Return jobs per second, and the milliseconds of the server's own CPU time per job."""
    before, began = cpu_seconds(service.pid), time.perf_counter()
    with service.connect() as connection:
        submit_many(connection, _COMMAND, count)
    # Not by requests, which would take CPU time of the server.
    with closing(sqlite3.connect(service.home / "gradient.db")) as database:
        wait_for(lambda: all_ended(database), "the end of all jobs", _LONGEST_SECONDS)
    took = time.perf_counter() - began
    return count / took, 1000 * (cpu_seconds(service.pid) - before) / count


def all_ended(database: sqlite3.Connection) -> bool | None:
    return database.execute("SELECT 1 FROM jobs WHERE finished_at IS NULL LIMIT 1").fetchone() is None or None
