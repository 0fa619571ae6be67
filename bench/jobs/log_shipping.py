"""Throughput of a job's output into the store, in MB/s, against `cat` into a file; and the service's memory for it."""

import tempfile
import time
from datetime import datetime
from pathlib import Path

from bench import bounds
from bench.floors.processes import run_to_end
from bench.measure import Goal, Result, Series, Size
from bench.service import Service, run_server, submit

_MB = 1_000_000
_LINE = "step 1234/99999 loss 0.123456 accuracy 0.987654 time 12.34 s"


def run(size: Size) -> Result:
    """Print the same text as a job, then through `cat` into a file, both until it is on disk."""
    megabytes = size.pick(500, 20)
    command = f"yes '{_LINE}' | head -c {megabytes * _MB}"
    ours = Series(f"log of {megabytes} MB: printed → stored", "MB/s")
    tail = Series("of it, after the last byte", "ms")
    floor = Series("cat > file, flushed", "MB/s")
    peak = Series("service: peak RSS so far", "MiB")
    with run_server("up") as service:
        for _ in range(size.rounds):
            for measured in (ours, tail, floor, peak):
                measured.begin_round()
            seconds, after = _measure_shipping(service, command, megabytes * _MB)
            ours.add(megabytes / seconds)
            tail.add(after * 1000)
            peak.add(_peak_mib(service.pid))
            floor.add(megabytes / _measure_writing(command))
    return Result(
        [ours, tail, floor, peak],
        [Goal("log shipping, MB/s", ours.p50, bounds.LOG_MB_PER_S, at_most=False)],
    )


def _measure_shipping(service: Service, command: str, size: int) -> tuple[float, float]:
    """Return the seconds from the command's start, and from its end, to the end of the job's record."""
    with service.connect() as connection:
        job = service.wait(submit(connection, command), seconds=600)
    stored = sum(path.stat().st_size for path in (service.home / "logs").glob(f"**/{job['id']}/raw"))
    if job["state"] != "Stopped" or stored != size:
        raise RuntimeError(f"the job ended as {job['state']} with {stored:,} of {size:,} bytes stored")
    whole = _time(job["finishedAt"]) - _time(job["startedAt"])
    return whole, whole - job["durationSeconds"]


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _measure_writing(command: str) -> float:
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        file = Path(folder) / "log"
        began = time.perf_counter()
        run_to_end(["bash", "-c", f"{command} | cat > {file} && sync -d {file}"])
        return time.perf_counter() - began


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
