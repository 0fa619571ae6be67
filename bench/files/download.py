"""Rates of `jobs artifacts get`: many small files against `cp -r`, a large one against a plain HTTP server."""

import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from time import perf_counter

from bench import bounds
from bench.floors.processes import run_to_end
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import INTERPRETER, Service, environment, free_port, run_server, submit_alone, wait_for

_CLI = str(Path(sys.executable).with_name("gradient-cli"))
_MIB = 1024**2
_WRITE = """
import os
folder = os.environ["GRADIENT_ARTIFACTS_DIR"]
for number in range({files}):
    part = f"{{folder}}/small/{{number // 100}}"
    os.makedirs(part, exist_ok=True)
    with open(f"{{part}}/{{number}}", "wb") as file:
        file.write(os.urandom(1000))
with open(f"{{folder}}/large", "wb") as file:
    file.writelines(os.urandom(2**20) for _ in range({mib}))
"""


def run(size: Size) -> Result:
    """Measure downloads of one job's artifacts; the floors copy or serve the stored files themselves."""
    files, mib = size.pick(10_000, 500), size.pick(1024, 32)
    copied = Series(f"cp -r of {files:,} files", "1/s")
    small = Series(f"artifacts get, {files:,} files of 1 kB", "1/s")
    served = Series(f"python -m http.server, {mib} MiB", "MiB/s")
    large = Series(f"artifacts get, {mib} MiB", "MiB/s")
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder, run_server("up") as service:
        target = Path(folder) / "got"
        job = submit_alone(service, f"{INTERPRETER} -c '{_WRITE.format(files=files, mib=mib)}'")
        service.wait(job)
        (stored,) = (service.home / "artifacts").glob(f"*/{job}/1/files")
        get = [_CLI, "jobs", "artifacts", "get", "--to", str(target), job]
        for _ in range(size.rounds):
            for series in (copied, small, served, large):
                series.begin_round()
            for _ in range(size.pick(3, 1)):
                copied.add(files / _timed(["cp", "-r", str(stored / "small"), str(target)], service, target))
                small.add(files / _timed([*get, "small"], service, target))
                served.add(mib / _serve(stored, target))
                large.add(mib / _timed([*get, "large"], service, target))
    goals = [
        ratio_goal("small files, of cp -r's rate", small, copied, bounds.DOWNLOAD_SMALL, at_most=False),
        ratio_goal("a large file, of a plain server's rate", large, served, bounds.DOWNLOAD_LARGE, at_most=False),
    ]
    return Result([small, copied, large, served], goals)


def _timed(command: list[str], service: Service, target: Path) -> float:
    seconds = run_to_end(command, environment(service.home))
    shutil.rmtree(target)
    return seconds


def _serve(folder: Path, target: Path) -> float:
    """Return the seconds of a plain download from a plain server, both in Python."""
    port = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: _answers(url), "the plain server to answer")
            began = perf_counter()
            with urllib.request.urlopen(f"{url}/large") as answer, target.open("wb") as out:  # noqa: S310 - an address of its own
                shutil.copyfileobj(answer, out, _MIB)
            seconds = perf_counter() - began
        finally:
            server.terminate()
    target.unlink()
    return seconds


def _answers(url: str) -> bool | None:
    try:
        urllib.request.urlopen(url).close()  # noqa: S310 - an address of its own
    except OSError:
        return None
    return True
