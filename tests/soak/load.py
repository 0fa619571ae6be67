"""The jobs of a soak: trivial ones, always a few under way."""

import time
from collections.abc import Callable

from soak.service import SLOTS, SoakDeployment
from support.deployment import ENDED_STATES

MAX_ACTIVE_JOBS = 2 * SLOTS
_COMMAND = "echo done; echo weights >/artifacts/model"
_PROGRESS_SECONDS = 30.0
_STUCK_SECONDS = 300.0


def run_jobs(service: SoakDeployment, jobs: int, seconds: float | None, log: Callable[[str], None]) -> list[str]:
    """Run so many jobs, read the record, log and artifacts of each as clients do, and return what went wrong.

    Args:
        service: Runs them.
        jobs: How many.
        seconds: After which no more are submitted.
        say: Tells of progress, a line at a time.
    """
    problems: list[str] = []
    active: list[str] = []
    submitted, ended = 0, 0
    began = last_ended_at = last_logged_at = time.monotonic()
    while active or submitted < jobs:
        now = time.monotonic()
        if submitted < jobs and seconds is not None and now - began > seconds:
            jobs = submitted
        while len(active) < MAX_ACTIVE_JOBS and submitted < jobs:
            active.append(service.submit(_COMMAND))
            submitted += 1
        for job_id in [one for one in active if service.job(one)["state"] in ENDED_STATES]:
            active.remove(job_id)
            problems += _check_outputs(service, job_id)
            ended, last_ended_at = ended + 1, now
        if now - last_ended_at > _STUCK_SECONDS:
            return [*problems, f"no job ended for {_STUCK_SECONDS:.0f} s: {', '.join(active)}"]
        if now - last_logged_at > _PROGRESS_SECONDS:
            last_logged_at = now
            log(f"{ended:,} of {jobs:,} jobs")
        time.sleep(0.2)
    log(f"{ended:,} jobs in {time.monotonic() - began:.0f} s")
    return problems


def _check_outputs(service: SoakDeployment, job_id: str) -> list[str]:
    """Read the outputs of an ended job, and return what is wrong with it."""
    job, log = service.job(job_id), service.raw_log(job_id)
    service.artifacts(job_id)
    if job["state"] == "Stopped" and job["exitCode"] == 0 and log == b"done\n":
        return []
    return [f"job {job_id}: {job['state']}, {job.get('reason')}, exit code {job.get('exitCode')}, log {log[:80]!r}"]
