"""Arrays and single jobs by a worker on a Slurm cluster, submission → end of the last, against bare sbatch there."""

import json
import sqlite3
import time
from contextlib import ExitStack, closing
from pathlib import Path

from bench import bounds
from bench.jobs.rate import all_ended
from bench.jobs.slurm import run_slurm
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import NO_LIMITS, ROOT, Service, cpu_seconds, run_server, wait_for

_LONGEST_SECONDS = 1200
_MACHINES = """\
[cluster]
backend = "slurm"
kind = "cpu"
accelerator = "1 CPU"
count = 1
replicas = 1
memory_gb = 1
memory_bandwidth_gb_per_s = 20
tflops = { fp32 = 0.1 }
price_per_hour = 0
price_source = "not set"
spec_source = "not set"
slurm = { partition = "all", cpus = 1 }
"""


def run(size: Size) -> Result:
    """Run an array of `true` and single jobs of it; then the same by sbatch alone."""
    members, singles = size.pick(1000, 60), size.pick(300, 20)
    checkouts = {"": ROOT} | ({", before": size.before} if size.before else {})
    ours = {
        (what, name): Series(f"{what}{name}", "s")
        for name in checkouts
        for what in (f"array of {members}", f"{singles} jobs")
    }
    floors = {what: Series(f"{what}, sbatch alone", "s") for what in (f"array of {members}", f"{singles} jobs")}
    cpu = {key: Series(f"{key[0]}{key[1]}: server's CPU time", "s") for key in ours}
    with ExitStack() as stack:
        slurm = stack.enter_context(run_slurm())
        settings = NO_LIMITS | slurm.environment

        def write_machines(home: Path) -> None:
            (home / "machines.toml").write_text(_MACHINES, encoding="utf-8")

        services = {
            name: stack.enter_context(
                run_server("up", "--slurm", prepare=write_machines, checkout=checkout, **settings)
            )
            for name, checkout in checkouts.items()
        }
        for service in services.values():
            _measure(service, 1, None)
        for _ in range(size.rounds):
            for series in (*ours.values(), *floors.values(), *cpu.values()):
                series.begin_round()
            for (what, name), series in ours.items():
                before = cpu_seconds(services[name].pid)
                is_array = what.startswith("array")
                series.add(_measure(services[name], 1 if is_array else singles, members if is_array else None))
                cpu[what, name].add(cpu_seconds(services[name].pid) - before)
            for what, series in floors.items():
                is_array = what.startswith("array")
                series.add(slurm.run_array("true", members) if is_array else slurm.run_jobs("true", singles))
    goals = [
        ratio_goal(f"{what}, of sbatch alone", ours[what, ""], floor, bounds.SLURM) for what, floor in floors.items()
    ]
    return Result([*ours.values(), *floors.values(), *cpu.values()], goals)


def _measure(service: Service, jobs: int, members: int | None) -> float:
    """Return the seconds until all have ended."""
    body = {"machineType": "cluster", "command": "true"} | ({"array": f"0-{members - 1}"} if members else {})
    began = time.perf_counter()
    with service.connect() as connection:
        for _ in range(jobs):
            status, answer = connection.post("/jobs", json.dumps(body).encode())
            if status != 201:  # noqa: PLR2004 - created
                raise ConnectionError(f"POST /jobs: {status} {answer!r}")
    with closing(sqlite3.connect(service.home / "gradient.db")) as database:
        wait_for(lambda: all_ended(database), "the end of all jobs", _LONGEST_SECONDS)
    return time.perf_counter() - began
