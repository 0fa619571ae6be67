"""Time of a sweep with ASHA on real digits, against a bare pool of processes that runs the same trials."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import bounds
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import NO_LIMITS, Connection, run_server, wait_for

_LONGEST_SECONDS = 900
_EPOCHS = 729
_PROGRAM = Path(__file__).with_name("digits_trial.py")


def run(size: Size) -> Result:
    """Run a sweep, and then each of its trials as a process, for as many epochs as it had there."""
    count = size.pick(64, 8)
    ours, pool = Series(f"sweep of {count} trials", "s"), Series("pool of processes", "s")
    overhead, pruned = Series("overhead of a trial", "ms"), Series("trials stopped by ASHA", "")
    readable = json.dumps([sys.prefix, str(_PROGRAM.parent)])
    with run_server("up", **NO_LIMITS, GRADIENT_PROCESS__READABLE=readable) as service, service.connect() as connection:
        for number in range(size.rounds):
            for measured in (ours, pool, overhead, pruned):
                measured.begin_round()
            began = time.perf_counter()
            trials = _sweep(connection, count, number)
            ours.add(time.perf_counter() - began)
            pool.add(_run_pool(trials))
            overhead.add((ours.rounds[-1][0] - pool.rounds[-1][0]) / count * 1000)
            pruned.add(sum(trial["state"] == "pruned" for trial in trials))
    goal = ratio_goal("time of a sweep, of a pool", ours, pool, bounds.SWEEP_TIME)
    return Result([ours, pool, overhead, pruned], [goal])


def _sweep(connection: Connection, count: int, seed: int) -> list[dict[str, Any]]:
    """Run a sweep to its end, and return its trials."""
    body = {
        "machineType": "CPU",
        "command": f"{sys.executable} {_PROGRAM} {_EPOCHS} $GRADIENT_ARRAY_VALUE",
        "space": {"lr": "log:1e-4..1", "batch": "8,16,32,64"},
        "metric": "loss:min",
        "stop": "asha",
        "trials": count,
        "parallel": os.cpu_count(),
        "seed": seed,
    }
    status, answer = connection.post("/sweeps", json.dumps(body).encode())
    if status != 201:  # noqa: PLR2004 - created
        raise ConnectionError(f"POST /sweeps: {status} {answer!r}")
    path = f"/sweeps/{json.loads(answer)['id']}"

    def ended() -> list[dict[str, Any]] | None:
        answer = json.loads(connection.get(path)[1])
        if answer["state"] == "paused":
            raise ConnectionError(f"{path}: {answer['reason']}")
        trials: list[dict[str, Any]] = answer["trials"]
        return trials if answer["state"] == "finished" else None

    return wait_for(ended, "the end of the sweep", _LONGEST_SECONDS)


def _run_pool(trials: list[dict[str, Any]]) -> float:
    def evaluate(trial: dict[str, Any]) -> None:
        options = [f"--{name}={value}" for name, value in trial["params"].items()]
        epochs = str(int(trial["step"] or 1))
        subprocess.run([sys.executable, str(_PROGRAM), epochs, *options], check=True)

    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(evaluate, trials))
    return time.perf_counter() - began
