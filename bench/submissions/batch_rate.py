"""Rate of jobs in `POST /jobs:batch`, against the same rows in one transaction by raw SQL, without HTTP."""

import json
import tempfile
import time
from pathlib import Path

from bench import bounds
from bench.floors.inserts import connect, insert
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import NO_LIMITS, Connection, create_tables, run_server

_JOBS = 1000
_SPEC = {"machineType": "CPU", "command": "python main.py"}
_BODY = json.dumps({"jobs": [_SPEC] * _JOBS}).encode()


def run(size: Size) -> Result:
    """Send batches and insert the same rows in turn; no worker runs, so every job stays in the queue."""
    ours = Series(f"POST /jobs:batch, {_JOBS:,} jobs each", "1/s")
    floor = Series(f"raw insert, {_JOBS:,} jobs a commit", "1/s")
    with run_server("api", **NO_LIMITS) as api, tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        create_tables(Path(folder))
        bare = connect(f"{folder}/gradient.db")
        with api.connect() as connection:
            _post(connection)
            for _ in range(size.rounds):
                ours.begin_round()
                floor.begin_round()
                for _ in range(size.pick(5, 1)):
                    ours.add(_post(connection))
                    began = time.perf_counter()
                    insert(bare, [json.dumps(_SPEC)] * _JOBS)
                    floor.add(_JOBS / (time.perf_counter() - began))
        bare.close()
    goal = ratio_goal("jobs of batches a second, of raw inserts", ours, floor, bounds.BATCH_RATE, at_most=False)
    return Result([ours, floor], [goal])


def _post(connection: Connection) -> float:
    """Send a batch; return its jobs per second."""
    began = time.perf_counter()
    status, answer = connection.post("/jobs:batch", _BODY)
    took = time.perf_counter() - began
    if status != 200 or answer.count(b'"status":201') != _JOBS:  # noqa: PLR2004 - OK
        raise ConnectionError(f"POST /jobs:batch: {status} {answer[:1000]!r}")
    return _JOBS / took
