"""Latency of `POST /jobs`, one at a time, against the same rows by raw SQL behind the same HTTP stack."""

import json
import time

from bench import bounds
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import Connection, run_floor, run_server

_BLOCK = 20
_WARM_UP = 20
_BODY = json.dumps({"machineType": "CPU", "command": "python main.py"}).encode()


def run(size: Size) -> Result:
    """Send blocks of requests in turn, so that work after an answer delays the service's own next request."""
    ours = Series("POST /jobs", "ms")
    floor = Series("raw insert, same stack", "ms")
    with run_server("api") as api, run_floor("each") as raw, api.connect() as subject, raw.connect() as bare:
        for connection in (subject, bare):
            for _ in range(_WARM_UP):
                _post(connection)
        for _ in range(size.rounds):
            ours.begin_round()
            floor.begin_round()
            for _ in range(size.pick(15, 1)):
                for series, connection in ((ours, subject), (floor, bare)):
                    for _ in range(_BLOCK):
                        series.add(_post(connection))
    return Result(
        [ours, floor], [ratio_goal("submit, p50, times raw insert behind the same stack", ours, floor, bounds.SUBMIT)]
    )


def _post(connection: Connection) -> float:
    began = time.perf_counter()
    status, answer = connection.post("/jobs", _BODY)
    took = (time.perf_counter() - began) * 1000
    if status != 201:  # noqa: PLR2004 - created
        raise ConnectionError(f"POST /jobs: {status} {answer!r}")
    return took
