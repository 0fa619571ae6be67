"""Latency from a line printed by a running job to the reader of its live log, against a pipe."""

import shlex
import sys
import time

from bench import bounds
from bench.floors.processes import each_line
from bench.measure import Goal, Result, Series, Size
from bench.service import INTERPRETER, Service, follow, run_server, submit

_WARM_UP_LINES = 5
_PROGRAM = """
import time
for _ in range({lines}):
    print(time.time_ns(), flush=True)
    time.sleep(0.02)
"""


def run(size: Size) -> Result:
    """Run a job and then a process, in turn, that print the time fifty times a second."""
    ours = Series("line printed → read", "ms")
    pipe = Series("line printed → read from a pipe", "ms")
    program = _PROGRAM.format(lines=size.pick(200, 20) + _WARM_UP_LINES)
    with run_server("up") as service:
        for _ in range(size.rounds):
            for series, ages in ((ours, _measure_follow(service, program)), (pipe, _measure_pipe(program))):
                series.begin_round()
                for age in ages[_WARM_UP_LINES:]:
                    series.add(age)
    goals = [
        Goal("line printed → read, p50, ms", ours.p50, bounds.LINE_P50_MS),
        Goal("line printed → read, p99, ms", ours.p99, bounds.LINE_P99_MS),
    ]
    return Result([ours, pipe], goals)


def _measure_follow(service: Service, program: str) -> list[float]:
    with service.connect() as connection:
        job_id = submit(connection, shlex.join([INTERPRETER, "-c", program]))
    return [_age(data["message"]) for name, data in follow(service, job_id) if name == "line"]


def _measure_pipe(program: str) -> list[float]:
    ages: list[float] = []
    each_line([sys.executable, "-c", program], lambda line: ages.append(_age(line)))
    return ages


def _age(printed: str | bytes) -> float:
    return (time.time_ns() - int(printed)) / 1e6
