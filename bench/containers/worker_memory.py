"""Memory of a worker that has run a job, while none, ten and fifty jobs run in containers."""

import json
from pathlib import Path

from bench.containers.engine import engine
from bench.measure import Result, Series, Size
from bench.service import Service, run_server, run_worker, submit, submit_alone, wait_for

_COMMAND = "echo up; exec sleep 3600"
_SETTLED_SECONDS = 300.0
_SAMPLES = 3
"""Number of usage samples that the worker must have taken of each job before it is measured."""


def run(size: Size) -> Result:
    """Measure with API and worker as two processes; every round starts a new worker."""
    counts = (0, 2) if size.quick else (0, 10, 50)
    rss = [Series(f"worker, {count} jobs running: RSS", "MiB") for count in counts]
    per_job = Series(f"each of {counts[-1]} jobs: RSS", "KiB")
    for _ in range(size.rounds):
        for measured in (*rss, per_job):
            measured.begin_round()
        for measured, mib in zip(rss, _measure(counts), strict=True):
            measured.add(mib)
        per_job.add((rss[-1].samples[-1] - rss[0].samples[-1]) * 1024 / counts[-1])
    return Result([*rss, per_job], [])


def _measure(counts: tuple[int, ...]) -> list[float]:
    """Return the memory of a new worker that runs this many jobs at once, in MiB."""
    settings = engine().environment | {"GRADIENT_WORKER__SLOTS": str(counts[-1])}
    sizes: list[float] = []
    jobs: list[str] = []
    with run_server("api", **settings) as service, run_worker(service, **settings) as pid:
        service.wait(submit_alone(service, "true"))  # what the first job loads is not a cost of the others
        try:
            for count in counts:
                with service.connect() as connection:
                    jobs += [submit(connection, _COMMAND) for _ in range(count - len(jobs))]
                for job_id in jobs:
                    wait_for(lambda job=job_id: _has_settled(service, job), f"job {job_id} to run", _SETTLED_SECONDS)
                sizes.append(_rss_mib(pid))
        finally:
            _stop(service, jobs)
    return sizes


def _has_settled(service: Service, job_id: str) -> bool | None:
    """Return True once the job has run for some samples, else None."""
    with service.get(f"/jobs/{job_id}/metrics?name=memory_bytes") as answer:
        series = json.load(answer)["series"]
    return bool(series and len(series[0]["points"]) >= _SAMPLES) or None


def _rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def _stop(service: Service, jobs: list[str]) -> None:
    with service.connect() as connection:
        for job_id in jobs:
            connection.post(f"/jobs/{job_id}/stop", b"")
    for job_id in jobs:
        service.wait(job_id)
