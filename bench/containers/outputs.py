"""Throughput of a container job's output (lines/s) and artifacts (bytes/s), against plain files."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from bench.containers.engine import Engine, engine
from bench.measure import Result, Series, Size
from bench.service import Service, follow, run_server, submit_alone

_LINE = "step 1234/99999 loss 0.123456 accuracy 0.987654 time 12.34 s"
_MIB = 1024**2


def run(size: Size) -> Result:
    """Measure many lines, then one large file; each by a job and by hand, in turn."""
    lines, mib = size.pick(2_000_000, 50_000), size.pick(1024, 32)
    printed = Series(f"{lines:,} lines: printed → stored", "lines/s")
    by_hand = Series("docker run > file, flushed", "lines/s")
    kept = Series(f"{mib} MiB left → in the store", "MiB/s")
    copied = Series("cp, flushed", "MiB/s")
    hashed = Series("cp, flushed, and sha256sum", "MiB/s")
    series = [printed, by_hand, kept, copied, hashed]
    docker_engine = engine()
    with run_server("up", **docker_engine.environment) as service:
        for _ in range(size.rounds):
            for measured in series:
                measured.begin_round()
            printed.add(lines / _measure_output(service, lines))
            by_hand.add(lines / _measure_output_by_hand(docker_engine, lines))
            kept.add(mib / _measure_artifact(service, mib))
            copy, digest = _measure_copy(mib)
            copied.add(mib / copy)
            hashed.add(mib / (copy + digest))
    return Result(series, [])


def _command(lines: int) -> str:
    return f"yes '{_LINE}' | head -n {lines}"


def _measure_output(service: Service, lines: int) -> float:
    """Return the seconds from the submission to the end of the job's record."""
    began = time.perf_counter()
    job = service.wait(submit_alone(service, _command(lines)), seconds=600)
    seconds = time.perf_counter() - began
    raw = sum(path.stat().st_size for path in (service.home / "logs").glob(f"**/{job['id']}/raw"))
    if job["state"] != "Stopped" or raw != lines * (len(_LINE) + 1):
        raise RuntimeError(f"the job ended as {job['state']} with {raw:,} bytes stored")
    return seconds


def _measure_output_by_hand(docker_engine: Engine, lines: int) -> float:
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        return docker_engine.write_by_hand(_command(lines), Path(folder) / "log")


def _measure_artifact(service: Service, mib: int) -> float:
    """Return the seconds from the job's last line to the end of its record.

    The file is written and flushed before that line.
    """
    write = f"dd if=/dev/zero of=/artifacts/model bs=1M count={mib} conv=fsync 2>/dev/null; echo left"
    job_id = submit_alone(service, write)
    left = None
    for name, _ in follow(service, job_id):
        if name == "line":
            left = time.perf_counter()
        elif name == "end" and left is not None:
            seconds = time.perf_counter() - left
            stored = service.home / "artifacts"
            if sum(path.stat().st_size for path in stored.rglob("model")) != mib * _MIB:
                raise RuntimeError("the file is not in the store")
            shutil.rmtree(stored)
            stored.mkdir()
            return seconds
    raise RuntimeError("the job printed nothing")


def _measure_copy(mib: int) -> tuple[float, float]:
    """Return the seconds of a copy until it is on disk, and of hashing it."""
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        file = Path(folder) / "model"
        with file.open("wb") as out:
            for _ in range(mib):
                out.write(bytes(_MIB))
        subprocess.run(["sync", "-d", str(file)], check=True)
        began = time.perf_counter()
        subprocess.run(f"cp '{file}' '{file}.copy' && sync -d '{file}.copy'", shell=True, check=True)  # noqa: S602
        copied = time.perf_counter()
        subprocess.run(["sha256sum", f"{file}.copy"], check=True, stdout=subprocess.DEVNULL)
        return copied - began, time.perf_counter() - copied
