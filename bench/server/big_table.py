"""Every page and every read, the start of the server and a job from submission to end, with a million jobs.

The service with that table takes turns with one whose table is empty.
"""

import json
import re
import time
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from bench import bounds
from bench.measure import Goal, Result, Series, Size, ratio_goal
from bench.server.filled_database import fill
from bench.server.start import start_api
from bench.service import Service, follow, run_server, submit_alone

ENDED, QUEUED = 1_000_000, 100_000
_PAGES = (
    "/ui",
    "/ui/jobs",
    "/ui/jobs?state=Pending",
    "/ui/machines",
    "/ui/jobs/{job_id}",
    "/jobs?state=Pending",
    "/jobs?state=Failed",
    "/jobs?machineType=P100",
    "/jobs?project=project+7",
    "/jobs?name=train+7",
    "/jobs?q=state:failed+machine:K80",
    "/jobs?after=500000",
    "/jobs/{queued_id}",
)
"""Reads besides those of the API's description."""
_STREAMS = {"/jobs/{job_id}/logs": "?line=0"}
_PUBLIC = {"/health", "/readiness"}
_MOST_SHOWN = 12
_RESPONSE_SECONDS = 60.0


def run(size: Size) -> Result:
    """Measure reads, then jobs and starts in turn with the empty service."""
    ended, queued = size.pick(ENDED, 2000), size.pick(QUEUED, 200)
    # A worker must not run the queued jobs, which are for other machine types.
    worker = {"GRADIENT_WORKER__MACHINE_TYPES": '["CPU"]'}
    with ExitStack() as stack:
        filling = partial(fill, ended=ended, queued=queued)
        full = stack.enter_context(run_server("up", prepare=filling, **worker))
        empty = stack.enter_context(run_server("up", **worker))
        reads = _measure_reads(full, size, f"j{ended // 2:013d}", f"q{queued:013d}")
        jobs = _measure_jobs({"empty": empty, "full": full}, size)
        starts = _measure_starts({"empty": empty.home, "full": full.home}, size)
    slowest = sorted(reads, key=lambda route: route.p50, reverse=True)
    first = slowest[0]
    goals = [
        Goal(f"slowest read of {ended:,} jobs, GET {first.what}, ms, p50", first.p50, bounds.BIG_TABLE_READ),
        Goal(f"gradient-server api with {ended:,} jobs, s until it serves", starts[0].p50, bounds.BIG_TABLE_START),
        ratio_goal("a job with them, submission to last line, times an empty table", *jobs, bounds.BIG_TABLE_JOB),
    ]
    return Result([*slowest[:_MOST_SHOWN], *jobs, *starts], goals)


def _measure_reads(service: Service, size: Size, job_id: str, queued_id: str) -> list[Series]:
    """Measure every path of the API that is read without further parameters, and the pages."""
    with service.get("/openapi.json") as answer:
        described = json.load(answer)["paths"]
    routes = {path for path, operations in described.items() if "get" in operations} - _PUBLIC
    values = {"job_id": job_id, "queued_id": queued_id, "project_id": "pr007"}
    paths = [path + _STREAMS.get(path, "") for path in sorted(routes) if not path.startswith("/original")] + [*_PAGES]
    usable = [path for path in paths if set(re.findall(r"\{(\w+)", path)) <= values.keys()]
    series = []
    for path in usable:
        address = re.sub(r"\{(\w+)(:\w+)?\}", lambda name: values[name[1]], path)
        route = Series(path, "ms")
        connection = HTTPConnection("127.0.0.1", service.port, timeout=_RESPONSE_SECONDS)
        for _ in range(size.rounds):
            route.begin_round()
            for _ in range(size.pick(10, 1)):
                route.add(_read(connection, address, service.headers))
        connection.close()
        series.append(route)
    return series


def _read(connection: HTTPConnection, path: str, headers: dict[str, str]) -> float:
    began = time.perf_counter()
    connection.request("GET", path, headers=headers)
    with connection.getresponse() as answer:
        answer.read()
    took = (time.perf_counter() - began) * 1000
    if answer.status >= 500:  # noqa: PLR2004 - the server's errors; a job may lack what is read
        raise ConnectionError(f"GET {path}: {answer.status}")
    return took


def _measure_jobs(services: dict[str, Service], size: Size) -> tuple[Series, Series]:
    series = {name: Series(f"a job, {name} table", "ms") for name in services}
    for service in services.values():
        _run_job(service)
    for _ in range(size.rounds):
        for measured in series.values():
            measured.begin_round()
        for _ in range(size.pick(15, 2)):
            for name, service in services.items():
                series[name].add(_run_job(service))
    return series["full"], series["empty"]


def _run_job(service: Service) -> float:
    began = time.perf_counter()
    job_id = submit_alone(service, "echo done")
    for _ in follow(service, job_id):
        pass
    return (time.perf_counter() - began) * 1000


def _measure_starts(homes: dict[str, Path], size: Size) -> tuple[Series, Series]:
    series = {name: Series(f"start of the api, {name} table", "s") for name in homes}
    for home in homes.values():
        start_api(home)
    for _ in range(size.rounds):
        for measured in series.values():
            measured.begin_round()
        for _ in range(size.pick(3, 1)):
            for name, home in homes.items():
                series[name].add(start_api(home)[0])
    return series["full"], series["empty"]
