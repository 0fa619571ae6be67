"""The jobs of a soak: trivial ones, always a few under way."""

import time
from collections.abc import Callable

from soak.service import SLOTS, Soaked
from support.deployment import ENDED

UNDER_WAY = 2 * SLOTS
_COMMAND = "echo done; echo weights >/artifacts/model"
_SAY_AGAIN_SECONDS = 30.0
_STUCK_SECONDS = 300.0


def run_jobs(service: Soaked, jobs: int, seconds: float | None, say: Callable[[str], None]) -> list[str]:
    """Run so many jobs, read the record, log and artifacts of each as clients do, and return what went wrong.

    Args:
        service: Runs them.
        jobs: How many.
        seconds: After which no more are submitted.
        say: Tells of progress, a line at a time.
    """
    wrong: list[str] = []
    under_way: list[str] = []
    submitted, ended = 0, 0
    began = moved_at = said_at = time.monotonic()
    while under_way or submitted < jobs:
        now = time.monotonic()
        if submitted < jobs and seconds is not None and now - began > seconds:
            jobs = submitted
        while len(under_way) < UNDER_WAY and submitted < jobs:
            under_way.append(service.submit(_COMMAND))
            submitted += 1
        for job_id in [one for one in under_way if service.job(one)["state"] in ENDED]:
            under_way.remove(job_id)
            wrong += _read(service, job_id)
            ended, moved_at = ended + 1, now
        if now - moved_at > _STUCK_SECONDS:
            return [*wrong, f"no job ended for {_STUCK_SECONDS:.0f} s: {', '.join(under_way)}"]
        if now - said_at > _SAY_AGAIN_SECONDS:
            said_at = now
            say(f"{ended:,} of {jobs:,} jobs")
        time.sleep(0.2)
    say(f"{ended:,} jobs in {time.monotonic() - began:.0f} s")
    return wrong


def _read(service: Soaked, job_id: str) -> list[str]:
    """Read the outputs of an ended job, and return what is wrong with it."""
    job, log = service.job(job_id), service.raw_log(job_id)
    service.artifacts(job_id)
    if job["state"] == "Stopped" and job["exitCode"] == 0 and log == b"done\n":
        return []
    return [f"job {job_id}: {job['state']}, {job.get('reason')}, exit code {job.get('exitCode')}, log {log[:80]!r}"]
