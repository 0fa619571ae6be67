"""Memory of `gradient-server up`: idle, before and after its first jobs, against Python doing nothing; and at work."""

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from bench import bounds
from bench.measure import Goal, Result, Series, Size
from bench.service import NO_LIMITS, Service, run_server, server_processes, submit, submit_many, wait_for

_FOLLOWERS = 50
_ALL_RUN_SECONDS = 600


def run(size: Size) -> Result:
    """Measure API and worker in one process, which is new in every round, with its supervisor."""
    fresh = [Series("up, fresh: RSS", "MiB"), Series("up, fresh: PSS", "MiB")]
    used = [Series("up, after jobs: RSS", "MiB"), Series("up, after jobs: PSS", "MiB")]
    bare = [Series("python, idle: RSS", "MiB"), Series("python, idle: PSS", "MiB")]
    for _ in range(size.rounds):
        with run_server("up") as service:
            _record(fresh, service.pid)
            _run_jobs(service, size.pick(20, 2))
            _record(used, service.pid)
        _record_bare(bare)
    count = size.pick(500, 5)
    busy = [Series(f"up, {count} jobs running, {_FOLLOWERS} followers: {kind}", "MiB") for kind in ("RSS", "PSS")]
    with (
        run_server("up", GRADIENT_WORKER__SLOTS=str(count), **NO_LIMITS) as service,
        _running_jobs(service, count, size.pick(180, 10)),
    ):
        _record(busy, service.pid)
    return Result(
        [*fresh, *used, *bare, *busy],
        [
            Goal("idle memory of API and worker after jobs, PSS, MiB", used[1].p50, bounds.IDLE_MEMORY_MIB),
            Goal(f"memory with {count} jobs running at once, PSS, MiB", busy[1].p50, bounds.BUSY_MEMORY_MIB),
        ],
    )


@contextmanager
def _running_jobs(service: Service, count: int, seconds: int) -> Iterator[None]:
    """Have jobs of some seconds that all run at once, and followers that have read the first line of one each."""
    with ExitStack() as stack:
        database = stack.enter_context(closing(sqlite3.connect(service.home / "gradient.db")))

        def have(states: str) -> bool | None:
            query = f"SELECT count(*) FROM jobs WHERE {states}"  # noqa: S608 - of this module
            return database.execute(query).fetchone() == (count,) or None

        with service.connect() as connection:
            ids = submit_many(connection, f"echo running; exec sleep {seconds}", count)
        try:
            wait_for(lambda: have("state = 'running'"), f"{count} running jobs", _ALL_RUN_SECONDS)
            for job_id in (ids * _FOLLOWERS)[:_FOLLOWERS]:
                log = stack.enter_context(service.get(f"/jobs/{job_id}/logs", "text/event-stream"))
                while b"running" not in log.readline():
                    pass
            yield
        finally:
            wait_for(lambda: have("finished_at IS NOT NULL"), "the end of all jobs", _ALL_RUN_SECONDS)


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
    """Add the resident and proportional set size of a program's processes to the series."""
    kib: Counter[str] = Counter()
    for process in server_processes(pid):
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
        kib.update({name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)})
    for measured, name in zip(series, ("Rss", "Pss"), strict=True):
        measured.begin_round()
        measured.add(kib[name] / 1024)
