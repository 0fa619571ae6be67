"""Hosts that claim and end jobs as workers do, without running any: many in one process, a thread each."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Process, Queue

from core.db.database import Database
from core.jobs import lifecycle
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer

_THREADS = 25
_HEARTBEAT_SECONDS = 10.0


@dataclass(slots=True)
class HostTimes:
    """Figures of hosts: seconds of each claim that got a job, and the number of jobs that they ended."""

    claims: list[float] = field(default_factory=list)
    ended: int = 0


def run_hosts(url: str, count: int, seconds: float, *, job_seconds: float | None, poll_seconds: float) -> HostTimes:
    """Let hosts work for a while.

    Args:
        url: The service's database.
        count: Number of hosts, each with one slot.
        seconds: How long.
        job_seconds: Mean duration of a job; None: hosts look for jobs and claim none.
        poll_seconds: Seconds between two looks of a host that finds none.
    """
    results: Queue[HostTimes] = Queue()
    groups = [range(first, min(first + _THREADS, count)) for first in range(0, count, _THREADS)]
    processes = [
        Process(target=_run_group, args=(url, group, seconds, job_seconds, poll_seconds, results)) for group in groups
    ]
    for process in processes:
        process.start()
    times = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return HostTimes([claim for host in times for claim in host.claims], sum(host.ended for host in times))


def _run_group(
    url: str,
    numbers: Sequence[int],
    seconds: float,
    job_seconds: float | None,
    poll_seconds: float,
    results: "Queue[HostTimes]",
) -> None:
    database, times = Database(url, pool_size=len(numbers)), HostTimes()
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_run_host, args=(database, f"host-{number}", until, job_seconds, poll_seconds, times))
        for number in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(times)


def _run_host(
    database: Database, name: str, until: float, job_seconds: float | None, poll_seconds: float, times: HostTimes
) -> None:
    offer = WorkerOffer(worker=name, host=name, backends=("process",))
    with database.write() as session:
        workers.register(session, offer, boot_id="boot", slots=1)
    time.sleep(random.uniform(0, 2 * (job_seconds or 0.0)))  # noqa: S311 - no secret; hosts do not start at once
    beat_at = time.monotonic() + random.uniform(0, _HEARTBEAT_SECONDS)  # noqa: S311 - no secret
    while time.monotonic() < until:
        if time.monotonic() >= beat_at:
            with database.write() as session:
                workers.heartbeat(session, offer, boot_id="boot")
            beat_at += _HEARTBEAT_SECONDS
        if job_seconds is None or not _run_job(database, offer, job_seconds, times):
            with database.read() as session:
                claims.has_claimable_job(session, offer)
            time.sleep(poll_seconds)


def _run_job(database: Database, offer: WorkerOffer, job_seconds: float, times: HostTimes) -> bool:
    began = time.perf_counter()
    with database.write() as session:
        job = claims.claim(session, offer)
    if job is None:
        return False
    times.claims.append(time.perf_counter() - began)
    with database.write() as session:
        job = lifecycle.mark_running(session, job, {"pid": 1})
    time.sleep(random.uniform(0, 2 * job_seconds))  # noqa: S311 - no secret
    with database.write() as session:
        job = lifecycle.mark_finishing(session, job, "completed", exit_code=0)
    with database.write() as session:
        lifecycle.finish(session, job, artifacts_state="complete")
    times.ended += 1
    return True
