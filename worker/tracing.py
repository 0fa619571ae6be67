"""The spans of one attempt, which any worker can add to: their ids follow from the job's row.

An attempt runs for hours and outlives workers. So the spans of the whole and of the run are emitted when the record is
closed, by whoever closes it, with the times that the record has; only short steps are spans of the worker that takes
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from core import tracing
from core.errors import LeaseLost
from core.jobs.models import Job
from core.jobs.reasons import REASONS
from core.jobs.states import JobState
from core.tracing import TRACE_PARENT, Ids
from worker.signals import Detached

_AS_WISHED = frozenset({JobState.SUCCEEDED, JobState.CANCELLED})


class AttemptSpans:
    """Where the spans of a job's present attempt belong.

    Args:
        job: The job; its traceparent is the submission's.
    """

    def __init__(self, job: Job) -> None:
        submitted = tracing.continued({TRACE_PARENT: job.trace_parent or ""})
        attempt = str(job.attempt)
        self._whole = Ids(submitted, job.id, attempt)
        self._run = Ids(self._whole.within, job.id, attempt, "run")
        self._attributes: dict[str, str | int] = {
            "gradient.job.id": job.id,
            "gradient.attempt": job.attempt,
            "gradient.machine_type": job.machine_type,
        }

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Be in a step of the attempt: prepare, launch, tear down, collect, finish."""
        let_go: BaseException | None = None
        with tracing.span(name, self._whole.within, self._attributes) as entered:
            try:
                yield
            except (Detached, LeaseLost) as wish:  # no failure: another worker takes the step again
                entered.set_attribute("gradient.let_go", True)  # noqa: FBT003 - an attribute's value
                let_go = wish
        if let_go is not None:
            raise let_go

    def closed(self, job: Job, reason: str) -> None:
        """Emit the run and the whole.

        Args:
            job: As it was before its attempt was closed.
            reason: Why the attempt ended.
        """
        attributes = self._attributes | {"gradient.reason": reason, "gradient.worker": job.worker or ""}
        error = None if REASONS[reason].final in _AS_WISHED else reason
        ended = job.ended_at or datetime.now(UTC)
        if job.started_at is not None:
            self._run.emit("run", job.started_at, ended, attributes, error)
        if job.claimed_at is not None:
            # The record's clock may be ahead of this host's.
            self._whole.emit("attempt", job.claimed_at, max(ended, datetime.now(UTC)), attributes, error)
