"""Rate of `POST /jobs`, against group commit and single commits behind the same stack, and a bare insert loop."""

import json
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from bench import bounds
from bench.floors.inserts import connect, insert
from bench.measure import Goal, Result, Series, Size, ratio_goal
from bench.service import NO_LIMITS, Service, create_tables, run_floor, run_server

CLIENTS = (1, 8, 16)
_BODY = json.dumps({"machineType": "CPU", "command": "python main.py"}).encode()


def run(size: Size) -> Result:
    """Measure all with the same clients in turn; no worker runs, so every job stays in the queue."""
    seconds = size.pick(30, 3) / 10
    with ExitStack() as stack:
        servers = {
            "POST /jobs": stack.enter_context(run_server("api", **NO_LIMITS)),
            "group commit, same stack": stack.enter_context(run_floor("group")),
            "commit each, same stack": stack.enter_context(run_floor("each")),
        }
        loop = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradient-bench-")))
        create_tables(loop)
        series = {(what, n): Series(f"{what}, {n} clients", "1/s") for n in CLIENTS for what in servers}
        bare = Series("bare insert loop, commit each", "1/s")
        for _ in range(size.rounds):
            for (what, clients), measured in series.items():
                measured.begin_round()
                measured.add(_rate(servers[what], clients, seconds))
            bare.begin_round()
            bare.add(_bare_rate(loop / "gradient.db", seconds))
    goals = [
        ratio_goal(
            f"POST /jobs a second, {n} clients, of group commit behind the same stack",
            series["POST /jobs", n],
            series["group commit, same stack", n],
            bounds.SUBMIT_RATE,
            at_most=False,
        )
        for n in CLIENTS
    ]
    most = series["POST /jobs", max(CLIENTS)]
    goals.append(Goal(f"POST /jobs a second, {max(CLIENTS)} clients", most.p50, bounds.SUBMIT_RATE_16, at_most=False))
    return Result([*series.values(), bare], goals)


def _rate(server: Service, clients: int, seconds: float) -> float:
    counts = [0] * clients
    begin = threading.Barrier(clients + 1)

    def post(number: int) -> None:
        with server.connect() as connection:
            begin.wait()
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                status, answer = connection.post("/jobs", _BODY)
                if status != 201:  # noqa: PLR2004 - created
                    raise ConnectionError(f"POST /jobs: {status} {answer!r}")
                counts[number] += 1

    threads = [threading.Thread(target=post, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def _bare_rate(path: Path, seconds: float) -> float:
    connection = connect(str(path))
    began = time.perf_counter()
    count = 0
    while time.perf_counter() < began + seconds:
        insert(connection, [_BODY.decode()])
        count += 1
    took = time.perf_counter() - began
    connection.close()
    return count / took
