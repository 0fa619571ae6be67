"""Attempts as their supervisor keeps them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from core.jobs.scheduling.workers import HeartbeatResult
from core.jobs.states import JobState
from worker.attempt.control import AttemptControl
from worker.attempt.pipeline import AttemptRun
from worker.backends.base import Backend
from worker.context import WorkerContext


class Together:
    """Members of an array that are submitted together, as soon as each is prepared or has ended."""

    def __init__(self, backend: Backend, jobs: Sequence[Job]) -> None:
        self._backend, self._limit = backend, jobs[0].array_limit
        self._names = [f"{job.id}-{job.attempt}" for job in jobs]
        self._open = {job.id for job in jobs}
        self._lock = threading.Lock()

    def settle(self, job_id: str) -> None:
        """Note that a member is prepared, or has ended; submit those that are prepared if there is no other one."""
        with self._lock:
            self._open.discard(job_id)
            if self._open:
                return
        self._backend.submit_members(self._names, self._limit)


@dataclass(slots=True, eq=False)
class RunningAttempt:
    job: Job  # the row as it was claimed or adopted
    control: AttemptControl
    thread: threading.Thread | None = None  # None: it has not begun, or waits elsewhere
    claimed: bool = True  # False: the claim is not committed yet
    run: AttemptRun | None = None  # of one that waits elsewhere
    together: Together | None = None

    @property
    def will_wait(self) -> bool:
        """Return whether it has no thread while it waits elsewhere."""
        return self.job.state is JobState.STARTING and capabilities_of(self.job.backend).own_queue

    def park(self, resume: Callable[["RunningAttempt"], None]) -> bool:
        """Leave the attempt, which waits elsewhere, without a thread; False: there was a request meanwhile."""
        self.thread = None
        parked = self.control.park(partial(resume, self))
        if not parked:
            self.thread = threading.current_thread()
        return parked

    def settle(self) -> None:
        if self.together is not None:
            self.together.settle(self.job.id)


def bind_members(attempts: Sequence[RunningAttempt], context: WorkerContext) -> None:
    """Have the members of one array submitted together, as far as they run for the first time."""
    arrays: dict[str, list[RunningAttempt]] = {}
    for attempt in attempts:
        job = attempt.job
        if job.array_id is not None and job.nodes is None and job.attempt == 1:
            arrays.setdefault(job.array_id, []).append(attempt)
    for members in (members for members in arrays.values() if len(members) > 1):
        together = Together(context.backend(members[0].job.backend), [member.job for member in members])
        for member in members:
            member.together, member.control.together = together, True


def apply_heartbeat(running: Sequence[RunningAttempt], heartbeats: Mapping[str, HeartbeatResult]) -> None:
    """Release the jobs that were lost, and stop those that should stop.

    `running`: those that were claimed before the heartbeats were read.
    """
    for attempt in running:
        attempt.control.apply(heartbeats.get(attempt.job.id), attempt.job.lease)
