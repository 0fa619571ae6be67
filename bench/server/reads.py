"""Reads of the API with 1 to 512 connections, against the same rows by raw SQL behind the same stack."""

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg

from bench import bounds
from bench.measure import Goal, MissingRequirement, Result, Series, Size, ratio_goal
from bench.service import NO_LIMITS, ROOT, Service, free_port, run_floor_program, run_server, submit_many, wait_for

_JOBS = 500
_CONNECTIONS = (1, 4, 16, 64, 128, 512)
_REPORT = Path(__file__).parent.parent / "floors" / "report.lua"
_SETTLE_SECONDS = 120
_COMMAND = """
for i in $(seq 200); do echo "line $i of the log"; done
for i in $(seq 50); do echo "{\\"step\\": $i, \\"loss\\": 1.5, \\"accuracy\\": 0.5}"; done >> $GRADIENT_METRICS_FILE
for i in $(seq 4); do echo $i > $GRADIENT_ARTIFACTS_DIR/$i.txt; done
"""
_JOB = "SELECT jobs.*, projects.name FROM jobs JOIN projects ON projects.id = jobs.project_id WHERE jobs.id = ?"
_ATTEMPT = "SELECT * FROM attempts WHERE job_id = ?"
_LIST = """
SELECT jobs.*, projects.name, attempts.* FROM jobs JOIN projects ON projects.id = jobs.project_id
LEFT JOIN attempts ON attempts.job_id = jobs.id AND attempts.attempt = jobs.attempt
ORDER BY jobs.created_at DESC, jobs.id DESC LIMIT """
_METRICS = 'SELECT * FROM metrics WHERE job_id = ? ORDER BY attempt, source, "offset"'


@dataclass(frozen=True, slots=True)
class _Read:
    """A read, and what it takes at least.

    Attributes:
        name: Its name.
        path: Its path; `{}` is the job's id.
        queries: The statements; each has the job's id as its only parameter, or none.
        file: A file of the service's folder that it reads; `{}` is the job's id.
    """

    name: str
    path: str
    queries: tuple[str, ...]
    file: str = ""


_READS = (
    _Read("one job", "/jobs/{}", (_JOB, _ATTEMPT)),
    _Read("list of 20", "/jobs?limit=20", (f"{_LIST} 20",)),
    _Read("list of 100", "/jobs?limit=100", (f"{_LIST} 100",)),
    _Read("log page", "/jobs/{}/logs", (_JOB,), "logs/*/{}/raw"),
    _Read("metrics", "/jobs/{}/metrics", (_JOB, _METRICS)),
    _Read("events", "/jobs/{}/events", (_JOB, "SELECT * FROM events WHERE job_id = ? ORDER BY id")),
    _Read("artifacts", "/jobs/{}/artifacts", (_JOB, _ATTEMPT), "artifacts/*/{}/*/manifest.jsonl"),
    _Read("projects", "/projects", ("SELECT * FROM projects ORDER BY name",)),
    _Read("machine types", "/machine-types", ("SELECT * FROM workers",)),
)


def run(size: Size) -> Result:
    """Measure each read with each number of connections, in turn with its floor."""
    if not shutil.which("wrk"):
        raise MissingRequirement("wrk is not installed: apt-get install wrk")
    connections = _CONNECTIONS[: size.pick(len(_CONNECTIONS), 1)]
    with ExitStack() as stack:
        servers = {"service": stack.enter_context(_filled_server(size, ROOT, size.processes))}
        if size.before:
            servers["before"] = stack.enter_context(_filled_server(size, size.before))
        floor = stack.enter_context(_floor(*servers["service"]))
        runs: dict[tuple[str, int, str], list[_Run]] = {}
        for _ in range(size.rounds):
            for number, read in enumerate(_READS):
                for count in connections:
                    for name, (service, job_id, _) in servers.items():
                        measurement = _wrk(service, read.path.format(job_id), count, size)
                        runs.setdefault((read.name, count, name), []).append(measurement)
                    runs.setdefault((read.name, count, "floor"), []).append(_wrk(floor, f"/{number}", count, size))
    usual = connections[min(2, len(connections) - 1)]
    series = {
        (read, name): Series(
            f"{read}, {count} connections: {name}", "1/s", [[measurement.rate] for measurement in measurements]
        )
        for (read, count, name), measurements in runs.items()
        if count == usual
    }
    return Result(list(series.values()), _goals(runs, series, usual, connections[-1]), _table(runs))


