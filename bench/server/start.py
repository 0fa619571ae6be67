"""Start-up time of the service's processes until they serve, against a bare FastAPI application.

Bytecode and database exist, as after an installation. On a busy machine the CPU seconds are the more reliable figure.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from pathlib import Path

import psutil

from bench import bounds
from bench.measure import Goal, Result, Series, Size, ratio_goal
from bench.service import SERVER, create_tables, free_port, run_program, wait_for

_READY = b"is ready"


def run(size: Size) -> Result:
    """Measure each in turn, after one start of each that is not counted (unless it has to be quick)."""
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        home = Path(folder)
        create_tables(home)
        kinds = {"bare FastAPI": _floor, "gradient-server api": start_api, "gradient-server worker": _worker}
        wall = {name: Series(f"{name}: until it serves", "s") for name in kinds}
        spent = {name: Series(f"{name}: CPU until then", "s") for name in kinds}
        if not size.quick:
            for start in kinds.values():
                start(home)
        for _ in range(size.rounds):
            for name, start in kinds.items():
                wall[name].begin_round()
                spent[name].begin_round()
                for _ in range(size.pick(5, 1)):
                    seconds, cpu = start(home)
                    wall[name].add(seconds)
                    spent[name].add(cpu)
    floor, api, worker = spent.values()
    least = min(wall["gradient-server api"].samples)
    goals = [
        Goal("gradient-server api, least seconds until /health answers", least, bounds.START_SECONDS),
        ratio_goal("gradient-server api, CPU until then, p50, times bare FastAPI", api, floor, bounds.START_CPU),
        ratio_goal("gradient-server worker, CPU until then, p50, times bare FastAPI", worker, floor, bounds.START_CPU),
    ]
    return Result([*wall.values(), *spent.values()], goals)


def _floor(home: Path) -> tuple[float, float]:
    port = free_port()
    return _measure(home, [sys.executable, "-m", "bench.floors.http_hello", str(port)], lambda: _is_serving(port))


def start_api(home: Path) -> tuple[float, float]:
    """Start the API on a folder's database; return the seconds, and the CPU seconds, until it serves."""
    port = free_port()
    return _measure(home, [str(SERVER), "api", "--port", str(port)], lambda: _is_serving(port))


def _worker(home: Path) -> tuple[float, float]:
    (home / "output").unlink(missing_ok=True)
    arguments = [str(SERVER), "worker", "--name", "bench"]
    return _measure(home, arguments, lambda: _READY in (home / "output").read_bytes() or None)


def _measure(home: Path, arguments: Sequence[str], serves: Callable[[], bool | None]) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds of the process, from its start until it serves."""
    began = time.perf_counter()
    # In a separate cache that is kept: only the first start compiles what it imports, as an installation does.
    bytecode = {"PYTHONPYCACHEPREFIX": str(home / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    with run_program(list(arguments), home, **bytecode) as process:
        wait_for(serves, f"{arguments} to serve")
        seconds, used = time.perf_counter() - began, psutil.Process(process.pid).cpu_times()
        return seconds, used.user + used.system


def _is_serving(port: int) -> bool | None:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/health")
        connection.getresponse().read()
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()
    return True
