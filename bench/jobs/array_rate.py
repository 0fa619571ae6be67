"""Rate of an array's members from its submission to the end of the last one, against a bare pool and Slurm's array."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from bench import bounds
from bench.jobs.rate import all_ended
from bench.jobs.slurm import run_slurm
from bench.measure import Goal, MissingRequirement, Result, Series, Size, ratio_goal
from bench.service import INTERPRETER, NO_LIMITS, Connection, Service, cpu_seconds, run_server, wait_for

_LONGEST_SECONDS = 600
_COMMANDS = {"true": "true", "python -c pass": f"{INTERPRETER} -c pass"}
_REUSE = {"reuse": None, "arrayReuse off": "off"}


def run(size: Size) -> Result:
    """Submit arrays of trivial members, also to Slurm; run the same commands in a pool with as many threads as CPUs."""
    count = size.pick(1000, 100)
    ours = {(name, how): Series(f"{name}: members, {how}", "1/s") for name in _COMMANDS for how in _REUSE}
    pools = {name: Series(f"{name}: pool of processes", "1/s") for name in _COMMANDS}
    slurms = {name: Series(f"{name}: Slurm", "1/s") for name in _COMMANDS}
    cpu = {(name, how): Series(f"{name}: server's CPU time per member, {how}", "ms") for name, how in ours}
    with ExitStack() as stack:
        service = stack.enter_context(run_server("up", **NO_LIMITS))
        connection = stack.enter_context(service.connect())
        try:
            slurm = stack.enter_context(run_slurm())
        except MissingRequirement as error:
            print(f"array-rate: without Slurm: {error}", file=sys.stderr)
            slurm, slurms = None, {}
        _measure(service, connection, "true", None, 10)
        for _ in range(size.rounds):
            for measured in (*ours.values(), *cpu.values(), *pools.values(), *slurms.values()):
                measured.begin_round()
            for name, command in _COMMANDS.items():
                for how, reuse in _REUSE.items():
                    before = cpu_seconds(service.pid)
                    ours[name, how].add(_measure(service, connection, command, reuse, count))
                    cpu[name, how].add(1000 * (cpu_seconds(service.pid) - before) / count)
                pools[name].add(_run_pool(command, count))
                if slurm is not None:
                    slurms[name].add(count / slurm.run_array(command, count))
    rate = ours["true", "reuse"]
    times = ratio_goal(
        "time of python's members, of a pool", pools["python -c pass"], ours["python -c pass", "reuse"], 1
    )
    goals = [
        Goal("members a second", rate.p50, bounds.MEMBERS_RATE, at_most=False),
        Goal(times.what, times.value, bounds.MEMBERS_TIME, spread=times.spread),
    ]
    return Result([*ours.values(), *cpu.values(), *pools.values(), *slurms.values()], goals)


def _measure(service: Service, connection: Connection, command: str, reuse: str | None, count: int) -> float:
    """Return members per second."""
    body = {"machineType": "CPU", "command": command, "array": f"0-{count - 1}", "arrayReuse": reuse}
    began = time.perf_counter()
    status, answer = connection.post("/jobs", json.dumps(body).encode())
    if status != 201:  # noqa: PLR2004 - created
        raise ConnectionError(f"POST /jobs: {status} {answer!r}")
    with closing(sqlite3.connect(service.home / "gradient.db")) as database:
        wait_for(lambda: all_ended(database), "the end of all members", _LONGEST_SECONDS)
    return count / (time.perf_counter() - began)


def _run_pool(command: str, count: int) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda _: subprocess.run(command.split(), check=True), range(count)))
    return count / (time.perf_counter() - began)
