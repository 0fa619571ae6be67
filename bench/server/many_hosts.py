"""A hundred simulated hosts and 100,000 queued jobs on one PostgreSQL, and bytes from another host through the service.

The figures of docs/scaling.md.
"""

import json
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil
import psycopg

from bench import bounds
from bench.measure import Goal, MissingRequirement, Result, Series, Size
from bench.server.reads import new_database
from bench.server.simulated_hosts import run_hosts
from bench.service import (
    NO_LIMITS,
    SERVER,
    Service,
    create_tables,
    environment,
    run_program,
    run_server,
    submit_alone,
    submit_many,
)

HOSTS = 100
_BATCH = 1000
_JOB_SECONDS = 10.0
_POLL_SECONDS = 1.0  # of workers without a broker
_MB = 1_000_000
_PAGES = ("/jobs?limit=50", "/jobs?q=state:pending", "/ui/jobs", "/ui/machines")


def run(size: Size) -> Result:
    """Measure the database at rest, claims at a usual and at the highest rate, pages meanwhile, and bytes."""
    if size.database is None:
        raise MissingRequirement("it needs a PostgreSQL server: --database URL")
    hosts, queued, seconds = size.pick(HOSTS, 10), size.pick(100_000, 2000), size.pick(60, 4)
    rest = Series(f"{hosts} idle hosts: transactions", "1/s")
    load = Series(f"{hosts} idle hosts: CPU of the database", "%")
    pages = {path: Series(f"GET {path}", "ms") for path in _PAGES}
    with ExitStack() as stack:
        url = stack.enter_context(new_database(size.database))
        settings = NO_LIMITS | {"GRADIENT_DATABASE__URL": url}
        service = stack.enter_context(run_server("api", prepare=partial(create_tables, **settings), **settings))
        for measured in (rest, load, *pages.values()):
            measured.begin_round()
        _measure_rest(url, hosts, seconds, rest, load)
        submitted = _submit(service, queued)
        usual = Series(f"claim, {hosts} hosts, jobs of {_JOB_SECONDS:.0f} s", "ms")
        usual.begin_round()
        with _PageReader(service, pages):
            times = run_hosts(url, hosts, seconds, job_seconds=_JOB_SECONDS, poll_seconds=_POLL_SECONDS)
        usual.rounds[-1] += [1000 * seconds for seconds in times.claims]
        most = Series(f"claim, {hosts} hosts, jobs of 0 s", "ms")
        most.begin_round()
        times = run_hosts(url, hosts, seconds, job_seconds=0.0, poll_seconds=_POLL_SECONDS)
        most.rounds[-1] += [1000 * seconds for seconds in times.claims]
        rate = Series("claimed and ended, jobs of 0 s", "1/s")
        rate.begin_round()
        rate.add(times.ended / seconds)
    carried = _measure_bytes(size)
    goals = [Goal(f"claim with {queued:,} queued jobs, ms, p99", usual.p99, bounds.CLAIM_P99_MS)]
    return Result([rest, load, submitted, usual, most, rate, *pages.values(), carried], goals)


def _measure_rest(url: str, hosts: int, seconds: float, rest: Series, load: Series) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        pid = connection.execute("SELECT pg_backend_pid()").fetchone()[0]  # type: ignore[index]
        server = psutil.Process(pid).parent()
        before, cpu, began = _transactions(connection), _cpu_seconds(server), time.monotonic()
        run_hosts(url, hosts, seconds, job_seconds=None, poll_seconds=_POLL_SECONDS)
        took = time.monotonic() - began
        rest.add((_transactions(connection) - before) / took)
        load.add(100 * (_cpu_seconds(server) - cpu) / took)


def _transactions(connection: "psycopg.Connection[tuple[int]]") -> int:
    time.sleep(1.1)  # backends report their counts once a second
    query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    row = connection.execute(query).fetchone()
    return row[0] if row else 0


def _cpu_seconds(server: psutil.Process | None) -> float:
    """Return CPU seconds of the server and of its processes, also of those that have ended."""
    if server is None:
        return 0.0
    times = server.cpu_times()
    alive = [child_times.cpu_times() for child_times in server.children()]
    return (
        times.children_user
        + times.children_system
        + sum(child_times.user + child_times.system for child_times in alive)
    )


def _submit(service: Service, queued: int) -> Series:
    series = Series("1,000 times POST /jobs", "ms")
    series.begin_round()
    with service.connect() as connection:
        for _ in range(queued // _BATCH):
            began = time.perf_counter()
            submit_many(connection, "true", _BATCH)
            series.add(1000 * (time.perf_counter() - began))
    return series


class _PageReader:
    """Reads the pages in turn, twice a second, while the block runs."""

    def __init__(self, service: Service, pages: dict[str, Series]) -> None:
        self._service, self._pages = service, pages
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._ended.is_set():
            for path, series in self._pages.items():
                began = time.perf_counter()
                with self._service.get(path) as answer:
                    answer.read()
                series.add(1000 * (time.perf_counter() - began))
                self._ended.wait(0.5)


def _measure_bytes(size: Size) -> Series:
    """Measure the artifact of a job on a host that shares only the network, until the service has all of it."""
    megabytes = size.pick(1000, 50)
    series = Series(f"artifact of {megabytes:,} MB from another host", "MB/s")
    series.begin_round()
    with (
        run_server("api", prepare=create_tables) as service,
        tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder,
    ):
        home = Path(folder)
        token = subprocess.run(
            [str(SERVER), "workers", "token", "far"], env=environment(service.home), check=True, capture_output=True
        )
        (home / "worker-token").write_bytes(token.stdout)
        settings = {
            "GRADIENT_WORKER__HOST": "far",
            "GRADIENT_DATABASE__URL": f"sqlite:///{service.home}/gradient.db",
            "GRADIENT_WORKER__SERVICE_URL": f"http://127.0.0.1:{service.port}",
        }
        with run_program([str(SERVER), "worker", "--name", "far"], home, **settings):
            command = f"head -c {megabytes * _MB} /dev/urandom >$GRADIENT_ARTIFACTS_DIR/large"
            for _ in range(size.rounds):
                job = service.wait(submit_alone(service, command), seconds=600)
                if job["state"] != "Stopped":
                    raise RuntimeError(f"the job ended as {job['state']}: {json.dumps(job)}")
                whole = _seconds(job["finishedAt"]) - _seconds(job["startedAt"])
                series.add(megabytes / (whole - job["durationSeconds"]))
    return series


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