@contextmanager
def _filled_server(size: Size, checkout: Path, processes: int = 1) -> Iterator[tuple[Service, str, str]]:
    """Run a service with jobs that have ended; yields it, the id of one, and its database."""
    with new_database(size.database) if size.database else nullcontext("") as url:
        settings = NO_LIMITS | ({"GRADIENT_DATABASE__URL": url} if url else {})
        several = ["--processes", str(processes)] if processes > 1 else []
        with run_server("up", *several, checkout=checkout, **settings) as service:
            with service.connect() as connection:
                ids = submit_many(connection, _COMMAND, size.pick(_JOBS, 100))
            for job_id in ids:
                service.wait(job_id)
            yield service, ids[0], url or str(service.home / "gradient.db")


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Create a database on a PostgreSQL server, and drop it at the end; yields its URL."""
    name = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def _floor(service: Service, job_id: str, database: str) -> Iterator[Service]:
    reads = []
    for read in _READS:
        files = sorted(service.home.glob(read.file.format(job_id))) if read.file else []
        with service.get(read.path.format(job_id)) as answer:
            values = [job_id] * ("?" in read.queries[0])
            reads.append(asdict(read) | {"answer": json.load(answer), "values": values, "file": str(*files[:1])})
    path = service.home / "reads.json"
    path.write_text(json.dumps(reads), encoding="utf-8")
    port = free_port()
    with run_floor_program("http_select", service.home, port, database, str(port), str(path)) as floor:
        for number in range(len(_READS)):
            floor.get(f"/{number}").close()
        yield floor


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of wrk: requests per second, times of answers in ms, refusals and failures, the server's CPU time."""

    rate: float
    p50: float
    p99: float
    errors: int
    cpu_ms: float


def _wrk(server: Service, path: str, connections: int, size: Size) -> _Run:
    """Send requests over some connections for some seconds, and wait until the server has done with them."""
    headers = [part for name, value in server.headers.items() for part in ("-H", f"{name}: {value}")]
    seconds = size.pick(3, 1)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(_REPORT), *headers]
    before = _cpu_seconds(server.pid)
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{server.port}{path}"], check=True, capture_output=True, text=True
    )
    spent = _cpu_seconds(server.pid) - before
    figures = json.loads(done.stdout.splitlines()[-1])

    def answers() -> bool | None:
        try:
            server.get(path).close()
        except (ConnectionError, TimeoutError):
            return None
        return True

    wait_for(answers, f"an answer to {path} after {connections} connections", _SETTLE_SECONDS)
    good = figures["requests"] - figures["errors"]
    return _Run(
        max(0, good) / figures["seconds"],
        figures["p50"],
        figures["p99"],
        figures["errors"],
        1000 * spent / max(1, figures["requests"]),
    )


def _cpu_seconds(pid: int) -> float:
    process = psutil.Process(pid)
    times = [times_of.cpu_times() for times_of in (process, *process.children(recursive=True))]
    return sum(times_of.user + times_of.system for times_of in times)


def _table(runs: dict[tuple[str, int, str], list[_Run]]) -> list[dict[str, Any]]:
    floors = {
        key[:2]: median(measurement.rate for measurement in measurements)
        for key, measurements in runs.items()
        if key[2] == "floor"
    }
    return [
        {
            "read": read,
            "connections": count,
            "server": name,
            "perSecond": round(rate := median(measurement.rate for measurement in measurements)),
            "p50Ms": round(median(measurement.p50 for measurement in measurements), 2),
            "p99Ms": round(median(measurement.p99 for measurement in measurements), 2),
            "errors": sum(measurement.errors for measurement in measurements),
            "cpuMs": round(median(measurement.cpu_ms for measurement in measurements), 3),
            "ofFloor": round(rate / floors[read, count], 2),
        }
        for (read, count, name), measurements in runs.items()
    ]


def _goals(
    runs: dict[tuple[str, int, str], list[_Run]], series: dict[tuple[str, str], Series], usual: int, most: int
) -> list[Goal]:
    names = [kind.name for kind in _READS]
    ours = {read: series[read, "service"] for read in names}
    crowded = {read: median(measurement.rate for measurement in runs[read, most, "service"]) for read in names}
    late = {read: median(measurement.p99 for measurement in runs[read, most, "service"]) for read in names}
    flat = min(crowded[read] / (ours[read].p50 or 1) for read in names)
    fair = max(late[read] * crowded[read] / most / 1000 for read in names)
    of_floor = f"{usual} connections, of raw SQL behind the same stack"
    return [
        Goal(f"one job a second, {usual} connections", ours["one job"].p50, bounds.READ_RATE_ONE_JOB, at_most=False),
        *(
            ratio_goal(
                f"{read} a second, {of_floor}", ours[read], series[read, "floor"], bounds.READ_RATE, at_most=False
            )
            for read in names
        ),
        Goal(f"reads a second, {most} connections, of {usual}, the worst", flat, bounds.READ_FLAT, at_most=False),
        Goal(f"p99 of reads, {most} connections, of the fair share, the worst", fair, bounds.READ_P99),
    ]
