"""Memory of an idle `gradient-server up`, before and after its first jobs, against Python doing nothing."""

import subprocess
import sys
from pathlib import Path

from bench import bounds
from bench.measure import Goal, Result, Series, Size
from bench.service import Service, run_server, submit


def run(size: Size) -> Result:
    """Measure API and worker in one process, which is new in every round."""
    fresh = [Series("up, fresh: RSS", "MiB"), Series("up, fresh: PSS", "MiB")]
    used = [Series("up, after jobs: RSS", "MiB"), Series("up, after jobs: PSS", "MiB")]
    bare = [Series("python, idle: RSS", "MiB"), Series("python, idle: PSS", "MiB")]
    for _ in range(size.rounds):
        with run_server("up") as service:
            _record(fresh, service.pid)
            _run_jobs(service, size.pick(20, 2))
            _record(used, service.pid)
        _record_bare(bare)
    series = [*fresh, *used, *bare]
    return Result(
        series, [Goal("idle memory of API and worker after jobs, RSS, MiB", used[0].p50, bounds.IDLE_MEMORY_MIB)]
    )


def _run_jobs(service: Service, jobs: int) -> None:
    with service.connect() as connection:
        for job_id in [submit(connection, "echo done") for _ in range(jobs)]:
            service.wait(job_id)


def _record_bare(series: list[Series]) -> None:
    program = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as idle:
        assert idle.stdin is not None  # noqa: S101 - pipes were requested
        assert idle.stdout is not None  # noqa: S101
        idle.stdout.readline()  # the program has started once it prints
        _record(series, idle.pid)
        idle.stdin.write(b"\n")
        idle.stdin.close()


def _record(series: list[Series], pid: int) -> None:
    """Add a process's resident and proportional set size to the series."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    for one, name in zip(series, ("Rss", "Pss"), strict=True):
        one.begin_round()
        one.add(kib[name] / 1024)
